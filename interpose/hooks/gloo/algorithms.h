/* gloo's own collectives, below c10d's objects. On bound contexts (contexts.h) they move data through the node's memory; on
 * other contexts gloo's functions run.
 *
 * Replaced are all-reduce, reduce, broadcast, all-gather, gather, scatter, all-to-all of equal parts, and barrier; reduce-scatter, coalesced,
 * functional and object collectives are made of these. Other calls stay gloo's, and c10d's works, futures, tags, threads and timeouts stay. */
#ifndef CASTOR_HOOKS_GLOO_ALGORITHMS_H
#define CASTOR_HOOKS_GLOO_ALGORITHMS_H

#include <stdint.h>

/* The number of calls so far that went through the node's memory. */
uint64_t gloo_data_calls(void);

#endif
