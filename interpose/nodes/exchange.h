/* The exchange between nodes: what the ranks of a lane (grouping.h) send each other over the script's process groups, and how
 * the node uses it.
 *
 * Each rank of a lane exchanges what it owns: the same tensors on every node, because all nodes register the same ones in the
 * same order. After reduce_finish each owner adds the other nodes' sums to its own, in place; nobody reads a sum before
 * exchange_settle. */
#ifndef CASTOR_NODES_EXCHANGE_H
#define CASTOR_NODES_EXCHANGE_H

#include "store/tensor.h"

/* What one collective moves. */
typedef struct exchange_range {
    void *address;
    uint64_t numel;
    int32_t dtype; /* kernel_dtype */
} exchange_range;

/* The sums (CHUNK_GRAD) or the parameters (CHUNK_PARAM, shared ones only) of those tensors that this rank owns and that are
 * `wanted`, by their offsets. `merge`: neighbours of one dtype in one chunk become one range, with the unused rest of a page
 * between them. The ranges are the same on every node if the same parameters could be shared there: then chunks are filled
 * alike. Else one range for each, in the order given. Room for `count`. */
castor_status exchange_ranges(chunk_kind kind, tensor *const *tensors, uint32_t count, const uint8_t *wanted,
                              bool merge, exchange_range *out, uint32_t *ranges);

/* On every rank of the node, after the owners' exchange: every rank gets used[i], which the owner of tensor i knows from all
 * nodes. */
castor_status exchange_settle(store *s, tensor *const *tensors, uint32_t count, uint8_t *used);

#endif
