/* The order of eviction: which of a tier's chunks leaves it first.
 *
 * A tournament tree over all chunks: each inner entry names the better of its two children. A change costs a walk to the root, and
 * the root names the victim. The order is a pure function of the chunks' numbers and keys, the same on
 * every rank. */
#ifndef CASTOR_PLACEMENT_VICTIMS_H
#define CASTOR_PLACEMENT_VICTIMS_H

#include <stdint.h>

#define VICTIM_NONE UINT32_MAX

/* Higher goes first; among equals the lowest chunk. 0: may not leave. */
typedef struct victims {
    uint64_t *key;    /* by chunk, a power of two of them */
    uint32_t *winner; /* by inner entry; 1 is the root, the children of n are 2n and 2n + 1 */
    uint32_t leaves;
} victims;

/* Of `leaves`, a power of two; `key` and `winner` have as many elements, zeroed. */
void victims_init(victims *v, uint64_t *key, uint32_t *winner, uint32_t leaves);
void victims_set(victims *v, uint32_t chunk, uint64_t key);
/* VICTIM_NONE: none may leave. */
uint32_t victims_first(const victims *v);

#endif
