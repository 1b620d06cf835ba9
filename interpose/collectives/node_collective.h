/* Collectives of the ranks of one node through a node_group's memory.
 *
 * Reductions add up in rank order, element by element: results do not depend on sizes or timing, and are the same on
 * every rank. Any thread of a rank may call; calls of one `channel` with the same tag come from one thread, one after another.
 * After an error the outputs are undefined, and the group has failed. */
#ifndef CASTOR_COLLECTIVES_NODE_COLLECTIVE_H
#define CASTOR_COLLECTIVES_NODE_COLLECTIVE_H

#include <stdint.h>
#include "node_group.h"

typedef struct node_call {
    uint32_t channel; /* below 128: each has its own tags */
    uint32_t tag;
    double timeout_seconds;
} node_call;

/* out[i] = a[i] op b[i]; `out` may be `a` or `b`. */
typedef struct node_reduction {
    void (*apply)(void *context, void *out, const void *a, const void *b, size_t numel);
    void *context;
} node_reduction;

/* `input` may be `output`. */
castor_status node_allreduce(node_group *g, const node_call *call, const void *input, void *output,
                             size_t numel, size_t element_bytes, const node_reduction *reduction);
/* The same for `root` alone; the others' `output` is not written (gloo leaves partial sums there). */
castor_status node_reduce(node_group *g, const node_call *call, const void *input, void *output, size_t numel,
                          size_t element_bytes, const node_reduction *reduction, int root);
/* `root`'s bytes to all. */
castor_status node_broadcast(node_group *g, const node_call *call, void *data, size_t bytes, int root);
/* `bytes` bytes of each rank, in rank order; `input` may be the rank's own part of `output`. */
castor_status node_allgather(node_group *g, const node_call *call, const void *input, void *output,
                             size_t bytes);
/* The same for `root` alone, the only one that needs `output`. */
castor_status node_gather(node_group *g, const node_call *call, const void *input, void *output, size_t bytes,
                          int root);
/* Each rank gets `bytes` bytes of its own from `root`, the only one that needs `inputs`: one for each rank. */
castor_status node_scatter(node_group *g, const node_call *call, const void *const *inputs, void *output,
                           size_t bytes, int root);
/* Rank i's j-th `bytes` bytes become rank j's i-th; `input` and `output` do not overlap. */
castor_status node_alltoall(node_group *g, const node_call *call, const void *input, void *output,
                            size_t bytes);
castor_status node_barrier(node_group *g, const node_call *call);

#endif
