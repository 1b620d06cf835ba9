#include "node_collective.h"

#include <string.h>
#include "../core/clock.h"
#include "../core/error.h"
#include "node_slots.h"

/* Bytes times other ranks up to which each rank reduces everything, which takes one wait instead of two. */
#define DIRECT_BYTES (128u << 10)
#define PART_ALIGN   64u

enum { KIND_ALLREDUCE = 1, KIND_BROADCAST, KIND_ALLGATHER, KIND_BARRIER };
static const char *const kind_names[] = {"", "allreduce", "broadcast", "allgather", "barrier"};

typedef struct operation {
    node_group *g;
    uint64_t key;
    double deadline;
    node_shape shape;
    int own;                  /* index of this rank's slot, -1: it offers nothing */
    int slot[NODE_RANKS_MAX]; /* of each other rank, -1: not seen yet */
} operation;

static castor_status prepare(operation *op, node_group *g, const node_call *call, node_shape shape,
                             int *first) {
    node_thread *thread;
    castor_status status = node_check(g);
    if (status == CASTOR_OK)
        status = node_thread_find(g, &thread, first);
    if (status != CASTOR_OK)
        return status;
    uint64_t last = (uint64_t)(call->channel + 1) << 56 | call->tag;
    thread->repeated = thread->last == last ? thread->repeated + 1 : 0;
    thread->last = last;
    op->g = g;
    op->key = last | (uint64_t)(thread->repeated & 0xffffff) << 32;
    op->deadline = clock_seconds() + call->timeout_seconds;
    op->shape = shape;
    op->own = -1;
    for (int rank = 0; rank < NODE_RANKS_MAX; rank++)
        op->slot[rank] = -1;
    return CASTOR_OK;
}

/* ---- this rank's slot ---- */

struct own_wait {
    const operation *op;
    int rank, index;
    uint32_t steps;
};

static bool has_read(void *context) {
    struct own_wait *w = context;
    const node_group *g = w->op->g;
    return atomic_load_explicit(&node_slot_of(g, g->rank, w->index)->read[w->rank], memory_order_acquire) >=
           w->steps;
}

/* Until every other rank has read `steps` steps of the slot. */
static castor_status readers_await(const operation *op, int index, uint32_t steps) {
    castor_status status = CASTOR_OK;
    for (int rank = 0; rank < op->g->world && status == CASTOR_OK; rank++) {
        struct own_wait w = {op, rank, index, steps};
        /* The reader notifies by its own event: it is the one that is waited for. */
        node_wait wait = {has_read, &w, rank, op->deadline, kind_names[op->shape.kind]};
        if (rank != op->g->rank)
            status = node_wait_until(op->g, &wait);
    }
    return status;
}

static bool slot_is_free(const operation *op, int index) {
    for (int rank = 0; rank < op->g->world; rank++) {
        struct own_wait w = {op, rank, index, NODE_DONE};
        if (rank != op->g->rank && !has_read(&w))
            return false;
    }
    return true;
}

/* Takes one of the thread's two slots. Nobody looks at it before the operation is offered. */
static castor_status slot_take(operation *op, int first) {
    const node_group *g = op->g;
    int index = first;
    bool never_used = atomic_load(&node_slot_of(g, g->rank, index)->key) == 0;
    if (!never_used && !slot_is_free(op, index)) {
        index = first + 1;
        never_used = atomic_load(&node_slot_of(g, g->rank, index)->key) == 0;
        castor_status status = never_used ? CASTOR_OK : readers_await(op, index, NODE_DONE);
        if (status != CASTOR_OK)
            return status;
    }
    node_slot *slot = node_slot_of(g, g->rank, index);
    atomic_store_explicit(&slot->key, 0, memory_order_relaxed);
    slot->shape = op->shape;
    atomic_store_explicit(&slot->offered, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->reduced, 0, memory_order_relaxed);
    for (int rank = 0; rank < g->world; rank++)
        atomic_store_explicit(&slot->read[rank], 0, memory_order_relaxed);
    op->own = index;
    return CASTOR_OK;
}

static void offer(operation *op, uint32_t steps) {
    node_slot *slot = node_slot_of(op->g, op->g->rank, op->own);
    atomic_store_explicit(&slot->offered, steps, memory_order_release);
    if (atomic_load_explicit(&slot->key, memory_order_relaxed) == 0)
        atomic_store_explicit(&slot->key, op->key, memory_order_release);
    node_notify(op->g, op->g->rank);
}

static void offer_reduced(operation *op, uint32_t steps) {
    atomic_store_explicit(&node_slot_of(op->g, op->g->rank, op->own)->reduced, steps, memory_order_release);
    node_notify(op->g, op->g->rank);
}

static uint8_t *cell(uint8_t *half, uint64_t step) {
    return half + step % NODE_CELLS * NODE_CELL_BYTES;
}

static uint8_t *own_offer(const operation *op, uint64_t step) {
    return cell(node_slot_offer(op->g, op->g->rank, op->own), step);
}

static uint8_t *own_reduced(const operation *op, uint64_t step) {
    return cell(node_slot_reduced(op->g, op->g->rank, op->own), step);
}

/* ---- the slots of others ---- */

struct peer_wait {
    operation *op;
    int rank;
    uint32_t offered, reduced;
};

static bool is_offered(void *context) {
    struct peer_wait *w = context;
    operation *op = w->op;
    int *index = &op->slot[w->rank];
    for (int i = 0; *index < 0 && i < NODE_SLOTS; i++)
        if (atomic_load_explicit(&node_slot_of(op->g, w->rank, i)->key, memory_order_acquire) == op->key)
            *index = i;
    if (*index < 0)
        return false;
    node_slot *slot = node_slot_of(op->g, w->rank, *index);
    return atomic_load_explicit(&slot->offered, memory_order_acquire) >= w->offered &&
           atomic_load_explicit(&slot->reduced, memory_order_acquire) >= w->reduced;
}

static castor_status peer_await(operation *op, int rank, uint32_t offered, uint32_t reduced) {
    bool known = op->slot[rank] >= 0;
    struct peer_wait w = {op, rank, offered, reduced};
    node_wait wait = {is_offered, &w, rank, op->deadline, kind_names[op->shape.kind]};
    castor_status status = node_wait_until(op->g, &wait);
    if (status != CASTOR_OK || known)
        return status;
    const node_shape *theirs = &node_slot_of(op->g, rank, op->slot[rank])->shape;
    if (memcmp(theirs, &op->shape, sizeof *theirs) == 0)
        return CASTOR_OK;
    return node_fail(
        op->g,
        error_set(
            CASTOR_ERR_MISMATCH,
            "the ranks of a process group disagree: rank %d calls %s of %lu bytes, elements of %lu, root "
            "%u, and rank %d calls %s of %lu bytes, elements of %lu, root %u. All ranks must make the same "
            "calls",
            op->g->rank, kind_names[op->shape.kind], (unsigned long)op->shape.bytes,
            (unsigned long)op->shape.element_bytes, op->shape.root, rank, kind_names[theirs->kind],
            (unsigned long)theirs->bytes, (unsigned long)theirs->element_bytes, theirs->root));
}

static const uint8_t *peer_offer(const operation *op, int rank, uint64_t step) {
    return cell(node_slot_offer(op->g, rank, op->slot[rank]), step);
}

static const uint8_t *peer_reduced(const operation *op, int rank, uint64_t step) {
    return cell(node_slot_reduced(op->g, rank, op->slot[rank]), step);
}

static void read_tell(operation *op, int rank, uint32_t steps) {
    atomic_store_explicit(&node_slot_of(op->g, rank, op->slot[rank])->read[op->g->rank], steps,
                          memory_order_release);
}

/* This rank needs nothing more of the others' slots. */
static void read_all(operation *op) {
    for (int rank = 0; rank < op->g->world; rank++)
        if (rank != op->g->rank && op->slot[rank] >= 0)
            read_tell(op, rank, NODE_DONE);
    node_notify(op->g, op->g->rank);
}

/* ---- all-reduce ---- */

typedef struct reduce_call {
    operation op;
    const uint8_t *input;
    uint8_t *output;
    size_t element_bytes;
    const node_reduction *reduction;
} reduce_call;

static castor_status reduce_direct(reduce_call *c) {
    operation *op = &c->op;
    size_t numel = op->shape.bytes / c->element_bytes;
    castor_status status = CASTOR_OK;
    memcpy(own_offer(op, 0), c->input, op->shape.bytes);
    offer(op, 1);
    for (int rank = 0; rank < op->g->world && status == CASTOR_OK; rank++)
        if (rank != op->g->rank)
            status = peer_await(op, rank, 1, 0);
    if (status != CASTOR_OK)
        return status;
    const uint8_t *sum = NULL;
    for (int rank = 0; rank < op->g->world; rank++) {
        const uint8_t *next = rank == op->g->rank ? own_offer(op, 0) : peer_offer(op, rank, 0);
        if (sum)
            c->reduction->apply(c->reduction->context, c->output, sum, next, numel);
        sum = sum ? c->output : next;
    }
    read_all(op);
    return CASTOR_OK;
}

typedef struct segment {
    size_t begin, bytes; /* of the whole */
    size_t part;         /* bytes that each rank reduces; the last ones get less */
} segment;

static segment segment_of(const reduce_call *c, uint64_t step) {
    size_t whole = NODE_CELL_BYTES / c->element_bytes * c->element_bytes;
    segment s = {.begin = step * whole};
    size_t left = c->op.shape.bytes - s.begin;
    s.bytes = left < whole ? left : whole;
    size_t world = (size_t)c->op.g->world, unit = c->element_bytes * PART_ALIGN;
    size_t part = (s.bytes + world - 1) / world;
    s.part = (part + unit - 1) / unit * unit;
    return s;
}

static size_t part_begin(const segment *s, int rank) {
    size_t begin = (size_t)rank * s->part;
    return begin < s->bytes ? begin : s->bytes;
}

static size_t part_bytes(const segment *s, int rank) {
    return part_begin(s, rank + 1) - part_begin(s, rank);
}

/* What others reduce of this rank's data. */
static void segment_offer(reduce_call *c, uint64_t step) {
    segment s = segment_of(c, step);
    int rank = c->op.g->rank;
    uint8_t *to = own_offer(&c->op, step);
    const uint8_t *from = c->input + s.begin;
    size_t before = part_begin(&s, rank), after = part_begin(&s, rank + 1);
    memcpy(to, from, before);
    memcpy(to + after, from + after, s.bytes - after);
    offer(&c->op, (uint32_t)step + 1);
}

static castor_status segment_reduce(reduce_call *c, uint64_t step) {
    operation *op = &c->op;
    segment s = segment_of(c, step);
    size_t begin = part_begin(&s, op->g->rank), bytes = part_bytes(&s, op->g->rank);
    castor_status status = CASTOR_OK;
    for (int rank = 0; rank < op->g->world && status == CASTOR_OK; rank++)
        if (rank != op->g->rank)
            status = peer_await(op, rank, (uint32_t)step + 1, 0);
    if (status != CASTOR_OK)
        return status;
    uint8_t *to = own_reduced(op, step);
    const uint8_t *sum = NULL;
    for (int rank = 0; rank < op->g->world && bytes; rank++) {
        const uint8_t *next = (rank == op->g->rank ? c->input + s.begin : peer_offer(op, rank, step)) + begin;
        if (sum)
            c->reduction->apply(c->reduction->context, to, sum, next, bytes / c->element_bytes);
        sum = sum ? to : next;
    }
    memcpy(c->output + s.begin + begin, to, bytes);
    offer_reduced(op, (uint32_t)step + 1);
    return CASTOR_OK;
}

static castor_status segment_take(reduce_call *c, uint64_t step) {
    operation *op = &c->op;
    segment s = segment_of(c, step);
    castor_status status = CASTOR_OK;
    for (int i = 1; i < op->g->world && status == CASTOR_OK; i++) {
        int rank = (op->g->rank + i) % op->g->world;
        status = peer_await(op, rank, (uint32_t)step + 1, (uint32_t)step + 1);
        if (status == CASTOR_OK)
            memcpy(c->output + s.begin + part_begin(&s, rank), peer_reduced(op, rank, step),
                   part_bytes(&s, rank));
    }
    return status;
}

/* Each rank reduces its part of every segment and takes the other parts from those who reduced them. A segment is offered
 * one ahead: its cell was last used two segments before, which this rank has taken, so everyone has reduced it; and a
 * rank that has offered a segment has taken the one two before it. */
static castor_status reduce_in_parts(reduce_call *c) {
    size_t whole = NODE_CELL_BYTES / c->element_bytes * c->element_bytes;
    uint64_t steps = (c->op.shape.bytes + whole - 1) / whole;
    castor_status status = CASTOR_OK;
    segment_offer(c, 0);
    for (uint64_t step = 0; step < steps && status == CASTOR_OK; step++) {
        if (step + 1 < steps)
            segment_offer(c, step + 1);
        status = segment_reduce(c, step);
        if (status == CASTOR_OK)
            status = segment_take(c, step);
    }
    if (status == CASTOR_OK)
        read_all(&c->op);
    return status;
}

castor_status node_allreduce(node_group *g, const node_call *call, const void *input, void *output,
                             size_t numel, size_t element_bytes, const node_reduction *reduction) {
    reduce_call c = {
        .input = input, .output = output, .element_bytes = element_bytes, .reduction = reduction};
    node_shape shape = {KIND_ALLREDUCE, 0, numel * element_bytes, element_bytes};
    int first;
    castor_status status = prepare(&c.op, g, call, shape, &first);
    if (status == CASTOR_OK)
        status = slot_take(&c.op, first);
    if (status != CASTOR_OK)
        return status;
    return shape.bytes * (size_t)(g->world - 1) <= DIRECT_BYTES ? reduce_direct(&c) : reduce_in_parts(&c);
}

/* ---- those that only copy ---- */

static uint64_t steps_of(size_t bytes) {
    return bytes ? (bytes + NODE_CELL_BYTES - 1) / NODE_CELL_BYTES : 1;
}

static size_t step_bytes(size_t bytes, uint64_t step) {
    size_t left = bytes - step * NODE_CELL_BYTES;
    return left < NODE_CELL_BYTES ? left : NODE_CELL_BYTES;
}

/* Offers one step of `data`, once all have read what its cell held. */
static castor_status step_offer(operation *op, const uint8_t *data, uint64_t step) {
    castor_status status = CASTOR_OK;
    if (step >= NODE_CELLS)
        status = readers_await(op, op->own, (uint32_t)(step - NODE_CELLS + 1));
    if (status != CASTOR_OK)
        return status;
    memcpy(own_offer(op, step), data + step * NODE_CELL_BYTES, step_bytes(op->shape.bytes, step));
    offer(op, (uint32_t)step + 1);
    return CASTOR_OK;
}

static castor_status step_take(operation *op, int rank, uint8_t *out, uint64_t step) {
    castor_status status = peer_await(op, rank, (uint32_t)step + 1, 0);
    if (status != CASTOR_OK)
        return status;
    memcpy(out + step * NODE_CELL_BYTES, peer_offer(op, rank, step), step_bytes(op->shape.bytes, step));
    read_tell(op, rank, (uint32_t)step + 1);
    return CASTOR_OK;
}

castor_status node_broadcast(node_group *g, const node_call *call, void *data, size_t bytes, int root) {
    operation op;
    int first;
    node_shape shape = {KIND_BROADCAST, (uint32_t)root, bytes, 1};
    castor_status status = prepare(&op, g, call, shape, &first);
    if (status == CASTOR_OK && g->rank == root)
        status = slot_take(&op, first);
    for (uint64_t step = 0; step < steps_of(bytes) && status == CASTOR_OK; step++) {
        if (g->rank == root) {
            status = step_offer(&op, data, step);
        } else {
            status = step_take(&op, root, data, step);
            node_notify(g, g->rank);
        }
    }
    if (status == CASTOR_OK && g->rank != root)
        read_all(&op);
    return status;
}

castor_status node_allgather(node_group *g, const node_call *call, const void *input, void *output,
                             size_t bytes) {
    operation op;
    int first;
    uint8_t *out = output, *own = out + (size_t)g->rank * bytes;
    node_shape shape = {KIND_ALLGATHER, 0, bytes, 1};
    castor_status status = prepare(&op, g, call, shape, &first);
    if (status == CASTOR_OK)
        status = slot_take(&op, first);
    if (status == CASTOR_OK && own != input)
        memcpy(own, input, bytes);
    for (uint64_t step = 0; step < steps_of(bytes) && status == CASTOR_OK; step++) {
        status = step_offer(&op, input, step);
        for (int i = 1; i < g->world && status == CASTOR_OK; i++) {
            int rank = (g->rank + i) % g->world;
            status = step_take(&op, rank, out + (size_t)rank * bytes, step);
        }
        node_notify(g, g->rank);
    }
    if (status == CASTOR_OK)
        read_all(&op);
    return status;
}

castor_status node_barrier(node_group *g, const node_call *call) {
    operation op;
    int first;
    castor_status status = prepare(&op, g, call, (node_shape){KIND_BARRIER, 0, 0, 1}, &first);
    if (status == CASTOR_OK)
        status = slot_take(&op, first);
    if (status != CASTOR_OK)
        return status;
    offer(&op, 1);
    for (int rank = 0; rank < g->world && status == CASTOR_OK; rank++)
        if (rank != g->rank)
            status = peer_await(&op, rank, 1, 0);
    if (status == CASTOR_OK)
        read_all(&op);
    return status;
}
