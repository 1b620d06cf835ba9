/* Which chunk size wastes least: arithmetic over the numbers of elements, the same on every rank.
 *
 * Vocabulary
 *   group      the tensors of one data-parallel degree, in module order
 *   waste      of a chunk size: tensors are put into chunks in order, a new chunk begins where the next one does not fit, and
 *              what is left free in all chunks, the last included, is the waste
 */
#ifndef CASTOR_PLACEMENT_CHUNK_SEARCH_H
#define CASTOR_PLACEMENT_CHUNK_SEARCH_H

#include <stdint.h>
#include "core/status.h"
#include "chunk.h"

typedef struct chunk_search_group {
    const uint64_t *numel; /* of each tensor */
    uint64_t count;
    uint64_t degree; /* data-parallel */
    /* Found: */
    uint64_t chunk_numel;
    int32_t keep_gathered;
} chunk_search_group;

typedef struct chunk_search_range {
    uint64_t numel;    /* sizes from the first one up to and with that one + numel */
    uint64_t interval; /* by so many elements */
    uint64_t minimum;  /* of a chunk */
    int32_t filter;    /* tensors far larger than the others do not decide: they get chunks of their own */
} chunk_search_range;

typedef struct chunk_search_result {
    uint64_t numel;  /* of all tensors of all groups */
    uint64_t wasted; /* by those that decided */
} chunk_search_result;

/* A group of fewer elements than `minimum` is one chunk of all of them, kept gathered. Of the others' tensors those above the
 * mean + 3 population standard deviations are left aside, with `filter`; the first size is the largest of the others or
 * `minimum`, rounded up to `interval`. The one with least waste, the first of such, is the chunk size of all those groups,
 * rounded up to the least common multiple of all degrees. CASTOR_ERR_ARGUMENT: an interval or a degree of 0, 2^32 sizes or more, or
 * sums beyond 63 bits. */
castor_status chunk_search(chunk_search_group *groups, uint32_t count, const chunk_search_range *range,
                           chunk_search_result *out);

/* Chooses the size of the chunks of a table that has none yet, for parameters of so many elements in the model's order: one
 * chunk of all where they are fewer than 32 Mi, kept whole; else the best of 32 Mi to 64 Mi elements by 1024, outliers
 * aside. `element_bytes`: of the widest dtype; `most_bytes`: of a chunk. No elements: nothing is chosen. */
castor_status chunk_search_set(chunk_table *t, const uint64_t *numel, uint64_t count, uint64_t degree,
                               uint64_t element_bytes, uint64_t most_bytes);

#endif
