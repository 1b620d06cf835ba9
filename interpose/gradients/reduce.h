/* Sums of gradients: each rank adds its own, in rank order per block, in the background.
 *
 * Rank r adds block b of a generation after rank r - 1 has added it. Rank 0 overwrites the previous sum after every rank has released
 * it. So the result does not depend on timing, and the last rank's progress completes it. The thread `castor-reduce` takes this
 * process's jobs in the order of their submission. */
#ifndef CASTOR_GRADIENTS_REDUCE_H
#define CASTOR_GRADIENTS_REDUCE_H

#include "store/tensor.h"

/* Gradients that may wait for the background sum before the backward pass waits. */
#define REDUCE_QUEUE_BYTES (UINT64_C(32) << 20)

/* Adds source[i] * scale to the sum of the tensor's running generation (source NULL: adds nothing, but takes its turn).
 * `carry`, the same on every rank: the generation's sum goes on from the last one, which rank 0 then adds to as the others do.
 * `source` must stay as it is until reduce_done reaches *ticket. Waits while more than `queue_bytes` are queued. */
castor_status reduce_submit(tensor *t, const void *source, double scale, bool carry, uint64_t queue_bytes,
                            uint64_t *ticket);
/* The number of jobs that were done: tickets up to it are free. */
uint64_t reduce_done(const store *s);
/* Marks the tensor as used by this rank in the running generation. */
void reduce_mark_used(tensor *t);
/* Of the used[] tensors, how many have every rank's part in the running generation, from the last one on: in the order of a backward. */
uint32_t reduce_complete(tensor *const *tensors, uint32_t count, const uint8_t *used);
/* Waits until every rank has added to the running generation of each tensor, and begins the next generation. */
castor_status reduce_finish(store *s, tensor *const *tensors, uint32_t count);
/* Some rank used the tensor in the generation that reduce_finish completed last. */
bool reduce_was_used(const tensor *t);
/* A rank of another node did; the owner says so, before a barrier. */
void reduce_used_elsewhere(tensor *t);

#endif
