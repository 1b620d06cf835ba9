/* Collectives of process groups whose ranks are on several nodes: the ranks of a node move data through its memory. The first
 * of them, the node's leader, exchanges with the other leaders by gloo, in a context of the leaders alone. Reduced data crosses
 * the network once per node, not once per rank. Private to hooks/.
 *
 * gloo's functions throw. A leader whose exchange throws fails the node's group, and the calls of the node's other ranks end. */
#ifndef CASTOR_HOOKS_GLOO_ACROSS_H
#define CASTOR_HOOKS_GLOO_ACROSS_H

#include <stdbool.h>
#include <stdint.h>
#include "collectives/node_collective.h"
#include "base/status.h"
#include "shims/gloo/options.h"

typedef struct gloo_across {
    gloo_shared leaders; /* a leader's context; no object: this rank is no leader */
    node_group *group;   /* NULL: alone on its node */
    const void *owner;
    int node;
    int32_t place[]; /* the node of each rank of the process group, from 0 */
} gloo_across;

/* Whether buffers can be made in this context and have the expected layout. Call once, before the functions below. */
bool gloo_across_holds(const gloo_shared *context);
/* NULL: no memory. `leaders` may have no object. */
gloo_across *gloo_across_new(node_group *group, gloo_shared leaders, int rank, const int32_t *place,
                             int world);

/* `input` may be `out`. The result is the same on every rank: sums of a node's ranks in rank order, then as gloo adds nodes. */
castor_status gloo_across_allreduce(const gloo_across *a, const node_call *call,
                                    const gloo_allreduce_options *o, const void *input, void *out,
                                    const node_reduction *reduction);
castor_status gloo_across_broadcast(const gloo_across *a, const node_call *call,
                                    const gloo_broadcast_options *o, void *data);
castor_status gloo_across_barrier(const gloo_across *a, const node_call *call, const gloo_barrier_options *o);

#endif
