#include "layout.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "hooks/lookup/wrapper.h"
#include "shims/gloo/options.h"
#include "reduction.h"

#define OPTIONS_BYTES 160 /* enough for the largest; the caller's stack goes on after them */

/* Copies what may not be there. */
static bool peek(const void *address, void *out, size_t bytes) {
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    bool seen = memory >= 0 && pread(memory, out, bytes, (off_t)(uintptr_t)address) == (ssize_t)bytes;
    if (memory >= 0)
        close(memory);
    return seen;
}

static bool context_holds(const gloo_shared *shared, const gloo_layout_expected *expected) {
    gloo_context context;
    return shared->object == expected->context && peek(shared->object, &context, sizeof context) &&
           context.rank == expected->rank && context.size == expected->size;
}

static bool buffer_holds(const gloo_buffer *buffer, const void *data, size_t bytes) {
    gloo_buffer seen;
    return buffer && peek(buffer, &seen, sizeof seen) && (!data || seen.data == data) && seen.bytes == bytes;
}

static bool sum_holds(const gloo_function *function) {
    static const float a[4] = {1, 2.5f, -3, 4}, b[4] = {10, 0.25f, 3, -8}, sum[4] = {11, 2.75f, 0, -4};
    const void *real = hooks_real(HOOK_GLOO_DATA_ALLREDUCE), *left = a, *right = b;
    void *invoke = NULL;
    memcpy(&invoke, &function->invoke, sizeof invoke);
    if (!real || !gloo_is_in_library(invoke, real) || !gloo_is_in_library(function->manager, real))
        return false;
    float out[5] = {0, 0, 0, 0, 7};
    void *to = out;
    size_t numel = 4;
    function->invoke(function, &to, &left, &right, &numel);
    return memcmp(out, sum, sizeof sum) == 0 && out[4] == 7;
}

static bool allreduce_holds(const gloo_allreduce_options *o, const gloo_layout_expected *expected) {
    gloo_buffer *first;
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           o->in.begin == o->in.end && o->out.end == o->out.begin + 1 && o->out.capacity >= o->out.end &&
           peek(o->out.begin, &first, sizeof first) &&
           buffer_holds(first, expected->output, expected->numel * sizeof(float)) &&
           o->numel == expected->numel && o->element_bytes == sizeof(float) && sum_holds(&o->reduce);
}

static bool broadcast_holds(const gloo_broadcast_options *o, const gloo_layout_expected *expected) {
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms && !o->in &&
           buffer_holds(o->out, expected->output, expected->numel * sizeof(float)) &&
           o->numel == expected->numel && o->element_bytes == sizeof(float) && o->root == 0;
}

static bool allgather_holds(const gloo_allgather_options *o, const gloo_layout_expected *expected) {
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           buffer_holds(o->in, expected->input, expected->numel * sizeof(float)) &&
           buffer_holds(o->out, expected->output, expected->numel * sizeof(float)) &&
           o->element_bytes == sizeof(float);
}

static bool barrier_holds(const gloo_barrier_options *o, const gloo_layout_expected *expected) {
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms;
}

static bool reduce_holds(const gloo_reduce_options *o, const gloo_layout_expected *expected) {
    size_t bytes = expected->numel * sizeof(float);
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           (!o->in || buffer_holds(o->in, expected->input, bytes)) &&
           buffer_holds(o->out, expected->output, bytes) && o->numel == expected->numel &&
           o->element_bytes == sizeof(float) && o->root == 0 && sum_holds(&o->reduce);
}

static bool gather_holds(const gloo_gather_options *o, const gloo_layout_expected *expected) {
    size_t bytes = expected->numel * sizeof(float);
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           buffer_holds(o->in, expected->input, bytes) && buffer_holds(o->out, expected->output, bytes) &&
           o->element_bytes == sizeof(float) && o->root == 0;
}

static bool scatter_holds(const gloo_scatter_options *o, const gloo_layout_expected *expected) {
    size_t bytes = expected->numel * sizeof(float);
    gloo_buffer *first;
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           o->in.end == o->in.begin + 1 && o->in.capacity >= o->in.end &&
           peek(o->in.begin, &first, sizeof first) && buffer_holds(first, expected->input, bytes) &&
           buffer_holds(o->out, expected->output, bytes) && o->element_bytes == sizeof(float) && o->root == 0;
}

static bool alltoall_holds(const gloo_alltoall_options *o, const gloo_layout_expected *expected) {
    size_t bytes = expected->numel * sizeof(float);
    return context_holds(&o->context, expected) && o->timeout_ms == expected->timeout_ms &&
           buffer_holds(o->in, expected->input, bytes) && buffer_holds(o->out, expected->output, bytes) &&
           o->element_bytes == sizeof(float);
}

bool gloo_layout_holds(gloo_data_call call, const void *options, const gloo_layout_expected *expected,
                       uint32_t *tag) {
    union {
        char bytes[OPTIONS_BYTES];
        gloo_allreduce_options allreduce;
        gloo_broadcast_options broadcast;
        gloo_allgather_options allgather;
        gloo_barrier_options barrier;
        gloo_reduce_options reduce;
        gloo_gather_options gather;
        gloo_scatter_options scatter;
        gloo_alltoall_options alltoall;
    } o;
    if (!peek(options, &o, sizeof o))
        return false;
    switch (call) {
    case GLOO_DATA_CALL_ALLREDUCE:
        *tag = o.allreduce.tag;
        return allreduce_holds(&o.allreduce, expected);
    case GLOO_DATA_CALL_BROADCAST:
        *tag = o.broadcast.tag;
        return broadcast_holds(&o.broadcast, expected);
    case GLOO_DATA_CALL_ALLGATHER:
        *tag = o.allgather.tag;
        return allgather_holds(&o.allgather, expected);
    case GLOO_DATA_CALL_BARRIER:
        *tag = o.barrier.tag;
        return barrier_holds(&o.barrier, expected);
    case GLOO_DATA_CALL_REDUCE:
        *tag = o.reduce.tag;
        return reduce_holds(&o.reduce, expected);
    case GLOO_DATA_CALL_GATHER:
        *tag = o.gather.tag;
        return gather_holds(&o.gather, expected);
    case GLOO_DATA_CALL_SCATTER:
        *tag = o.scatter.tag;
        return scatter_holds(&o.scatter, expected);
    case GLOO_DATA_CALL_ALLTOALL:
        *tag = o.alltoall.tag;
        return alltoall_holds(&o.alltoall, expected);
    default:
        return false;
    }
}
