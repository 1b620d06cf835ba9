/* Finds the chunk size that wastes least, from the tensors' numbers of elements: the same on every rank.
 *
 * Vocabulary
 *   list       the tensors of one data-parallel degree, in module order
 *   waste      of a chunk size: the elements that stay free in all chunks, the last one included, when tensors fill them in
 *              order and a new chunk begins where a tensor does not fit
 */
#ifndef CASTOR_PLACEMENT_CHUNK_SEARCH_H
#define CASTOR_PLACEMENT_CHUNK_SEARCH_H

#include <stdint.h>
#include "base/status.h"
#include "chunk.h"

typedef struct chunk_search_list {
    const uint64_t *numel; /* of each tensor */
    uint64_t count;
    uint64_t degree; /* data-parallel */
    /* Found: */
    uint64_t chunk_numel;
    int32_t keep_gathered;
} chunk_search_list;

typedef struct chunk_search_range {
    uint64_t numel;    /* sizes from the first one up to and with that one + numel */
    uint64_t interval; /* by so many elements */
    uint64_t minimum;  /* of a chunk */
    int32_t filter;    /* tensors far larger than the others are ignored: they get chunks of their own */
} chunk_search_range;

typedef struct chunk_search_result {
    uint64_t numel;  /* of all tensors of all lists */
    uint64_t wasted; /* by those that were not ignored */
} chunk_search_result;

/* A list of fewer elements than `minimum` is one chunk and stays gathered. In the other lists `filter` ignores tensors above the
 * mean + 3 population standard deviations. The first size tried is the largest tensor that counts, or `minimum`, rounded up to
 * `interval`. The size with least waste, the first of such, is the chunk size of all those lists,
 * rounded up to the least common multiple of all degrees. CASTOR_ERR_ARGUMENT: an interval or a degree of 0, 2^32 sizes or more, or
 * sums beyond 63 bits. */
castor_status chunk_search(chunk_search_list *lists, uint32_t count, const chunk_search_range *range,
                           chunk_search_result *out);

/* Chooses the size of the chunks of a table that has none yet, for parameters of so many elements in the model's order: one
 * chunk of all where they are fewer than 32 Mi, kept whole; else the best of 32 Mi to 64 Mi elements by 1024, without
 * outliers. `element_bytes`: of the widest dtype; `most_bytes`: of a chunk. No elements: nothing is chosen. */
castor_status chunk_search_set(chunk_table *t, const uint64_t *numel, uint64_t count, uint64_t degree,
                               uint64_t element_bytes, uint64_t most_bytes);

#endif
