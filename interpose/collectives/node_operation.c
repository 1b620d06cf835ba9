#include "node_operation.h"

#include <string.h>
#include "base/clock.h"
#include "base/error.h"

static const char *const kind_names[] = {"",       "allreduce", "reduce",   "broadcast", "allgather",
                                         "gather", "scatter",   "alltoall", "barrier"};

castor_status node_prepare(node_operation *op, node_group *g, const node_call *call, node_shape shape) {
    node_thread *thread;
    castor_status status = node_check(g);
    if (status == CASTOR_OK)
        status = node_thread_find(g, &thread, &op->first);
    if (status != CASTOR_OK)
        return status;
    uint64_t last = (uint64_t)(call->channel + 1) << 56 | call->tag;
    thread->repeated = thread->last == last ? thread->repeated + 1 : 0;
    thread->last = last;
    op->g = g;
    op->key = last | (uint64_t)(thread->repeated & 0xffffff) << 32;
    double now = clock_seconds();
    op->deadline = now + call->timeout_seconds;
    if (g->pauses == 0)
        atomic_store_explicit(&g->moves_from, now + NODE_CROWDED_SECONDS, memory_order_relaxed);
    op->shape = shape;
    op->own = -1;
    op->untold = false;
    op->cells = shape.kind == NODE_ALLREDUCE || shape.kind == NODE_REDUCE ? NODE_CELLS : 2 * NODE_CELLS;
    for (int rank = 0; rank < NODE_RANKS_MAX; rank++)
        op->slot[rank] = -1;
    return CASTOR_OK;
}

static void tell(node_operation *op) {
    op->untold = false;
    node_notify(op->g, op->g->rank);
}

/* ---- this rank's slot ---- */

struct own_wait {
    const node_operation *op;
    int rank, index;
    uint32_t steps;
};

static bool has_read(void *context) {
    struct own_wait *w = context;
    const node_group *g = w->op->g;
    return atomic_load_explicit(&node_slot_of(g, g->rank, w->index)->read[w->rank], memory_order_acquire) >=
           w->steps;
}

static castor_status readers_await(const node_operation *op, int index, uint32_t steps) {
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

static bool all_have_read(const node_operation *op, int index, uint32_t steps) {
    for (int rank = 0; rank < op->g->world; rank++) {
        struct own_wait w = {op, rank, index, steps};
        if (rank != op->g->rank && !has_read(&w))
            return false;
    }
    return true;
}

castor_status node_readers_await(node_operation *op, uint64_t steps) {
    if (op->untold && !all_have_read(op, op->own, (uint32_t)steps))
        tell(op);
    return readers_await(op, op->own, (uint32_t)steps);
}

castor_status node_slot_take(node_operation *op, int reader) {
    const node_group *g = op->g;
    int index = op->first;
    bool never_used = atomic_load(&node_slot_of(g, g->rank, index)->key) == 0;
    if (!never_used && !all_have_read(op, index, NODE_DONE)) {
        index++;
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
        atomic_store_explicit(&slot->read[rank], reader == NODE_EVERYONE || reader == rank ? 0 : NODE_DONE,
                              memory_order_relaxed);
    op->own = index;
    return CASTOR_OK;
}

void node_offer_quietly(node_operation *op, uint64_t steps) {
    node_slot *slot = node_slot_of(op->g, op->g->rank, op->own);
    atomic_store_explicit(&slot->offered, (uint32_t)steps, memory_order_release);
    if (atomic_load_explicit(&slot->key, memory_order_relaxed) == 0)
        atomic_store_explicit(&slot->key, op->key, memory_order_release);
    op->untold = true;
}

void node_offer(node_operation *op, uint64_t steps) {
    node_offer_quietly(op, steps);
    tell(op);
}

void node_offer_reduced(node_operation *op, uint64_t steps) {
    atomic_store_explicit(&node_slot_of(op->g, op->g->rank, op->own)->reduced, (uint32_t)steps,
                          memory_order_release);
    tell(op);
}

static uint8_t *cell(const node_group *g, uint8_t *first, uint64_t step, uint32_t cells) {
    return first + step % cells * g->cell_bytes;
}

uint8_t *node_own_offer(const node_operation *op, uint64_t step) {
    return cell(op->g, node_slot_offer(op->g, op->g->rank, op->own), step, op->cells);
}

uint8_t *node_own_reduced(const node_operation *op, uint64_t step) {
    return cell(op->g, node_slot_reduced(op->g, op->g->rank, op->own), step, NODE_CELLS);
}

/* ---- the slots of others ---- */

struct peer_wait {
    node_operation *op;
    int rank;
    uint32_t offered, reduced;
};

static bool is_offered(void *context) {
    struct peer_wait *w = context;
    node_operation *op = w->op;
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

castor_status node_peer_await(node_operation *op, int rank, uint64_t offered, uint64_t reduced) {
    bool known = op->slot[rank] >= 0;
    struct peer_wait w = {op, rank, (uint32_t)offered, (uint32_t)reduced};
    node_wait wait = {is_offered, &w, rank, op->deadline, kind_names[op->shape.kind]};
    if (op->untold && !is_offered(&w))
        tell(op);
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
            op->g->called[op->g->rank], kind_names[op->shape.kind], (unsigned long)op->shape.bytes,
            (unsigned long)op->shape.element_bytes, op->shape.root, op->g->called[rank],
            kind_names[theirs->kind], (unsigned long)theirs->bytes, (unsigned long)theirs->element_bytes,
            theirs->root));
}

const uint8_t *node_peer_offer(const node_operation *op, int rank, uint64_t step) {
    return cell(op->g, node_slot_offer(op->g, rank, op->slot[rank]), step, op->cells);
}

const uint8_t *node_peer_reduced(const node_operation *op, int rank, uint64_t step) {
    return cell(op->g, node_slot_reduced(op->g, rank, op->slot[rank]), step, NODE_CELLS);
}

void node_read_tell(node_operation *op, int rank, uint64_t steps) {
    atomic_store_explicit(&node_slot_of(op->g, rank, op->slot[rank])->read[op->g->rank], (uint32_t)steps,
                          memory_order_release);
    op->untold = true;
}

void node_read_all(node_operation *op) {
    for (int rank = 0; rank < op->g->world; rank++)
        if (rank != op->g->rank && op->slot[rank] >= 0)
            node_read_tell(op, rank, NODE_DONE);
    tell(op);
}
