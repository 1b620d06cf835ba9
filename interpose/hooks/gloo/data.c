#include "data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "collectives/node_collective.h"
#include "core/error.h"
#include "core/log.h"
#include "core/start.h"
#include "hooks/c10d/collective.h"
#include "hooks/lookup/loader.h"
#include "hooks/table/wrapper.h"
#include "shims/gloo/options.h"
#include "across.h"
#include "reduction.h"
#include "wait.h"

#define BOUND_MAX   512u
#define WATCHED_MAX 16u

/* Bound contexts. An entry is claimed by `context`, last; a worker thread looks only for its own, which stays until the
 * worker threads have ended. */
typedef struct binding {
    _Atomic(const void *) context;
    node_group *group;
    gloo_across *across; /* the ranks are on several nodes */
    uint32_t channel;
} binding;

static binding bound[BOUND_MAX];
static _Atomic uint64_t calls;
static _Atomic uint32_t bound_end; /* entries from here on were never used */

typedef struct watch {
    bool on;
    uint32_t count;
    const void *context[WATCHED_MAX];
    gloo_shared tested; /* the first of them, after a self-test that ended well */
} watch;

HOOK_THREAD_LOCAL watch watched, outer;
HOOK_THREAD_LOCAL gloo_shared leaders; /* of the group that is to be bound */

static struct {
    _Atomic(const void *) context; /* NULL: no test is on */
    gloo_data_call call;
    gloo_layout_expected expected;
    uint32_t expectations, held, last_tag;
    gloo_shared shared;
    bool leads;
    char text[128]; /* empty: the next call does not throw */
} test;

typedef void (*throw_function)(const char *text); /* does not return */
static throw_function throw_runtime_error;

static void throw_resolve(void) {
    void *library = loader_library("libstdc++.so"), *found = NULL;
    if (library)
        found = loader_symbol(library, "_ZSt21__throw_runtime_errorPKc");
    memcpy(&throw_runtime_error, &found, sizeof found);
}

void gloo_data_leaders_watch(void) {
    outer = watched;
    watched = (watch){.on = true};
}

void gloo_data_leaders_unwatch(void) {
    leaders = watched.tested;
    watched = outer;
}

/* A child's groups have no threads and their memory is not mapped there. */
static void fork_child(void) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        atomic_store(&bound[i].context, NULL);
    atomic_store(&test.context, NULL);
}

void gloo_data_watch(void) {
    static _Atomic int registered;
    if (!atomic_exchange(&registered, 1)) {
        start_fork_register(NULL, NULL, fork_child);
        throw_resolve();
    }
    watched = (watch){.on = true};
    gloo_wait_watch();
}

uint32_t gloo_data_contexts(void) {
    return watched.count;
}

uint64_t gloo_data_calls(void) {
    return atomic_load(&calls);
}

void gloo_data_unwatch(void) {
    watched.on = false;
    gloo_wait_unwatch();
    leaders = (gloo_shared){NULL, NULL};
}

static castor_status bind(node_group *group, gloo_across *across) {
    if (watched.count == 0 || watched.count > WATCHED_MAX)
        return error_set(CASTOR_ERR_ARGUMENT, "a process group with %u contexts", watched.count);
    uint32_t made = 0;
    for (uint32_t i = 0; i < BOUND_MAX && made < watched.count; i++) {
        if (atomic_load(&bound[i].context))
            continue;
        bound[i].group = group;
        bound[i].across = across;
        bound[i].channel = made;
        atomic_store_explicit(&bound[i].context, watched.context[made++], memory_order_release);
        if (atomic_load(&bound_end) <= i)
            atomic_store_explicit(&bound_end, i + 1, memory_order_release);
    }
    if (made == watched.count) {
        gloo_wait_bind();
        return CASTOR_OK;
    }
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (bound[i].group == group)
            atomic_store(&bound[i].context, NULL);
    return error_set(CASTOR_ERR_MEMORY, "more than %u process groups", BOUND_MAX);
}

castor_status gloo_data_bind(node_group *group) {
    return bind(group, NULL);
}

castor_status gloo_data_bind_across(node_group *group, int rank, const int32_t *place, int world,
                                    const void *owner) {
    if (watched.count != 1)
        return error_set(CASTOR_ERR_ARGUMENT, "a process group with %u contexts", watched.count);
    gloo_across *across = gloo_across_new(group, leaders, rank, place, world);
    castor_status status =
        across ? CASTOR_OK : error_set(CASTOR_ERR_MEMORY, "no memory for a group's places");
    if (status == CASTOR_OK) {
        across->owner = owner;
        status = bind(group, across);
    }
    if (status != CASTOR_OK)
        free(across);
    return status;
}

bool gloo_data_bound_across(const void *owner) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (atomic_load(&bound[i].context) && bound[i].across && bound[i].across->owner == owner)
            return true;
    return false;
}

/* ---- the self-test ---- */

void gloo_data_test_begin(void) {
    collective_hide(true);
    test.expectations = test.held = test.last_tag = 0;
    test.text[0] = 0;
    test.leads = false;
    atomic_store(&test.context, watched.count == 1 ? watched.context[0] : NULL);
}

void gloo_data_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size) {
    test.call = call;
    test.expected =
        (gloo_layout_expected){atomic_load(&test.context), input, output, numel, timeout_ms, rank, size};
    test.expectations++;
}

void gloo_data_test_throw(const char *text) {
    log_format(test.text, sizeof test.text, "%s", text);
}

bool gloo_data_test_end(void) {
    bool begun = atomic_exchange(&test.context, NULL) != NULL;
    collective_hide(false);
    bool held = begun && throw_runtime_error && test.held == test.expectations;
    if (held)
        watched.tested = test.shared;
    return held;
}

bool gloo_data_leads(void) {
    return test.leads;
}

/* ---- the wrappers ---- */

#if HOOK_GLOO_WRAPPED

static binding *binding_of(const void *context) {
    uint32_t end = atomic_load_explicit(&bound_end, memory_order_acquire);
    for (uint32_t i = 0; i < end; i++)
        if (atomic_load_explicit(&bound[i].context, memory_order_acquire) == context)
            return &bound[i];
    return NULL;
}

static void binding_end(const void *context) {
    binding *b = binding_of(context);
    if (!b)
        return;
    node_group *group = b->group;
    free(b->across);
    b->group = NULL;
    b->across = NULL;
    atomic_store_explicit(&b->context, NULL, memory_order_release);
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (atomic_load(&bound[i].context) && bound[i].group == group)
            return;
    if (group)
        node_group_leave(group);
}

static void test_look(gloo_data_call call, const void *options) {
    uint32_t tag = 0;
    bool holds = test.call == call && gloo_layout_holds(call, options, &test.expected, &tag);
    /* c10d counts them up. */
    holds = holds && (test.held == 0 || tag == test.last_tag + 1);
    test.last_tag = tag;
    test.held += holds;
    if (holds) {
        test.shared = *(const gloo_shared *)options;
        test.leads |= call == GLOO_DATA_CALL_ALLREDUCE && gloo_across_holds(&test.shared);
    }
    if (test.text[0] && throw_runtime_error)
        throw_runtime_error(test.text);
}

#define WRAP_ALLOCATION(...)
#define WRAP_LOADER(...)
#define WRAP_CUDA_LOOKUP(...)
#define WRAP_CUDA_RUNTIME(...)
#define WRAP_CUDA_DRIVER(...)
#define WRAP_NCCL(...)
#define WRAP_GLOO(...)
#define WRAP_GLOO_WORK(...)
#define WRAP_C10D_NCCL_END(...)
#define WRAP_C10D_NCCL(...)
#define WRAP_GLOO_DATA(result, id, symbol, parameters, ...)                                                  \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result function_##id parameters;
#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload_kind, source, doc)        \
    WRAP_##layer(result, id, symbol, parameters, arguments, payload_kind, source)
#include "hooks/table/hooks.def"

#define REAL(id) ((function_##id *)hooks_find(HOOK_##id))

void wrap_GLOO_CONTEXT_CREATE(void *self, int rank, int size, int base) {
    REAL(GLOO_CONTEXT_CREATE)(self, rank, size, base);
    if (!watched.on)
        return;
    if (watched.count < WATCHED_MAX)
        watched.context[watched.count] = self;
    watched.count++;
}

/* Its worker threads have ended. */
void wrap_GLOO_CONTEXT_END(void *self) {
    if (atomic_load_explicit(&bound_end, memory_order_acquire))
        binding_end(self);
    REAL(GLOO_CONTEXT_END)(self);
}

/* The binding of the context that the options begin with; NULL: the call is gloo's. */
static binding *binding_any(gloo_data_call call, const void *options) {
    const void *tested = atomic_load_explicit(&test.context, memory_order_acquire);
    if (__builtin_expect(tested != NULL, 0) && ((const gloo_shared *)options)->object == tested)
        test_look(call, options);
    if (atomic_load_explicit(&bound_end, memory_order_acquire) == 0)
        return NULL;
    return binding_of(((const gloo_shared *)options)->object);
}

/* Of a group whose ranks are all on this node. */
static binding *binding_find(gloo_data_call call, const void *options) {
    binding *b = binding_any(call, options);
    return b && !b->across ? b : NULL;
}

static node_call call_of(const binding *b, uint32_t tag, int64_t timeout_ms) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return (node_call){b->channel, tag, (double)timeout_ms * 1e-3};
}

/* Ends the call as gloo ends one that failed. */
static void leave(castor_status status) {
    if (__builtin_expect(status != CASTOR_OK, 0))
        throw_runtime_error(error_text());
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
    binding *b = binding_any(GLOO_DATA_CALL_ALLREDUCE, options);
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
    binding *b = binding_any(GLOO_DATA_CALL_BROADCAST, options);
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
    binding *b = binding_find(GLOO_DATA_CALL_ALLGATHER, options);
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

static bool is_rank(const binding *b, int32_t rank) {
    return rank >= 0 && rank < node_group_world(b->group);
}

void wrap_GLOO_DATA_REDUCE(void *options) {
    const gloo_reduce_options *o = options;
    binding *b = binding_find(GLOO_DATA_CALL_REDUCE, options);
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
    binding *b = binding_find(GLOO_DATA_CALL_GATHER, options);
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
    binding *b = binding_find(GLOO_DATA_CALL_SCATTER, options);
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
    binding *b = binding_find(GLOO_DATA_CALL_ALLTOALL, options);
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
    binding *b = binding_any(GLOO_DATA_CALL_BARRIER, options);
    if (!b) {
        REAL(GLOO_DATA_BARRIER)(options);
        return;
    }
    node_call call = call_of(b, o->tag, o->timeout_ms);
    leave(b->across ? gloo_across_barrier(b->across, &call, o) : node_barrier(b->group, &call));
}

#endif
