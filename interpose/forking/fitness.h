/* Whether a process that has just imported PyTorch may be forked, so that all that follows is as if each of the ranks had been started by
 * itself: nothing of what it has may be shared with a child, or be missing there (docs/forking.md). */
#ifndef CASTOR_FORKING_FITNESS_H
#define CASTOR_FORKING_FITNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Remembers which files the process was started with. Before anything of the process's own has run. */
void fitness_start(void);

/* Ends threads that end before a fork by themselves (OpenBLAS's), then looks. False: `reason` says what the process has. `command`: the
 * parent of the process that may be forked. */
bool fitness_check(pid_t command, char *reason, size_t reason_size);

/* In a forked process: files that were open for reading get a position of their own. False: one cannot be opened again. */
bool fitness_part_files(void);

#endif
