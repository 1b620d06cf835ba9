/* Buckets: how ranks that train on devices divide a model's gradients for their sums, and which rank owns what.
 *
 *   bucket  parameters of one type that follow each other in a backward; their gradients lie in one range of memory, and one collective
 *           sums them. All of a bucket have the same owner
 *
 * Every rank finds the same division, from the parameters alone. Buckets are numbered in the order of a backward, from the last parameter
 * to the first, and are summed in that order. */
#ifndef CASTOR_GRADIENTS_BUCKETS_H
#define CASTOR_GRADIENTS_BUCKETS_H

#include <stdint.h>
#include "base/status.h"

#define BUCKET_BYTES       (UINT64_C(25) << 20) /* DistributedDataParallel's */
#define BUCKET_LEAST_BYTES (UINT64_C(1) << 20)
#define BUCKETS_PER_OWNER                                                                                    \
    16 /* at least, where that makes none smaller than the least: owners have equal shares then */
#define BUCKET_ALIGNMENT 64 /* of a gradient within its bucket, bytes */

typedef struct bucket_place {
    uint64_t offset; /* of its gradient, bytes */
    uint32_t bucket;
    int32_t owner; /* from 0 */
} bucket_place;

/* `bytes`, `types` (any numbers), `known` (its owner, below `owners`; -1: it has none yet): of each parameter, in the order of registration.
 * Returns the number of buckets. CASTOR_ERR_MEMORY by *status: there is no memory for the count of owners. */
uint32_t buckets_divide(const uint64_t *bytes, const int32_t *types, const int32_t *known, uint32_t count,
                        uint32_t owners, bucket_place *out, castor_status *status);

#endif
