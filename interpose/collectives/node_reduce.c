#include <string.h>
#include "node_operation.h"

/* Bytes times other ranks up to which each rank reduces everything, which takes one wait instead of two. */
#define DIRECT_BYTES (128u << 10)
#define PART_ALIGN   64u

/* How far a rank offers ahead of what it reduces, and takes behind: ranks that do not run at the same time go on through
 * as many segments. A cell is offered again NODE_CELLS segments later, when this rank has taken the segment before from all,
 * so all have reduced it; and who has offered a segment has taken the one NODE_CELLS before it, whose reduced part may go. */
#define AHEAD (NODE_CELLS / 2)
#define LAG   (NODE_CELLS - 1 - AHEAD)

typedef struct reduce_call {
    node_operation op;
    const uint8_t *input;
    uint8_t *output; /* NULL: another rank gets the result */
    size_t element_bytes;
    const node_reduction *reduction;
} reduce_call;

static void apply(const reduce_call *c, void *out, const void *a, const void *b, size_t bytes) {
    c->reduction->apply(c->reduction->context, out, a, b, bytes / c->element_bytes);
}

static castor_status reduce_direct(reduce_call *c) {
    node_operation *op = &c->op;
    castor_status status = CASTOR_OK;
    memcpy(node_own_offer(op, 0), c->input, op->shape.bytes);
    node_offer(op, 1);
    if (!c->output)
        return CASTOR_OK;
    for (int rank = 0; rank < op->g->world && status == CASTOR_OK; rank++)
        if (rank != op->g->rank)
            status = node_peer_await(op, rank, 1, 0);
    if (status != CASTOR_OK)
        return status;
    const uint8_t *sum = NULL;
    for (int rank = 0; rank < op->g->world; rank++) {
        const uint8_t *next = rank == op->g->rank ? node_own_offer(op, 0) : node_peer_offer(op, rank, 0);
        if (sum)
            apply(c, c->output, sum, next, op->shape.bytes);
        sum = sum ? c->output : next;
    }
    node_read_all(op);
    return CASTOR_OK;
}

typedef struct segment {
    size_t begin, bytes; /* of the whole */
    size_t part;         /* bytes that each rank reduces; the last ones get less */
} segment;

static size_t segment_bytes(const reduce_call *c) {
    return c->op.g->cell_bytes / c->element_bytes * c->element_bytes;
}

static segment segment_of(const reduce_call *c, uint64_t step) {
    size_t whole = segment_bytes(c);
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
    uint8_t *to = node_own_offer(&c->op, step);
    const uint8_t *from = c->input + s.begin;
    size_t before = part_begin(&s, rank), after = part_begin(&s, rank + 1);
    memcpy(to, from, before);
    memcpy(to + after, from + after, s.bytes - after);
    node_offer_quietly(&c->op, step + 1);
}

static castor_status segment_reduce(reduce_call *c, uint64_t step) {
    node_operation *op = &c->op;
    segment s = segment_of(c, step);
    size_t begin = part_begin(&s, op->g->rank), bytes = part_bytes(&s, op->g->rank);
    castor_status status = CASTOR_OK;
    for (int rank = 0; rank < op->g->world && status == CASTOR_OK; rank++)
        if (rank != op->g->rank)
            status = node_peer_await(op, rank, step + 1, 0);
    if (status != CASTOR_OK)
        return status;
    uint8_t *to = node_own_reduced(op, step);
    const uint8_t *sum = NULL;
    for (int rank = 0; rank < op->g->world && bytes; rank++) {
        const uint8_t *next =
            (rank == op->g->rank ? c->input + s.begin : node_peer_offer(op, rank, step)) + begin;
        if (sum)
            apply(c, to, sum, next, bytes);
        sum = sum ? to : next;
    }
    if (c->output)
        memcpy(c->output + s.begin + begin, to, bytes);
    node_offer_reduced(op, step + 1);
    return CASTOR_OK;
}

/* Rank by rank: those who get no result wait alike, and so know that their cells are free. */
static castor_status segment_take(reduce_call *c, uint64_t step) {
    node_operation *op = &c->op;
    segment s = segment_of(c, step);
    castor_status status = CASTOR_OK;
    for (int i = 1; i < op->g->world && status == CASTOR_OK; i++) {
        int rank = (op->g->rank + i) % op->g->world;
        status = node_peer_await(op, rank, step + 1, step + 1);
        if (status == CASTOR_OK && c->output)
            memcpy(c->output + s.begin + part_begin(&s, rank), node_peer_reduced(op, rank, step),
                   part_bytes(&s, rank));
    }
    return status;
}

/* Each rank reduces its part of every segment; who gets the result takes the other parts from those who reduced them. */
static castor_status reduce_in_parts(reduce_call *c) {
    size_t whole = segment_bytes(c);
    uint64_t steps = (c->op.shape.bytes + whole - 1) / whole;
    castor_status status = CASTOR_OK;
    for (uint64_t step = 0; step < AHEAD && step < steps; step++)
        segment_offer(c, step);
    for (uint64_t step = 0; step < steps + LAG && status == CASTOR_OK; step++) {
        if (step + AHEAD < steps)
            segment_offer(c, step + AHEAD);
        if (step < steps)
            status = segment_reduce(c, step);
        if (status == CASTOR_OK && step >= LAG)
            status = segment_take(c, step - LAG);
    }
    if (status == CASTOR_OK)
        node_read_all(&c->op);
    return status;
}

static castor_status reduce(reduce_call *c, node_group *g, const node_call *call, node_shape shape,
                            int root) {
    bool direct = shape.bytes * (size_t)(g->world - 1) <= DIRECT_BYTES;
    castor_status status = node_prepare(&c->op, g, call, shape);
    if (status == CASTOR_OK)
        status = node_slot_take(&c->op, direct ? root : NODE_EVERYONE);
    if (status != CASTOR_OK)
        return status;
    return direct ? reduce_direct(c) : reduce_in_parts(c);
}

castor_status node_allreduce(node_group *g, const node_call *call, const void *input, void *output,
                             size_t numel, size_t element_bytes, const node_reduction *reduction) {
    reduce_call c = {
        .input = input, .output = output, .element_bytes = element_bytes, .reduction = reduction};
    node_shape shape = {NODE_ALLREDUCE, 0, numel * element_bytes, element_bytes};
    return reduce(&c, g, call, shape, NODE_EVERYONE);
}

castor_status node_reduce(node_group *g, const node_call *call, const void *input, void *output, size_t numel,
                          size_t element_bytes, const node_reduction *reduction, int root) {
    reduce_call c = {.input = input,
                     .output = g->rank == root ? output : NULL,
                     .element_bytes = element_bytes,
                     .reduction = reduction};
    node_shape shape = {NODE_REDUCE, (uint32_t)root, numel * element_bytes, element_bytes};
    return reduce(&c, g, call, shape, root);
}
