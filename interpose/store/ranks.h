/* Values that the ranks of a store compare, broadcast or gather, through the exchange areas. Each call is a barrier. */
#ifndef CASTOR_STORE_RANKS_H
#define CASTOR_STORE_RANKS_H

#include "store.h"

/* Each rank passes `count` values (at most 2M), which must be the same on all of them. Else the error names the ranks, the first
 * value that differs and its label (`labels` may be NULL). Costs a digest, unless values differ. The next call must not begin
 * before another barrier. */
castor_status ranks_agree(store *s, const char *what, const double *values, const char *const *labels,
                          uint32_t count);

/* Rank 0's `bytes` bytes (at most 16 MiB) go to all ranks, which expect as many. */
castor_status ranks_broadcast(store *s, void *data, size_t bytes, const char *what);

/* `bytes` bytes of each rank (the same number, at most 16 MiB), in rank order, go to all. */
castor_status ranks_gather(store *s, const void *data, size_t bytes, void *out, const char *what);

#endif
