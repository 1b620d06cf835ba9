#include "across.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/stable.h"

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

bool gloo_across_holds(const gloo_shared *context) {
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

gloo_across *gloo_across_new(node_group *group, gloo_shared leaders, int rank, const int32_t *place,
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
