/* Checks that gloo's objects have the layout of shims/gloo/options.h. The agent makes a process group of one rank for this,
 * which calls each collective once with known arguments; the group of the nodes' leaders does the same. No doubtful pointer is
 * followed, and no function outside PyTorch's library is called. Private to hooks/. */
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

/* Whether the options of a call on the expected context hold the expected values. */
bool gloo_layout_holds(gloo_data_call call, const void *options, const gloo_layout_expected *expected,
                       uint32_t *tag);

#endif
