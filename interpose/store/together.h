/* Operations on all gradients that owners do once for everybody, if every rank comes.
 *
 * A script may clip on all ranks or on one. A rank that comes here with its key (which operation, on what, the how
 * manyeth) waits for the others; when all came with the same key, the operation is committed. As soon as one is seen
 * to be elsewhere (at a barrier, in a step, at the end of a backward, gone, long in a collective), cannot take part, or
 * brings another key, or after a patience, the operation is abandoned for every rank that still comes with this key, and
 * each does it in its private pages. Abandoning costs time, never results. */
#ifndef CASTOR_STORE_TOGETHER_H
#define CASTOR_STORE_TOGETHER_H

#include "store.h"

/* *committed tells whether all ranks came. `able` false: this rank cannot take part. */
castor_status together_try(store *s, uint64_t key, bool able, double patience_seconds, bool *committed);

/* Values that must be the same on every rank: at most 2M. */
typedef struct together_values {
    const double *values;
    const char *const *labels; /* names of the values, for errors; NULL: they have none */
    uint32_t count;
} together_values;

/* A barrier at which every rank brings `agreed`, and says `bytes` bytes of its own (at most STORE_SAID_MAX): `every` takes what each
 * said, in rank order. An error names the ranks, the first value that differs and its label. That costs a digest of the values, unless
 * they differ. */
castor_status together_agree(store *s, const char *what, const together_values *agreed, const void *said,
                             size_t bytes, void *every);

/* Rank 0's `bytes` bytes (at most 16 MiB) to all, which expect as many. */
castor_status together_broadcast(store *s, void *data, size_t bytes, const char *what);

/* `bytes` bytes of each rank (the same number, at most 16 MiB), in rank order, to all. Up to STORE_SAID_MAX they cost one barrier. */
castor_status together_gather(store *s, const void *data, size_t bytes, void *out, const char *what);

#endif
