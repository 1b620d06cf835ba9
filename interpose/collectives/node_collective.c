#include "node_collective.h"

#include <string.h>
#include "kernels/kernels.h"
#include "node_operation.h"

#define PIECE_ALIGN 64u
/* Outputs from here on are more than a core's caches hold: written past them, they need not be read before. */
#define STREAM_BYTES ((size_t)8 << 20)
/* The same for what c10d reads at once: where they are in the caches of all, better so. */
#define STREAM_READ_BYTES ((size_t)16 << 20)

/* A piece of one rank's data, and how many steps the data take. `copy` is for what a rank takes. */
typedef struct pieces {
    size_t bytes, piece;
    uint64_t steps;
    void (*copy)(void *to, const void *from, size_t bytes);
} pieces;

static void copy_cached(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

/* `parts` of them come together on one rank. */
static pieces pieces_of(size_t bytes, size_t piece, int parts, size_t stream_from) {
    bool large = bytes * (size_t)parts >= stream_from;
    return (pieces){bytes, piece, bytes ? (bytes + piece - 1) / piece : 1,
                    large ? kernel_stream : copy_cached};
}

static size_t piece_bytes(const pieces *p, uint64_t step) {
    size_t left = p->bytes - step * p->piece;
    return left < p->piece ? left : p->piece;
}

/* The step's cell may be written: all have read what it held. */
static castor_status cell_await(node_operation *op, uint64_t step) {
    return step < op->cells ? CASTOR_OK : node_readers_await(op, step - op->cells + 1);
}

/* Whether those who sleep are woken now. Where ranks share processors it is worth while for some steps at once: who is woken
 * takes the place of one that is still at work. */
static bool wakes(const node_operation *op, uint64_t step) {
    return op->g->pauses > 0 || (step + 1) % (op->cells / 2) == 0;
}

/* How many steps a rank that offers and takes is ahead with its offers: enough for a turn where ranks share processors,
 * else few, so that what it takes is in the caches. Ranks need not have the same: who is behind all others finds what it
 * takes, and its cells free, as long as this is less than `cells`. */
static uint64_t ahead(const node_operation *op) {
    return op->g->pauses > 0 ? 2 : op->cells / 2;
}

static void step_offered(node_operation *op, const pieces *p, uint64_t step) {
    if (step + 1 == p->steps || wakes(op, step))
        node_offer(op, step + 1);
    else
        node_offer_quietly(op, step + 1);
}

static void step_taken(const node_operation *op, uint64_t step) {
    if (wakes(op, step))
        node_notify(op->g, op->g->rank);
}

static castor_status step_offer(node_operation *op, const pieces *p, const uint8_t *data, uint64_t step) {
    castor_status status = cell_await(op, step);
    if (status != CASTOR_OK)
        return status;
    memcpy(node_own_offer(op, step), data + step * p->piece, piece_bytes(p, step));
    step_offered(op, p, step);
    return CASTOR_OK;
}

/* Reads what `rank` offers `at` so many bytes within the cell. */
static castor_status step_take(node_operation *op, const pieces *p, int rank, size_t at, uint8_t *out,
                               uint64_t step) {
    castor_status status = node_peer_await(op, rank, step + 1, 0);
    if (status != CASTOR_OK)
        return status;
    p->copy(out + step * p->piece, node_peer_offer(op, rank, step) + at, piece_bytes(p, step));
    node_read_tell(op, rank, step + 1);
    return CASTOR_OK;
}

/* A rank's own part, as it gets to it. */
static void step_own(const pieces *p, const void *input, void *output, uint64_t step) {
    size_t begin = step * p->piece;
    if (input != output)
        p->copy((uint8_t *)output + begin, (const uint8_t *)input + begin, piece_bytes(p, step));
}

static castor_status begin(node_operation *op, node_group *g, const node_call *call, node_shape shape,
                           bool offers, int reader) {
    castor_status status = node_prepare(op, g, call, shape);
    return status == CASTOR_OK && offers ? node_slot_take(op, reader) : status;
}

castor_status node_broadcast(node_group *g, const node_call *call, void *data, size_t bytes, int root) {
    node_operation op;
    pieces p = pieces_of(bytes, g->cell_bytes, 1, STREAM_BYTES);
    node_shape shape = {NODE_BROADCAST, (uint32_t)root, bytes, 1};
    castor_status status = begin(&op, g, call, shape, g->rank == root, NODE_EVERYONE);
    for (uint64_t step = 0; step < p.steps && status == CASTOR_OK; step++) {
        if (g->rank == root) {
            status = step_offer(&op, &p, data, step);
        } else {
            status = step_take(&op, &p, root, 0, data, step);
            step_taken(&op, step);
        }
    }
    if (status == CASTOR_OK && g->rank != root)
        node_read_all(&op);
    return status;
}

/* What every other rank offers, to its place in `output`. */
static castor_status step_take_all(node_operation *op, const pieces *p, size_t at, uint8_t *output,
                                   uint64_t step) {
    castor_status status = CASTOR_OK;
    for (int i = 1; i < op->g->world && status == CASTOR_OK; i++) {
        int rank = (op->g->rank + i) % op->g->world;
        status = step_take(op, p, rank, at, output + (size_t)rank * p->bytes, step);
    }
    step_taken(op, step);
    return status;
}

castor_status node_allgather(node_group *g, const node_call *call, const void *input, void *output,
                             size_t bytes) {
    node_operation op;
    pieces p = pieces_of(bytes, g->cell_bytes, g->world, STREAM_READ_BYTES);
    uint8_t *own = (uint8_t *)output + (size_t)g->rank * bytes;
    castor_status status =
        begin(&op, g, call, (node_shape){NODE_ALLGATHER, 0, bytes, 1}, true, NODE_EVERYONE);
    uint64_t lag = ahead(&op);
    for (uint64_t step = 0; step < p.steps + lag && status == CASTOR_OK; step++) {
        if (step < p.steps) {
            status = step_offer(&op, &p, input, step);
            step_own(&p, input, own, step);
        }
        if (status == CASTOR_OK && step >= lag)
            status = step_take_all(&op, &p, 0, output, step - lag);
    }
    if (status == CASTOR_OK)
        node_read_all(&op);
    return status;
}

castor_status node_gather(node_group *g, const node_call *call, const void *input, void *output, size_t bytes,
                          int root) {
    node_operation op;
    pieces p = pieces_of(bytes, g->cell_bytes, g->world, STREAM_READ_BYTES);
    bool takes = g->rank == root;
    uint8_t *own = takes ? (uint8_t *)output + (size_t)root * bytes : NULL;
    castor_status status =
        begin(&op, g, call, (node_shape){NODE_GATHER, (uint32_t)root, bytes, 1}, !takes, root);
    for (uint64_t step = 0; step < p.steps && status == CASTOR_OK; step++) {
        if (takes)
            step_own(&p, input, own, step);
        status = takes ? step_take_all(&op, &p, 0, output, step) : step_offer(&op, &p, input, step);
    }
    if (status == CASTOR_OK && takes)
        node_read_all(&op);
    return status;
}

/* A cell holds a piece for each rank. */
static pieces pieces_shared(const node_group *g, size_t bytes, int parts) {
    size_t piece = g->cell_bytes / (size_t)g->world;
    return pieces_of(bytes, piece / PIECE_ALIGN * PIECE_ALIGN, parts, STREAM_BYTES);
}

static castor_status step_offer_each(node_operation *op, const pieces *p, const void *const *inputs,
                                     uint64_t step) {
    castor_status status = cell_await(op, step);
    if (status != CASTOR_OK)
        return status;
    uint8_t *to = node_own_offer(op, step);
    for (int rank = 0; rank < op->g->world; rank++)
        if (rank != op->g->rank)
            memcpy(to + (size_t)rank * p->piece, (const uint8_t *)inputs[rank] + step * p->piece,
                   piece_bytes(p, step));
    step_offered(op, p, step);
    return CASTOR_OK;
}

castor_status node_scatter(node_group *g, const node_call *call, const void *const *inputs, void *output,
                           size_t bytes, int root) {
    node_operation op;
    pieces p = pieces_shared(g, bytes, 1);
    bool offers = g->rank == root;
    castor_status status =
        begin(&op, g, call, (node_shape){NODE_SCATTER, (uint32_t)root, bytes, 1}, offers, NODE_EVERYONE);
    for (uint64_t step = 0; step < p.steps && status == CASTOR_OK; step++) {
        if (offers) {
            status = step_offer_each(&op, &p, inputs, step);
            step_own(&p, inputs[root], output, step);
        } else {
            status = step_take(&op, &p, root, (size_t)g->rank * p.piece, output, step);
            step_taken(&op, step);
        }
    }
    if (status == CASTOR_OK && !offers)
        node_read_all(&op);
    return status;
}

castor_status node_alltoall(node_group *g, const node_call *call, const void *input, void *output,
                            size_t bytes) {
    node_operation op;
    pieces p = pieces_shared(g, bytes, g->world);
    const void *inputs[NODE_RANKS_MAX] = {NULL};
    size_t own = (size_t)g->rank;
    for (int rank = 0; rank < g->world; rank++)
        inputs[rank] = (const uint8_t *)input + (size_t)rank * bytes;
    castor_status status = begin(&op, g, call, (node_shape){NODE_ALLTOALL, 0, bytes, 1}, true, NODE_EVERYONE);
    uint64_t lag = ahead(&op);
    for (uint64_t step = 0; step < p.steps + lag && status == CASTOR_OK; step++) {
        if (step < p.steps) {
            status = step_offer_each(&op, &p, inputs, step);
            step_own(&p, inputs[own], (uint8_t *)output + own * bytes, step);
        }
        if (status == CASTOR_OK && step >= lag)
            status = step_take_all(&op, &p, own * p.piece, output, step - lag);
    }
    if (status == CASTOR_OK)
        node_read_all(&op);
    return status;
}

castor_status node_barrier(node_group *g, const node_call *call) {
    node_operation op;
    castor_status status = begin(&op, g, call, (node_shape){NODE_BARRIER, 0, 0, 1}, true, NODE_EVERYONE);
    if (status != CASTOR_OK)
        return status;
    node_offer(&op, 1);
    for (int rank = 0; rank < g->world && status == CASTOR_OK; rank++)
        if (rank != g->rank)
            status = node_peer_await(&op, rank, 1, 0);
    if (status == CASTOR_OK)
        node_read_all(&op);
    return status;
}
