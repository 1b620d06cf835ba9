/* What is divided: a batch's samples among the ranks, and the work of a step into parts that fit into memory. */
#ifndef CASTOR_TRAINING_DIVISION_H
#define CASTOR_TRAINING_DIVISION_H

#include <stdint.h>

typedef struct batch_part {
    uint64_t first, last; /* the samples from first on, last excluded */
    double weight;        /* their share of the batch */
} batch_part;

/* This rank's part of `count` samples. Parts of the ranks follow each other, and their sizes differ by one at most. A rank for
 * which there is no sample has the first one, with weight 0: it takes part in all that ranks do together. */
batch_part batch_part_of(uint64_t count, int rank, int world);

/* Items of these bytes, in their order, in parts of at most `most` bytes each; an item that has more is a part alone. `most`
 * 0: one part. ends[i]: the first item behind part i. Returns how many parts there are: one at least, perhaps empty, and no
 * more than items. */
uint32_t parts_divide(const uint64_t *bytes, uint32_t count, uint64_t most, uint32_t *ends);

#endif
