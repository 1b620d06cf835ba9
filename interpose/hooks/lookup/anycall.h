/* Functions that CASTOR_TRACE_ALSO names: recorded by a closure that is made at run time (libffi) and put into
 * their callers' entries, in every object loaded now or later, until the process ends.
 *
 * Not seen: calls through pointers that were taken before, and inside the library itself without its PLT.
 * Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_ANYCALL_H
#define CASTOR_HOOKS_LOOKUP_ANYCALL_H

#include <stdbool.h>

/* Reads the option; the closures are made once their libraries are there. Says what cannot be done. */
void anycall_start(void);
/* Libraries may have come: makes what is missing. Cheap when none has. */
void anycall_refresh(void);
/* Gives the callers' entries back. */
void anycall_stop(void);

/* The name is one of a traced function. */
bool anycall_names(const char *name);
/* The closure where a look-up of that name has found the traced function, else `found`. */
void *anycall_answer(const char *name, void *found);

#endif
