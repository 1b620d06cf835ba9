/* gloo's functions for reductions, and which of the library's loops do what they do. */
#ifndef CASTOR_HOOKS_GLOO_REDUCTION_H
#define CASTOR_HOOKS_GLOO_REDUCTION_H

#include <stdbool.h>
#include <stddef.h>
#include "collectives/node_loop.h"
#include "shims/gloo/options.h"

/* NULL: none is known, and gloo's own is to be called. */
node_loop *gloo_reduction_find(const gloo_function *function, size_t element_bytes);

/* gloo's own, as a node_reduction's `apply`; `context` is the function. */
void gloo_reduction_apply(void *context, void *out, const void *a, const void *b, size_t numel);

/* Whether an address is in the library that another one is in. */
bool gloo_is_in_library(const void *address, const void *other);

#endif
