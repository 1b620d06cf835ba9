/* Values that the ranks of a store compare, broadcast or gather, through the exchange areas. Each call is a barrier. */
#ifndef CASTOR_STORE_RANK_VALUES_H
#define CASTOR_STORE_RANK_VALUES_H

#include "store.h"

/* Values that must be the same on every rank: at most 2M. */
typedef struct ranks_values {
    const double *values;
    const char *const *labels; /* names of the values, for errors; NULL: they have none */
    uint32_t count;
} ranks_values;

/* Each rank passes `agreed`, and `bytes` bytes of its own (at most STORE_SAID_MAX): `every` takes these in rank order. If values differ, the
 * error names the ranks, the first value that differs and its label. Otherwise it costs a digest of the values. */
castor_status ranks_agree(store *s, const char *what, const ranks_values *agreed, const void *said,
                          size_t bytes, void *every);

/* Rank 0's `bytes` bytes (at most 16 MiB) go to all ranks, which expect as many. */
castor_status ranks_broadcast(store *s, void *data, size_t bytes, const char *what);

/* `bytes` bytes of each rank (the same number, at most 16 MiB), in rank order, go to all. Up to STORE_SAID_MAX
 * bytes cost one barrier. */
castor_status ranks_gather(store *s, const void *data, size_t bytes, void *out, const char *what);

/* Writes this rank's area; readers see it after a barrier. Error: larger than the area (16 MiB, 48 MiB). */
castor_status store_exchange_put(store *s, store_exchange channel, const void *data, size_t bytes);
const void *store_exchange_get(const store *s, store_exchange channel, int rank, size_t *bytes);

#endif
