/* gloo's own collectives, beneath c10d's objects: they move data through the node's memory on the contexts that are bound
 * (contexts.h), and are gloo's on any other. */
#ifndef CASTOR_HOOKS_GLOO_DATA_H
#define CASTOR_HOOKS_GLOO_DATA_H

#include <stdint.h>

/* Calls so far that were not gloo's. */
uint64_t gloo_data_calls(void);

#endif
