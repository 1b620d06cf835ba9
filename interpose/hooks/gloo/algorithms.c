#include "algorithms.h"

#include <stdatomic.h>
#include <string.h>
#include "collectives/node_collective.h"
#include "base/error.h"
#include "hooks/lookup/wrapper.h"
#include "shims/gloo/options.h"
#include "contexts.h"
#include "reduction.h"

static _Atomic uint64_t calls;

uint64_t gloo_data_calls(void) {
    return atomic_load(&calls);
}

#if HOOK_GLOO_WRAPPED

#define HOOK(layer, mode, result, id, name, symbol, parameters, ...)                                         \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result function_##id parameters;
#include "hooks/table/gloo_data.def"
#undef HOOK

#define REAL(id) ((function_##id *)hooks_find(HOOK_##id))

void wrap_GLOO_CONTEXT_CREATE(void *self, int rank, int size, int base) {
    REAL(GLOO_CONTEXT_CREATE)(self, rank, size, base);
    gloo_contexts_made(self);
}

/* Its worker threads have ended. */
void wrap_GLOO_CONTEXT_END(void *self) {
    gloo_contexts_ended(self);
    REAL(GLOO_CONTEXT_END)(self);
}

/* The binding of the context that the options begin with; NULL: the call is gloo's. */
static const gloo_binding *binding_any(gloo_data_call call, const void *options) {
    gloo_self_test_see(call, options);
    return gloo_contexts_binding(((const gloo_shared *)options)->object);
}

/* Of a group whose ranks are all on this node. */
static const gloo_binding *binding_find(gloo_data_call call, const void *options) {
    const gloo_binding *b = binding_any(call, options);
    return b && !b->across ? b : NULL;
}

static node_call call_of(const gloo_binding *b, uint32_t tag, int64_t timeout_ms) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return (node_call){b->channel, tag, (double)timeout_ms * 1e-3};
}

/* Ends the call as gloo ends one that failed. */
static void leave(castor_status status) {
    if (__builtin_expect(status != CASTOR_OK, 0))
        gloo_throw(error_text());
}

static void loop_apply(void *context, void *out, const void *a, const void *b, size_t numel) {
    node_loop *const *loop = context;
    (*loop)(out, a, b, numel);
}

/* The loop that does what the function does, if there is one; `*loop` outlives the reduction. */
static node_reduction reduction_of(const gloo_function *function, size_t element_bytes, node_loop **loop) {
    *loop = gloo_reduction_find(function, element_bytes);
    if (*loop)
        return (node_reduction){loop_apply, loop};
    return (node_reduction){gloo_reduction_apply, (void *)function};
}

/* As gloo does: several inputs are reduced into the first output before. */
static const void *local_reduce(const gloo_allreduce_options *o, const node_reduction *r) {
    const gloo_buffers *in = o->in.begin == o->in.end ? &o->out : &o->in;
    const void *sum = in->begin[0]->data;
    for (gloo_buffer *const *next = in->begin + 1; next < in->end; next++) {
        r->apply(r->context, o->out.begin[0]->data, sum, (*next)->data, o->numel);
        sum = o->out.begin[0]->data;
    }
    return sum;
}

static bool buffers_are(const gloo_buffers *buffers, size_t bytes) {
    for (gloo_buffer *const *b = buffers->begin; b < buffers->end; b++)
        if ((*b)->bytes != bytes)
            return false;
    return true;
}

void wrap_GLOO_DATA_ALLREDUCE(const void *options) {
    const gloo_allreduce_options *o = options;
    const gloo_binding *b = binding_any(GLOO_DATA_CALL_ALLREDUCE, options);
    size_t bytes = b ? o->numel * o->element_bytes : 0;
    /* gloo says what is wrong with the others. */
    if (bytes == 0 || o->out.begin == o->out.end || !buffers_are(&o->in, bytes) ||
        !buffers_are(&o->out, bytes) || !o->reduce.invoke) {
        REAL(GLOO_DATA_ALLREDUCE)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    node_loop *loop;
    node_reduction reduction = reduction_of(&o->reduce, o->element_bytes, &loop);
    void *out = o->out.begin[0]->data;
    const void *in = local_reduce(o, &reduction);
    leave(b->across ? gloo_across_allreduce(b->across, &call, o, in, out, &reduction)
                    : node_allreduce(b->group, &call, in, out, o->numel, o->element_bytes, &reduction));
    for (gloo_buffer *const *copy = o->out.begin + 1; copy < o->out.end; copy++)
        memcpy((*copy)->data, out, bytes);
}

void wrap_GLOO_DATA_BROADCAST(void *options) {
    const gloo_broadcast_options *o = options;
    const gloo_binding *b = binding_any(GLOO_DATA_CALL_BROADCAST, options);
    size_t bytes = b ? o->numel * o->element_bytes : 0;
    const gloo_buffer *buffer = b && o->out ? o->out : b ? o->in : NULL;
    if (bytes == 0 || !buffer || buffer->bytes != bytes || (o->in && o->in->bytes != bytes) || o->root < 0 ||
        o->root >= o->context.object->size) {
        REAL(GLOO_DATA_BROADCAST)(options);
        return;
    }
    if (o->context.object->rank == o->root && o->in && o->in->data != buffer->data)
        memcpy(buffer->data, o->in->data, bytes);
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(b->across ? gloo_across_broadcast(b->across, &call, o, buffer->data)
                    : node_broadcast(b->group, &call, buffer->data, bytes, o->root));
}

void wrap_GLOO_DATA_ALLGATHER(void *options) {
    const gloo_allgather_options *o = options;
    const gloo_binding *b = binding_find(GLOO_DATA_CALL_ALLGATHER, options);
    size_t bytes = b && o->out ? o->out->bytes / (size_t)node_group_world(b->group) : 0;
    if (bytes == 0 || o->out->bytes != bytes * (size_t)node_group_world(b->group) ||
        (o->in && o->in->bytes != bytes)) {
        REAL(GLOO_DATA_ALLGATHER)(options);
        return;
    }
    const char *own = (const char *)o->out->data + (size_t)node_group_rank(b->group) * bytes;
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(node_allgather(b->group, &call, o->in ? o->in->data : own, o->out->data, bytes));
}

static bool is_rank(const gloo_binding *b, int32_t rank) {
    return rank >= 0 && rank < node_group_world(b->group);
}

void wrap_GLOO_DATA_REDUCE(void *options) {
    const gloo_reduce_options *o = options;
    const gloo_binding *b = binding_find(GLOO_DATA_CALL_REDUCE, options);
    size_t bytes = b ? o->numel * o->element_bytes : 0;
    const gloo_buffer *in = b && o->in ? o->in : b ? o->out : NULL;
    if (bytes == 0 || !in || !o->out || in->bytes != bytes || o->out->bytes != bytes || !o->reduce.invoke ||
        !is_rank(b, o->root)) {
        REAL(GLOO_DATA_REDUCE)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    node_loop *loop;
    node_reduction reduction = reduction_of(&o->reduce, o->element_bytes, &loop);
    leave(node_reduce(b->group, &call, in->data, o->out->data, o->numel, o->element_bytes, &reduction,
                      o->root));
}

void wrap_GLOO_DATA_GATHER(void *options) {
    const gloo_gather_options *o = options;
    const gloo_binding *b = binding_find(GLOO_DATA_CALL_GATHER, options);
    size_t bytes = b && o->in ? o->in->bytes : 0;
    if (bytes == 0 || !is_rank(b, o->root) ||
        (node_group_rank(b->group) == o->root &&
         (!o->out || o->out->bytes != bytes * (size_t)node_group_world(b->group)))) {
        REAL(GLOO_DATA_GATHER)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(node_gather(b->group, &call, o->in->data, o->out ? o->out->data : NULL, bytes, o->root));
}

void wrap_GLOO_DATA_SCATTER(void *options) {
    const gloo_scatter_options *o = options;
    const gloo_binding *b = binding_find(GLOO_DATA_CALL_SCATTER, options);
    size_t bytes = b && o->out ? o->out->bytes : 0;
    if (bytes == 0 || !is_rank(b, o->root) ||
        (node_group_rank(b->group) == o->root &&
         (o->in.end - o->in.begin != node_group_world(b->group) || !buffers_are(&o->in, bytes)))) {
        REAL(GLOO_DATA_SCATTER)(options);
        return;
    }
    const void *inputs[NODE_RANKS_MAX] = {NULL};
    if (node_group_rank(b->group) == o->root)
        for (int rank = 0; rank < node_group_world(b->group); rank++)
            inputs[rank] = o->in.begin[rank]->data;
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(node_scatter(b->group, &call, inputs, o->out->data, bytes, o->root));
}

void wrap_GLOO_DATA_ALLTOALL(void *options) {
    const gloo_alltoall_options *o = options;
    const gloo_binding *b = binding_find(GLOO_DATA_CALL_ALLTOALL, options);
    size_t world = b ? (size_t)node_group_world(b->group) : 1, bytes = b && o->in ? o->in->bytes / world : 0;
    if (bytes == 0 || !o->out || o->in->bytes != bytes * world || o->out->bytes != bytes * world) {
        REAL(GLOO_DATA_ALLTOALL)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(node_alltoall(b->group, &call, o->in->data, o->out->data, bytes));
}

void wrap_GLOO_DATA_BARRIER(void *options) {
    const gloo_barrier_options *o = options;
    const gloo_binding *b = binding_any(GLOO_DATA_CALL_BARRIER, options);
    if (!b) {
        REAL(GLOO_DATA_BARRIER)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(b->across ? gloo_across_barrier(b->across, &call, o) : node_barrier(b->group, &call));
}

#endif
