/* The memory through which the ranks of one process group on one node move the data of their collectives.
 *
 * Vocabulary
 *   buffer   where a thread of a rank offers the data of one operation. Only its owner writes it, except for acknowledgements
 *   key    identifies an operation of the group, on all ranks
 *   cell   a part of a buffer's data; a larger operation goes through the buffer's cells in turn
 *   step   counts the cells of an operation that its owner has offered
 *
 * A rank offers data in a buffer of its own under the operation's key; the others search that key among its buffers. So ranks may be
 * in different operations at the same time, in any order. A buffer is reused when all its readers have acknowledged: a thread
 * waits at most for ranks that are still in an operation that it has left, never for another thread of its own rank.
 *
 * Every wait ends: with its condition; when the rank that is waited for died or left (within a fraction of a second); or
 * after the operation's own timeout. After the last two the group has failed on all ranks, for good: an interrupted
 * operation is never repeated. */
#ifndef CASTOR_COLLECTIVES_NODE_GROUP_H
#define CASTOR_COLLECTIVES_NODE_GROUP_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define NODE_RANKS_MAX   64
#define NODE_THREADS_MAX 4            /* of a rank that use one group at the same time */
#define NODE_CELL_BYTES  (128u << 10) /* at most */

typedef struct node_group node_group;

/* On every rank, with the same name; `token` is the job's. Nothing is left anywhere when the ranks are gone. */
castor_status node_group_open(const char *token, const char *name, int rank, int world,
                              double timeout_seconds, node_group **out);
/* This rank leaves: whoever waits for it gets an error. */
void node_group_leave(node_group *g);

/* Errors name rank i of the group names[i]; its own number otherwise. */
void node_group_call_ranks(node_group *g, const int32_t *names);
/* Records this thread's error for all ranks, unless there is one already. Returns `status`. */
castor_status node_fail(node_group *g, castor_status status);
int node_group_rank(const node_group *g);
int node_group_world(const node_group *g);

#endif
