/* Records this process's waits in its live file (live_format.h).
 *
 * No malloc, and no lock except when the file is made; safe from any thread. Without a directory, a file or a free entry in
 * it, nothing is recorded and nothing else changes. */
#ifndef CASTOR_TRACE_LIVE_H
#define CASTOR_TRACE_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include "live_format.h"

/* Name and ranks of the process group that this thread makes, for the live_process_group_made calls that follow on this thread;
 * NULL: the group is made. `ranks` are global ranks; count 0: all. */
void live_process_group_announce(const char *name, const int32_t *ranks, size_t count);
/* The backend of a group was made at `address`. Returns the group's identity, the same on all its ranks; 0: its name is
 * unknown. */
uint64_t live_process_group_made(const void *address, int rank, int size);
/* The same for a communicator. `identity` is the same on all its ranks. */
void live_communicator_made(const void *address, uint64_t identity, int rank, int size);
void live_process_group_ended(const void *address);

/* A collective of all ranks of the group at `address` begins. NULL: no free entry. */
live_wait *live_collective_begin(const void *address, const char *operation, uint64_t bytes, uint64_t now_ns);
/* The same for an enqueued collective: for the host it is in flight until its call returns. */
live_wait *live_collective_enqueue(const void *address, const char *operation, uint64_t bytes,
                                   uint64_t now_ns);
/* A wait of the node store, or for a message of which nothing else is known. */
live_wait *live_wait_begin(live_kind kind, const char *what, uint64_t now_ns);

/* A message to or from a rank of the group; `peer` -1: from any rank. */
typedef struct live_message {
    uint32_t group;
    int32_t peer, tag;
    uint64_t ordinal; /* among those of its channel; 0: not counted */
} live_message;

/* `enqueued`: a message of NCCL, which has no tags. */
live_message live_message_begin(const void *address, live_direction direction, int peer, int tag,
                                bool enqueued, uint64_t now_ns);
/* A thread waits for the message to arrive. */
live_wait *live_receive_begin(const live_message *message, const char *what, uint64_t now_ns);
/* Sets the process that the wait is for, when it becomes known or changes. */
void live_wait_missing(live_wait *wait, int pid);
void live_wait_end(live_wait *wait); /* NULL is fine */

/* Sets the wait for devices. One thread calls it at a time. */
void live_device_set(const live_device *device);

/* ---- the Python stack, when `castor run` asks for it ---- */

/* `tell` writes the process's Python stacks to the file at `path`; it is called on a thread of its own, since it may
 * wait for the interpreter. NULL: nobody can write them any more. */
void live_stack_teller_set(void (*tell)(const char *path));
/* Checks whether a stack is wanted; the sampler calls it about once a second. */
void live_stack_update(void);

void live_reset(void); /* at start and in a forked child: the file so far is not this process's */

#endif
