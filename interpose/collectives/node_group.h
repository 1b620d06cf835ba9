/* The memory through which the ranks of one process group of one node move what their collectives carry.
 *
 * Vocabulary
 *   slot   where a thread of a rank offers the data of one operation: only its owner writes it, but for the acknowledgements
 *   key    names an operation of the group, the same on all ranks: no two operations have the same one
 *   cell   a part of a slot's data; operations larger than one cell go through the cells in turn
 *   step   how many cells' worth of an operation its owner has offered
 *
 * A rank offers data in a slot of its own under the operation's key; the others look for that key among its slots. So
 * ranks may be in different operations at the same time, in any order, as their worker threads come to them. A slot is
 * used again when all who read it have acknowledged that: a thread waits at most for those who are still in an operation
 * that it has left, never for another thread of its rank.
 *
 * Every wait ends: with its condition; when the rank that is waited for died or left (within a fraction of a second); or
 * after the operation's own timeout. Then the group has failed, for all of its ranks and for good: an operation that was
 * cut short is never repeated. */
#ifndef CASTOR_COLLECTIVES_NODE_GROUP_H
#define CASTOR_COLLECTIVES_NODE_GROUP_H

#include <stddef.h>
#include <stdint.h>
#include "core/status.h"

#define NODE_RANKS_MAX   64
#define NODE_THREADS_MAX 4            /* of a rank that use one group at the same time */
#define NODE_CELL_BYTES  (128u << 10) /* at most */

typedef struct node_group node_group;

/* On every rank, with the same name; `token` is the job's. Nothing is left anywhere when the ranks are gone. */
castor_status node_group_open(const char *token, const char *name, int rank, int world,
                              double timeout_seconds, node_group **out);
/* This rank takes part no more: who waits for it gets an error. */
void node_group_leave(node_group *g);

/* Errors name rank i of the group names[i]; its own number otherwise. */
void node_group_call_ranks(node_group *g, const int32_t *names);
/* Records this thread's error for all ranks, unless there is one already. Returns `status`. */
castor_status node_fail(node_group *g, castor_status status);
int node_group_rank(const node_group *g);
int node_group_world(const node_group *g);

#endif
