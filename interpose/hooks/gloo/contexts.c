#include "contexts.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/node_collective.h"
#include "events/life.h"
#include "hooks/c10d/collective.h"
#include "hooks/lookup/wrapper.h"
#include "shims/gloo/options.h"
#include "shims/torch/stable.h"
#include "gloo.h"
#include "reduction.h"

/* std::unique_ptr<UnboundBuffer> gloo::Context::createUnboundBuffer(void *, size_t): what it returns is written where
 * its caller says. */
typedef void (*buffer_make_function)(gloo_buffer **out, const gloo_context *self, void *data, size_t bytes);
typedef void (*buffer_end_function)(gloo_buffer *self);
typedef void (*call_function)(const void *options);

static buffer_make_function buffer_make;

static bool resolve(void) {
    void *library = loader_library(TORCH_CPU_LIBRARY), *found = NULL;
    if (library)
        found = loader_symbol(library, "_ZN4gloo7Context19createUnboundBufferEPvm");
    memcpy(&buffer_make, &found, sizeof found);
    return found != NULL;
}

/* The second of its virtual functions destroys and frees it. */
static void buffer_end(gloo_buffer *buffer) {
    buffer_end_function end;
    memcpy(&end, (void *const *)buffer->virtual_table + 1, sizeof end);
    end(buffer);
}

/* Whether buffers can be made in this context and have the expected layout. Call once, before the functions below. */
static bool gloo_across_holds(const gloo_shared *context) {
    char data[24];
    gloo_buffer *buffer = NULL;
    if (!resolve())
        return false;
    buffer_make(&buffer, context->object, data, sizeof data);
    if (!buffer)
        return false;
    bool holds = buffer->data == data && buffer->bytes == sizeof data;
    buffer_end(buffer);
    return holds;
}

/* NULL: no memory. `leaders` may have no object. */
static gloo_across *gloo_across_new(node_group *group, gloo_shared leaders, int rank, const int32_t *place,
                                    int world) {
    gloo_across *a = calloc(1, sizeof *a + (size_t)world * sizeof *a->place);
    if (!a)
        return NULL;
    memcpy(a->place, place, (size_t)world * sizeof *place);
    a->node = place[rank];
    a->group = group;
    int32_t here[NODE_RANKS_MAX];
    for (int peer = 0, count = 0; group && peer < world; peer++)
        if (place[peer] == a->node && count < NODE_RANKS_MAX)
            here[count++] = peer;
    if (group)
        node_group_call_ranks(group, here);
    a->leaders = leaders;
    return a;
}

/* ---- what leaders do ---- */

typedef struct exchange {
    node_group *group;
    gloo_buffer *buffer;
    bool done;
} exchange;

/* Runs as well when gloo throws. */
static void exchange_end(exchange *e) {
    if (!e->done && e->group)
        node_fail(e->group, error_set(CASTOR_ERR_PEER, "the exchange with other nodes failed on the first "
                                                       "rank of this node; connection closed by peer"));
    if (e->buffer)
        buffer_end(e->buffer);
}

static void exchange_call(exchange *e, hook_id id, const void *options) {
    void *real = hooks_find(id);
    call_function call;
    memcpy(&call, &real, sizeof real);
    call(options);
    e->done = true;
}

#define EXCHANGE(a, data, bytes)                                                                             \
    __attribute__((cleanup(exchange_end))) exchange e = {(a)->group, NULL, false};                           \
    buffer_make(&e.buffer, (a)->leaders.object, data, bytes)

static void leaders_allreduce(const gloo_across *a, const gloo_allreduce_options *o, void *data) {
    EXCHANGE(a, data, o->numel * o->element_bytes);
    gloo_allreduce_options among = *o;
    among.context = a->leaders;
    among.in = (gloo_buffers){NULL, NULL, NULL};
    among.out = (gloo_buffers){&e.buffer, &e.buffer + 1, &e.buffer + 1};
    exchange_call(&e, HOOK_GLOO_DATA_ALLREDUCE, &among);
}

static void leaders_broadcast(const gloo_across *a, const gloo_broadcast_options *o, void *data, int node) {
    EXCHANGE(a, data, o->numel * o->element_bytes);
    gloo_broadcast_options among = *o;
    among.context = a->leaders;
    among.in = NULL;
    among.out = e.buffer;
    among.root = node;
    exchange_call(&e, HOOK_GLOO_DATA_BROADCAST, &among);
}

static void leaders_barrier(const gloo_across *a, const gloo_barrier_options *o) {
    EXCHANGE(a, NULL, 0);
    gloo_barrier_options among = *o;
    among.context = a->leaders;
    among.buffer = e.buffer;
    exchange_call(&e, HOOK_GLOO_DATA_BARRIER, &among);
}

/* ---- what all do ---- */

castor_status gloo_across_allreduce(const gloo_across *a, const node_call *call,
                                    const gloo_allreduce_options *o, const void *input, void *out,
                                    const node_reduction *reduction) {
    size_t bytes = o->numel * o->element_bytes;
    castor_status status = CASTOR_OK;
    if (a->group)
        status = node_reduce(a->group, call, input, out, o->numel, o->element_bytes, reduction, 0);
    else if (input != out)
        memcpy(out, input, bytes);
    if (status == CASTOR_OK && a->leaders.object)
        leaders_allreduce(a, o, out);
    return status == CASTOR_OK && a->group ? node_broadcast(a->group, call, out, bytes, 0) : status;
}

castor_status gloo_across_broadcast(const gloo_across *a, const node_call *call,
                                    const gloo_broadcast_options *o, void *data) {
    size_t bytes = o->numel * o->element_bytes;
    int node = a->place[o->root], root = 0;
    for (int rank = 0; rank < o->root; rank++)
        root += a->place[rank] == node;
    castor_status status = CASTOR_OK;
    if (a->group && a->node == node)
        status = node_broadcast(a->group, call, data, bytes, root);
    if (status == CASTOR_OK && a->leaders.object)
        leaders_broadcast(a, o, data, node);
    if (status == CASTOR_OK && a->group && a->node != node)
        status = node_broadcast(a->group, call, data, bytes, 0);
    return status;
}

castor_status gloo_across_barrier(const gloo_across *a, const node_call *call,
                                  const gloo_barrier_options *o) {
    castor_status status = a->group ? node_barrier(a->group, call) : CASTOR_OK;
    if (status == CASTOR_OK && a->leaders.object)
        leaders_barrier(a, o);
    return status == CASTOR_OK && a->group ? node_barrier(a->group, call) : status;
}

static const void *gloo_contexts_only(void);
static void gloo_contexts_tested(gloo_shared context);

/* Checks that gloo's objects have the layout of shims/gloo/options.h. The agent makes a process group of one rank for this,
 * which calls each collective once with known arguments; the group of the nodes' leaders does the same. No doubtful pointer is
 * followed, and no function outside PyTorch's library is called. */
typedef struct gloo_layout_expected {
    const void *context;
    const void *input, *output; /* NULL: unknown */
    size_t numel;               /* of float */
    int64_t timeout_ms;
    int32_t rank, size; /* of the context */
} gloo_layout_expected;

typedef void (*throw_function)(const char *text); /* does not return */
static throw_function throw_runtime_error;

/* Looks up the function that throws. Without it nothing may be replaced. */
static void gloo_throw_resolve(void) {
    void *library = loader_library("libstdc++.so"), *found = NULL;
    if (library)
        found = loader_symbol(library, "_ZSt21__throw_runtime_errorPKc");
    memcpy(&throw_runtime_error, &found, sizeof found);
}

static bool gloo_throw_found(void) {
    return throw_runtime_error != NULL;
}

void gloo_throw(const char *text) {
    throw_runtime_error(text);
}

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

/* Whether the options of a call on the expected context hold the expected values. */
static bool gloo_layout_holds(gloo_data_call call, const void *options, const gloo_layout_expected *expected,
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

static struct {
    _Atomic(const void *) context; /* NULL: no test is on */
    gloo_data_call call;
    gloo_layout_expected expected;
    uint32_t expectations, held, last_tag;
    gloo_shared shared;
    bool leads;
    char text[128]; /* empty: the next call does not throw */
} test;

void gloo_self_test_begin(void) {
    collective_hide(true);
    test.expectations = test.held = test.last_tag = 0;
    test.text[0] = 0;
    test.leads = false;
    atomic_store(&test.context, gloo_contexts_only());
}

void gloo_self_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size) {
    test.call = call;
    test.expected =
        (gloo_layout_expected){atomic_load(&test.context), input, output, numel, timeout_ms, rank, size};
    test.expectations++;
}

void gloo_self_test_throw(const char *text) {
    log_format(test.text, sizeof test.text, "%s", text);
}

bool gloo_self_test_end(void) {
    bool begun = atomic_exchange(&test.context, NULL) != NULL;
    collective_hide(false);
    bool held = begun && gloo_throw_found() && test.held == test.expectations;
    if (held)
        gloo_contexts_tested(test.shared);
    return held;
}

bool gloo_self_test_leads(void) {
    return test.leads;
}

static void compare(gloo_data_call call, const void *options) {
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
    if (test.text[0] && gloo_throw_found())
        gloo_throw(test.text);
}

void gloo_self_test_see(gloo_data_call call, const void *options) {
    const void *tested = atomic_load_explicit(&test.context, memory_order_acquire);
    if (__builtin_expect(tested != NULL, 0) && ((const gloo_shared *)options)->object == tested)
        compare(call, options);
}

/* In a forked child no test is running. */
static void gloo_self_test_fork_child(void) {
    atomic_store(&test.context, NULL);
}

#define BOUND_MAX   512u
#define WATCHED_MAX 16u

static gloo_binding bound[BOUND_MAX];
static _Atomic uint32_t bound_end; /* entries from here on were never used */

typedef struct watch {
    bool on;
    uint32_t count;
    const void *context[WATCHED_MAX];
    gloo_shared tested; /* the first of them, after a self-test that ended well */
} watch;

HOOK_THREAD_LOCAL watch watched, outer;
HOOK_THREAD_LOCAL gloo_shared leaders; /* of the group that is to be bound */

/* A child's groups have no threads and their memory is not mapped there. */
static void fork_child(void) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        atomic_store(&bound[i].context, NULL);
    gloo_self_test_fork_child();
}

void gloo_contexts_watch(void) {
    static _Atomic int registered;
    if (!atomic_exchange(&registered, 1)) {
        life_fork_register(NULL, NULL, fork_child);
        gloo_throw_resolve();
    }
    watched = (watch){.on = true};
    gloo_wait_watch();
}

void gloo_contexts_unwatch(void) {
    watched.on = false;
    gloo_wait_unwatch();
    leaders = (gloo_shared){NULL, NULL};
}

uint32_t gloo_contexts_count(void) {
    return watched.count;
}

void gloo_contexts_leaders_watch(void) {
    outer = watched;
    watched = (watch){.on = true};
}

void gloo_contexts_leaders_unwatch(void) {
    leaders = watched.tested;
    watched = outer;
}

static const void *gloo_contexts_only(void) {
    return watched.count == 1 ? watched.context[0] : NULL;
}

/* For the self-test: the context that this thread has made; NULL unless there is exactly one. After a test that passed,
 * gloo_contexts_tested takes the pointer to it that gloo uses. */
static void gloo_contexts_tested(gloo_shared context) {
    watched.tested = context;
}

static castor_status contexts_bind(node_group *group, gloo_across *across) {
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

castor_status gloo_contexts_bind(node_group *group) {
    return contexts_bind(group, NULL);
}

castor_status gloo_contexts_bind_across(node_group *group, int rank, const int32_t *place, int world,
                                        const void *owner) {
    if (watched.count != 1)
        return error_set(CASTOR_ERR_ARGUMENT, "a process group with %u contexts", watched.count);
    gloo_across *across = gloo_across_new(group, leaders, rank, place, world);
    if (!across)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a group's places");
    across->owner = owner;
    castor_status status = contexts_bind(group, across);
    if (status != CASTOR_OK)
        free(across);
    return status; /* NOLINT(clang-analyzer-unix.Malloc): else the table of bound contexts has it */
}

bool gloo_contexts_bound_across(const void *owner) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (atomic_load(&bound[i].context) && bound[i].across && bound[i].across->owner == owner)
            return true;
    return false;
}

void gloo_contexts_made(const void *context) {
    if (!watched.on)
        return;
    if (watched.count < WATCHED_MAX)
        watched.context[watched.count] = context;
    watched.count++;
}

static gloo_binding *binding_of(const void *context) {
    uint32_t end = atomic_load_explicit(&bound_end, memory_order_acquire);
    for (uint32_t i = 0; i < end; i++)
        if (atomic_load_explicit(&bound[i].context, memory_order_acquire) == context)
            return &bound[i];
    return NULL;
}

const gloo_binding *gloo_contexts_binding(const void *context) {
    return binding_of(context);
}

void gloo_contexts_ended(const void *context) {
    gloo_binding *b = binding_of(context);
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
