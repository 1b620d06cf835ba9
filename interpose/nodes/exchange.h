/* The exchange between nodes: what the ranks of a lane (grouping.h) send each other over the script's process groups, and how
 * the node uses it.
 *
 * Each rank of a lane exchanges what it owns: the same tensors on every node, because all nodes register the same ones in the
 * same order. After reduce_finish each owner adds the other nodes' sums to its own, in place; nobody reads a sum before
 * exchange_settle. */
#ifndef CASTOR_NODES_EXCHANGE_H
#define CASTOR_NODES_EXCHANGE_H

#include "store/tensor.h"

/* What is exchanged: the sums after a backward, or what a step has changed: parameters, and sums where it writes them too. */
typedef enum exchange_what { EXCHANGE_SUMS, EXCHANGE_PARAMETERS, EXCHANGE_STEPPED_SUMS } exchange_what;

/* What one collective moves. */
typedef struct exchange_range {
    void *address;
    uint64_t numel;
    int32_t dtype; /* kernel_dtype */
    int32_t node;  /* sums: the only one that keeps it, -1: all do; else the one that has stepped it */
} exchange_range;

/* Of those tensors that this rank owns and that are `wanted`, in the order in which every node exchanges them: first what all
 * nodes keep, then by node. What one node has stepped and keeps alone does not move. `merge`: neighbours of one dtype in one
 * chunk are one range, with the unused rest of a page between them; only where exchange_layout is the same on all
 * nodes. Else one range for each. Room for `count`. */
castor_status exchange_ranges(exchange_what what, tensor *const *tensors, uint32_t count,
                              const uint8_t *wanted, bool merge, exchange_range *out, uint32_t *ranges);

/* A digest, below 2^63, of how what this rank owns lies in its chunks. */
castor_status exchange_layout(exchange_what what, tensor *const *tensors, uint32_t count, uint64_t *digest);

/* How the used[] sums go over while a backward makes them, from the last tensor to the first: in units of neighbours. A larger unit
 * costs fewer messages, a smaller one can begin earlier. */
#define EXCHANGE_UNIT_BYTES (4ul << 20)
/* unit[i]: the number of tensor i's; -1: it is not this rank's, or not used. waits[n]: unit n's turn comes when so many used
 * sums are complete (reduce_complete). Returns the number of units; room for `count`. */
uint32_t exchange_units(tensor *const *tensors, uint32_t count, const uint8_t *used, int32_t *unit,
                        uint32_t *waits);

/* Parameters that were registered, with the size of chunks that the job asks for: nodes compare them. */
void exchange_registered(store *s, uint64_t chunk_bytes, tensor *const *tensors, uint32_t count);

/* On every rank of this `node`, after the owners' exchange: every rank gets used[i], which the owner of tensor i knows from all
 * nodes. */
castor_status exchange_settle(store *s, int node, tensor *const *tensors, uint32_t count, uint8_t *used);

#endif
