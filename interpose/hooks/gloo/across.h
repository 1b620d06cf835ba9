/* Collectives of process groups whose ranks are on several nodes: the ranks of a node move data through its memory, and
 * the first of them, the node's leader, exchanges with the other leaders by gloo, in a context that only these have. What
 * is reduced goes over the network once for a node, not once for a rank. Private to hooks/.
 *
 * gloo's functions throw; a leader whose exchange ends so fails the node's group, and the ranks beside it end as well. */
#ifndef CASTOR_HOOKS_GLOO_ACROSS_H
#define CASTOR_HOOKS_GLOO_ACROSS_H

#include <stdbool.h>
#include <stdint.h>
#include "collectives/node_collective.h"
#include "core/status.h"
#include "shims/gloo/options.h"

typedef struct gloo_across {
    gloo_shared leaders; /* a leader's; no object: this rank is none */
    node_group *group;   /* NULL: alone on its node */
    const void *owner;
    int node;
    int32_t place[]; /* the node of each rank of the process group, from 0 */
} gloo_across;

/* Whether buffers can be made in this context, and look as they should: once, before the first use of what follows. */
bool gloo_across_holds(const gloo_shared *context);
/* NULL: no memory. `leaders` may have no object. */
gloo_across *gloo_across_new(node_group *group, gloo_shared leaders, int rank, const int32_t *place,
                             int world);

/* `input` may be `out`. The result is the same on every rank: sums of a node's ranks in rank order, then as gloo adds. */
castor_status gloo_across_allreduce(const gloo_across *a, const node_call *call,
                                    const gloo_allreduce_options *o, const void *input, void *out,
                                    const node_reduction *reduction);
castor_status gloo_across_broadcast(const gloo_across *a, const node_call *call,
                                    const gloo_broadcast_options *o, void *data);
castor_status gloo_across_barrier(const gloo_across *a, const node_call *call, const gloo_barrier_options *o);

#endif
