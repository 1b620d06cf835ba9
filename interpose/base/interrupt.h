/* Signals that arrive during a wait of this library (Ctrl-C). Their handlers are the interpreter's; an exception that they
 * raise ends the wait. */
#ifndef CASTOR_BASE_INTERRUPT_H
#define CASTOR_BASE_INTERRUPT_H

#include <stdbool.h>

/* The interpreter's functions. */
typedef struct interrupt_calls {
    int (*ensure)(void);  /* takes the interpreter's lock */
    void (*release)(int); /* releases it */
    int (*check)(void);   /* runs the handlers of signals that have arrived; not 0: one raised an exception */
    void (*fetch)(void **type, void **value, void **trace); /* takes the exception */
} interrupt_calls;
void interrupt_set(const interrupt_calls *calls);
/* Runs the handlers, on the main thread. True: an exception was raised, and the wait must end (CASTOR_ERR_INTERRUPTED). */
bool interrupt_arrived(void);
/* Takes the exception that ended a wait. The caller raises it again when the library has returned. */
void interrupt_take(void *out[3]);

#endif
