/* Says what this process waits for, in its live file (live_format.h).
 *
 * No malloc, no lock but at the making of the file; safe from any thread. Where there is no directory, no file, or
 * no free place in it, nothing is said and nothing else changes. */
#ifndef CASTOR_TRACE_LIVE_H
#define CASTOR_TRACE_LIVE_H

#include <stddef.h>
#include "live_format.h"

/* What the thread that makes a process group knows of it, for the live_group_made that follow on this thread; NULL: no
 * group is being made any more. `ranks` are global ones; count 0: all. */
void live_group_announce(const char *name, const int32_t *ranks, size_t count);
/* The backend of a group was made at `address`. Returns what its ranks recognize it by, the same on all of them; 0: its
 * name is not known. */
uint64_t live_group_made(const void *address, int rank, int size);
void live_group_ended(const void *address);

/* A collective on the group at `address` begins, which all ranks of the group take part in. NULL: no place. */
live_wait *live_collective_begin(const void *address, const char *operation, uint64_t bytes, uint64_t now_ns);
/* A wait of the node store, or for a message (`group` NULL). */
live_wait *live_wait_begin(live_kind kind, const char *what, uint64_t now_ns);
/* Whom the wait is for, when that becomes known or changes. */
void live_wait_missing(live_wait *wait, int pid);
void live_wait_end(live_wait *wait); /* NULL is fine */

void live_rank_set(int rank);

/* ---- the Python stack, when `castor run` asks for it ---- */

/* `tell` writes the process's Python stacks to the file at `path`; it is called on a thread of its own, since it may
 * wait for the interpreter. NULL: there is nobody any more. */
void live_stack_teller_set(void (*tell)(const char *path));
/* Looks whether a stack is wanted; the sampler calls it about once a second. */
void live_stack_look(void);

void live_reset(void); /* at start and in a forked child: the file so far is not this process's */

#endif
