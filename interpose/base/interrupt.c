#include "interrupt.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How the interpreter is asked; all NULL when there is none. */
static interrupt_calls interpreter;
static void *raised[3];

void interrupt_set(const interrupt_calls *calls) {
    interpreter = *calls;
}

void interrupt_take(void *out[3]) {
    for (int i = 0; i < 3; i++) {
        out[i] = raised[i];
        raised[i] = NULL;
    }
}

bool interrupt_arrived(void) {
    if (!interpreter.check || getpid() != (pid_t)syscall(SYS_gettid))
        return false; /* handlers run on the main thread only */
    if (raised[0])
        return true; /* taken before, and not yet raised again */
    int state = interpreter.ensure();
    if (interpreter.check() != 0)
        interpreter.fetch(&raised[0], &raised[1], &raised[2]);
    interpreter.release(state);
    return raised[0] != NULL;
}
