/* Divides a batch's samples among the ranks, and the work of a step into parts that fit into memory. */
#ifndef CASTOR_TRAINING_DIVISION_H
#define CASTOR_TRAINING_DIVISION_H

#include <stdint.h>

typedef struct local_batch {
    uint64_t first, last; /* the samples from first on, last excluded */
    double weight;        /* their share of the batch */
} local_batch;

/* The local batch of a rank, of `count` samples. Those of the ranks follow each other, and differ in size by one at most. A
 * rank without a sample gets the first one, with weight 0, so that it takes part in all that the ranks do together. */
local_batch local_batch_of(uint64_t count, int rank, int world);

/* Divides items of these bytes, in order, into parts of at most `most` bytes each; a larger item is a part alone. `most` 0:
 * one part. ends[i]: the first item after part i. Returns the number of parts: one, which is empty, without items; else at
 * most the number of items. */
uint32_t parts_divide(const uint64_t *bytes, uint32_t count, uint64_t most, uint32_t *ends);
/* The same for items in several places, of which each has its own `most`: a part is of one place. None without items. */
uint32_t parts_divide_by_place(const uint64_t *bytes, const int32_t *places, uint32_t count,
                               uint64_t (*most)(int place), uint32_t *ends);

/* Of a part whose step needs memory of its own: for gradients as floats, or for states until they are in the store. */
#define PARTS_OWN_MEMORY_BYTES (UINT64_C(32) << 20)

#endif
