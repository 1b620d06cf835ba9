/* Finds the library's own loop that gives the same results as a function, by trying it on numbers on which the loops differ. */
#ifndef CASTOR_COLLECTIVES_NODE_LOOP_H
#define CASTOR_COLLECTIVES_NODE_LOOP_H

#include "node_collective.h"

/* out[i] = a[i] op b[i]; `out` may be `a` or `b`. */
typedef void node_loop(void *out, const void *a, const void *b, size_t numel);

/* The loop that gives the same bits as `reduction` (which of two NaNs it is excepted); NULL: there is none. Takes a
 * millisecond; calls nothing but `reduction`. */
node_loop *node_loop_find(const node_reduction *reduction, size_t element_bytes);

#endif
