/* gloo's functions for reductions, and the library's loops that do the same. */
#ifndef CASTOR_HOOKS_GLOO_REDUCTION_H
#define CASTOR_HOOKS_GLOO_REDUCTION_H

#include <stdbool.h>
#include <stddef.h>
#include "collectives/node_loop.h"
#include "shims/gloo/options.h"

/* The library's loop for gloo's function. NULL: none is known; call gloo's own. */
node_loop *gloo_reduction_find(const gloo_function *function, size_t element_bytes);

/* gloo's own, as a node_reduction's `apply`; `context` is the function. */
void gloo_reduction_apply(void *context, void *out, const void *a, const void *b, size_t numel);

/* Whether two addresses are in the same library. */
bool gloo_is_in_library(const void *address, const void *other);

#endif
