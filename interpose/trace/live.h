/* Says what this process waits for, in its live file (live_format.h).
 *
 * No malloc, no lock but at the making of the file; safe from any thread. Where there is no directory, no file, or
 * no free place in it, nothing is said and nothing else changes. */
#ifndef CASTOR_TRACE_LIVE_H
#define CASTOR_TRACE_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include "live_format.h"

/* What the thread that makes a process group knows of it, for the live_group_made that follow on this thread; NULL: no
 * group is being made any more. `ranks` are global ones; count 0: all. */
void live_group_announce(const char *name, const int32_t *ranks, size_t count);
/* The backend of a group was made at `address`. Returns what its ranks recognize it by, the same on all of them; 0: its
 * name is not known. */
uint64_t live_group_made(const void *address, int rank, int size);
/* A communicator, by what all its ranks know it by. */
void live_communicator_made(const void *address, uint64_t identity, int rank, int size);
void live_group_ended(const void *address);

/* A collective on the group at `address` begins, which all ranks of the group take part in. NULL: no place. */
live_wait *live_collective_begin(const void *address, const char *operation, uint64_t bytes, uint64_t now_ns);
/* The same of one that is enqueued: it is in flight for the host until its call returns. */
live_wait *live_collective_enqueue(const void *address, const char *operation, uint64_t bytes,
                                   uint64_t now_ns);
/* A wait of the node store, or for a message that nothing more is known of. */
live_wait *live_wait_begin(live_kind kind, const char *what, uint64_t now_ns);

/* A message to or from a rank of the group; `peer` -1: from any rank. */
typedef struct live_message {
    uint32_t group;
    int32_t peer, tag;
    uint64_t ordinal; /* among those of its channel; 0: not counted */
} live_message;

/* `enqueued`: as a collective of NCCL, which knows no tags. */
live_message live_message_begin(const void *address, live_direction direction, int peer, int tag,
                                bool enqueued, uint64_t now_ns);
/* A thread waits until it has arrived. */
live_wait *live_receive_begin(const live_message *message, const char *what, uint64_t now_ns);
/* Whom the wait is for, when that becomes known or changes. */
void live_wait_missing(live_wait *wait, int pid);
void live_wait_end(live_wait *wait); /* NULL is fine */

/* Who waits for the devices; one thread at a time. */
void live_device_set(const live_device *device);

void live_rank_set(int rank);

/* ---- the Python stack, when `castor run` asks for it ---- */

/* `tell` writes the process's Python stacks to the file at `path`; it is called on a thread of its own, since it may
 * wait for the interpreter. NULL: there is nobody any more. */
void live_stack_teller_set(void (*tell)(const char *path));
/* Looks whether a stack is wanted; the sampler calls it about once a second. */
void live_stack_look(void);

void live_reset(void); /* at start and in a forked child: the file so far is not this process's */

#endif
