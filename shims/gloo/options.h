/* The arguments of gloo's collectives, declared for C, in the layout of libtorch_cpu.so of PyTorch 2.10 to 2.15 with libstdc++
 * on 64-bit machines. Building needs nothing of gloo's. The layouts are tested at run time (interpose/hooks/gloo/contexts.c)
 * before anything is replaced. */
#ifndef CASTOR_SHIMS_GLOO_OPTIONS_H
#define CASTOR_SHIMS_GLOO_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/* gloo::Context: only its beginning. */
typedef struct gloo_context {
    int32_t rank, size;
} gloo_context;

/* std::shared_ptr */
typedef struct gloo_shared {
    const gloo_context *object;
    void *control;
} gloo_shared;

/* gloo::transport::UnboundBuffer: only its beginning. */
typedef struct gloo_buffer {
    const void *virtual_table;
    void *data;
    size_t bytes;
} gloo_buffer;

/* std::vector<std::unique_ptr<UnboundBuffer>> */
typedef struct gloo_buffers {
    gloo_buffer *const *begin, *const *end, *const *capacity;
} gloo_buffers;

/* std::function<void(void *, const void *, const void *, size_t)> */
typedef struct gloo_function {
    void *functor[2];
    void *manager;
    void (*invoke)(const struct gloo_function *self, void **out, const void **a, const void **b,
                   size_t *numel);
} gloo_function;

typedef struct gloo_allreduce_options {
    gloo_shared context;
    int64_t timeout_ms;
    int32_t algorithm;
    gloo_buffers in, out; /* no `in`: `out` is input as well */
    size_t numel, element_bytes;
    gloo_function reduce;
    uint32_t tag;
    size_t segment_bytes;
} gloo_allreduce_options;

typedef struct gloo_broadcast_options {
    gloo_shared context;
    gloo_buffer *in, *out; /* the root may have both */
    size_t numel, element_bytes;
    int32_t root;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_broadcast_options;

typedef struct gloo_allgather_options {
    gloo_shared context;
    gloo_buffer *in, *out; /* no `in`: the rank's own part of `out` */
    size_t element_bytes;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_allgather_options;

typedef struct gloo_reduce_options {
    gloo_shared context;
    gloo_buffer *in, *out; /* no `in`: `out` is input as well */
    size_t numel, element_bytes;
    int32_t root;
    gloo_function reduce;
    uint32_t tag;
    size_t segment_bytes;
    int64_t timeout_ms;
} gloo_reduce_options;

typedef struct gloo_gather_options {
    gloo_shared context;
    gloo_buffer *in, *out; /* `out`: the root's */
    size_t element_bytes;
    int32_t root;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_gather_options;

typedef struct gloo_scatter_options {
    gloo_shared context;
    gloo_buffers in; /* the root's, one for each rank */
    gloo_buffer *out;
    size_t element_bytes;
    int32_t root;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_scatter_options;

typedef struct gloo_alltoall_options {
    gloo_shared context;
    gloo_buffer *in, *out;
    size_t element_bytes;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_alltoall_options;

typedef struct gloo_barrier_options {
    gloo_shared context;
    gloo_buffer *buffer;
    uint32_t tag;
    int64_t timeout_ms;
} gloo_barrier_options;

#endif
