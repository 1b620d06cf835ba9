/* gloo's own collectives, below c10d's objects. On bound contexts (contexts.h) they move data through the node's memory; on
 * other contexts gloo's functions run. */
#ifndef CASTOR_HOOKS_GLOO_ALGORITHMS_H
#define CASTOR_HOOKS_GLOO_ALGORITHMS_H

#include <stdint.h>

/* The number of calls so far that went through the node's memory. */
uint64_t gloo_data_calls(void);

#endif
