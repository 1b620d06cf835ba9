/* What /proc says of a process. No malloc, no stdio. */
#ifndef CASTOR_BASE_PROCESS_H
#define CASTOR_BASE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* When the process began, in clock ticks since the machine's start: with its pid this identifies it, while a pid alone may
 * be used again. `pid` 0: the process itself. Result 0: there is no such process. */
uint64_t process_start_ticks(int pid);

/* The kernel's letter ('R', 'S', 'D', 'T' ...) for the process that began at `start_ticks`. 0 when it has ended, also if
 * nobody has waited for it yet or another process has its pid. */
char process_state(int pid, uint64_t start_ticks);

/* The memory that /proc/PID/cmdline shows of this process, which may be written; NULL: it is unknown. */
char *process_words(size_t *bytes);

#endif
