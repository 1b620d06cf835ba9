/* Whether gloo's objects look as shims/gloo/options.h says: a process group of one rank, which the agent makes for
 * this, calls each collective once with what the test expects to find; and so does the group of the leaders of nodes.
 * Nothing is read through a pointer that may not be one, and no function is called that does not lie in PyTorch's
 * library. Private to hooks/. */
#ifndef CASTOR_HOOKS_GLOO_LAYOUT_H
#define CASTOR_HOOKS_GLOO_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum gloo_data_call {
    GLOO_DATA_CALL_ALLREDUCE,
    GLOO_DATA_CALL_BROADCAST,
    GLOO_DATA_CALL_ALLGATHER,
    GLOO_DATA_CALL_BARRIER,
    GLOO_DATA_CALL_REDUCE,
    GLOO_DATA_CALL_GATHER,
    GLOO_DATA_CALL_SCATTER,
    GLOO_DATA_CALL_ALLTOALL,
    GLOO_DATA_CALL_COUNT
} gloo_data_call;

typedef struct gloo_layout_expected {
    const void *context;
    const void *input, *output; /* NULL: unknown */
    size_t numel;               /* of float */
    int64_t timeout_ms;
    int32_t rank, size; /* of the context */
} gloo_layout_expected;

/* The options of a call on the expected context: do they say what is expected? */
bool gloo_layout_holds(gloo_data_call call, const void *options, const gloo_layout_expected *expected,
                       uint32_t *tag);

#endif
