#include "node_collective.h"
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "node_buffers.h"

/* One operation of a group, as a rank goes through it: its own buffer, and those of the others. Private to node_*.c. */
typedef enum node_kind {
    NODE_ALLREDUCE = 1,
    NODE_REDUCE,
    NODE_BROADCAST,
    NODE_ALLGATHER,
    NODE_GATHER,
    NODE_SCATTER,
    NODE_ALLTOALL,
    NODE_BARRIER
} node_kind;

#define NODE_EVERYONE (-1)

typedef struct node_operation {
    node_group *g;
    uint64_t key;
    double deadline;
    node_shape shape;
    int first;                  /* the thread's own buffers: this one and the next */
    int own;                    /* index of this rank's buffer, -1: it offers nothing */
    bool untold;                /* it has offered or read without waking anybody */
    uint32_t cells;             /* of its offers */
    int buffer[NODE_RANKS_MAX]; /* of each other rank, -1: not seen yet */
} node_operation;

static const char *const kind_names[] = {"",       "allreduce", "reduce",   "broadcast", "allgather",
                                         "gather", "scatter",   "alltoall", "barrier"};

static castor_status node_prepare(node_operation *op, node_group *g, const node_call *call,
                                  node_shape shape) {
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
        op->buffer[rank] = -1;
    return CASTOR_OK;
}

static void tell(node_operation *op) {
    op->untold = false;
    node_notify(op->g, op->g->rank);
}

/* ---- this rank's buffer ---- */

struct own_wait {
    const node_operation *op;
    int rank, index;
    uint32_t steps;
};

static bool has_read(void *context) {
    struct own_wait *w = context;
    const node_group *g = w->op->g;
    return atomic_load_explicit(&node_buffer_of(g, g->rank, w->index)->read[w->rank], memory_order_acquire) >=
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

/* Waits until all readers of this rank's buffer have read so many steps. */
static castor_status node_readers_await(node_operation *op, uint64_t steps) {
    if (op->untold && !all_have_read(op, op->own, (uint32_t)steps))
        tell(op);
    return readers_await(op, op->own, (uint32_t)steps);
}

/* Takes one of the thread's two buffers, for `reader` or for everyone else. Nobody reads it before an offer. */
static castor_status node_buffer_take(node_operation *op, int reader) {
    const node_group *g = op->g;
    int index = op->first;
    bool never_used = atomic_load(&node_buffer_of(g, g->rank, index)->key) == 0;
    if (!never_used && !all_have_read(op, index, NODE_DONE)) {
        index++;
        never_used = atomic_load(&node_buffer_of(g, g->rank, index)->key) == 0;
        castor_status status = never_used ? CASTOR_OK : readers_await(op, index, NODE_DONE);
        if (status != CASTOR_OK)
            return status;
    }
    node_buffer *buffer = node_buffer_of(g, g->rank, index);
    atomic_store_explicit(&buffer->key, 0, memory_order_relaxed);
    buffer->shape = op->shape;
    atomic_store_explicit(&buffer->offered, 0, memory_order_relaxed);
    atomic_store_explicit(&buffer->reduced, 0, memory_order_relaxed);
    for (int rank = 0; rank < g->world; rank++)
        atomic_store_explicit(&buffer->read[rank], reader == NODE_EVERYONE || reader == rank ? 0 : NODE_DONE,
                              memory_order_relaxed);
    op->own = index;
    return CASTOR_OK;
}

static void node_offer_quietly(node_operation *op, uint64_t steps) {
    node_buffer *buffer = node_buffer_of(op->g, op->g->rank, op->own);
    atomic_store_explicit(&buffer->offered, (uint32_t)steps, memory_order_release);
    if (atomic_load_explicit(&buffer->key, memory_order_relaxed) == 0)
        atomic_store_explicit(&buffer->key, op->key, memory_order_release);
    op->untold = true;
}

static void node_offer(node_operation *op, uint64_t steps) {
    node_offer_quietly(op, steps);
    tell(op);
}

/* The first `steps` steps are there. node_offer_quietly wakes nobody; sleepers are woken before this rank waits, or by the next
 * node_offer or node_offer_reduced. */
static void node_offer_reduced(node_operation *op, uint64_t steps) {
    atomic_store_explicit(&node_buffer_of(op->g, op->g->rank, op->own)->reduced, (uint32_t)steps,
                          memory_order_release);
    tell(op);
}

static uint8_t *cell(const node_group *g, uint8_t *first, uint64_t step, uint32_t cells) {
    return first + step % cells * g->cell_bytes;
}

static uint8_t *node_own_offer(const node_operation *op, uint64_t step) {
    return cell(op->g, node_buffer_offer(op->g, op->g->rank, op->own), step, op->cells);
}

static uint8_t *node_own_reduced(const node_operation *op, uint64_t step) {
    return cell(op->g, node_buffer_reduced(op->g, op->g->rank, op->own), step, NODE_CELLS);
}

/* ---- the buffers of others ---- */

struct peer_wait {
    node_operation *op;
    int rank;
    uint32_t offered, reduced;
};

static bool is_offered(void *context) {
    struct peer_wait *w = context;
    node_operation *op = w->op;
    int *index = &op->buffer[w->rank];
    for (int i = 0; *index < 0 && i < NODE_BUFFERS; i++)
        if (atomic_load_explicit(&node_buffer_of(op->g, w->rank, i)->key, memory_order_acquire) == op->key)
            *index = i;
    if (*index < 0)
        return false;
    node_buffer *buffer = node_buffer_of(op->g, w->rank, *index);
    return atomic_load_explicit(&buffer->offered, memory_order_acquire) >= w->offered &&
           atomic_load_explicit(&buffer->reduced, memory_order_acquire) >= w->reduced;
}

/* Waits until `rank` has offered, and reduced, so many steps. CASTOR_ERR_MISMATCH: it called another collective. */
static castor_status node_peer_await(node_operation *op, int rank, uint64_t offered, uint64_t reduced) {
    bool known = op->buffer[rank] >= 0;
    struct peer_wait w = {op, rank, (uint32_t)offered, (uint32_t)reduced};
    node_wait wait = {is_offered, &w, rank, op->deadline, kind_names[op->shape.kind]};
    if (op->untold && !is_offered(&w))
        tell(op);
    castor_status status = node_wait_until(op->g, &wait);
    if (status != CASTOR_OK || known)
        return status;
    const node_shape *theirs = &node_buffer_of(op->g, rank, op->buffer[rank])->shape;
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

static const uint8_t *node_peer_offer(const node_operation *op, int rank, uint64_t step) {
    return cell(op->g, node_buffer_offer(op->g, rank, op->buffer[rank]), step, op->cells);
}

/* A step's cells. */
static const uint8_t *node_peer_reduced(const node_operation *op, int rank, uint64_t step) {
    return cell(op->g, node_buffer_reduced(op->g, rank, op->buffer[rank]), step, NODE_CELLS);
}

/* This rank has read so many steps of `rank`'s buffer. Sleepers are woken before this rank waits. */
static void node_read_tell(node_operation *op, int rank, uint64_t steps) {
    atomic_store_explicit(&node_buffer_of(op->g, rank, op->buffer[rank])->read[op->g->rank], (uint32_t)steps,
                          memory_order_release);
    op->untold = true;
}

/* This rank has read everything that it needs. */
static void node_read_all(node_operation *op) {
    for (int rank = 0; rank < op->g->world; rank++)
        if (rank != op->g->rank && op->buffer[rank] >= 0)
            node_read_tell(op, rank, NODE_DONE);
    tell(op);
}

/* Bytes times other ranks up to which each rank reduces everything, which takes one wait instead of two. */
#define DIRECT_BYTES (128u << 10)
#define SHARD_ALIGN  64u

/* How far a rank offers ahead of what it reduces, and takes behind: ranks that do not run at the same time go on through
 * as many segments. A cell is offered again NODE_CELLS segments later, when this rank has taken the segment before from all,
 * so all have reduced it; and who has offered a segment has taken the one NODE_CELLS before it, whose reduced shard may go. */
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
    size_t shard;        /* bytes that each rank reduces; the last ones get less */
} segment;

static size_t segment_bytes(const reduce_call *c) {
    return c->op.g->cell_bytes / c->element_bytes * c->element_bytes;
}

static segment segment_of(const reduce_call *c, uint64_t step) {
    size_t whole = segment_bytes(c);
    segment s = {.begin = step * whole};
    size_t left = c->op.shape.bytes - s.begin;
    s.bytes = left < whole ? left : whole;
    size_t world = (size_t)c->op.g->world, unit = c->element_bytes * SHARD_ALIGN;
    size_t shard = (s.bytes + world - 1) / world;
    s.shard = (shard + unit - 1) / unit * unit;
    return s;
}

static size_t shard_begin(const segment *s, int rank) {
    size_t begin = (size_t)rank * s->shard;
    return begin < s->bytes ? begin : s->bytes;
}

static size_t shard_bytes(const segment *s, int rank) {
    return shard_begin(s, rank + 1) - shard_begin(s, rank);
}

/* What others reduce of this rank's data. */
static void segment_offer(reduce_call *c, uint64_t step) {
    segment s = segment_of(c, step);
    int rank = c->op.g->rank;
    uint8_t *to = node_own_offer(&c->op, step);
    const uint8_t *from = c->input + s.begin;
    size_t before = shard_begin(&s, rank), after = shard_begin(&s, rank + 1);
    memcpy(to, from, before);
    memcpy(to + after, from + after, s.bytes - after);
    node_offer_quietly(&c->op, step + 1);
}

static castor_status segment_reduce(reduce_call *c, uint64_t step) {
    node_operation *op = &c->op;
    segment s = segment_of(c, step);
    size_t begin = shard_begin(&s, op->g->rank), bytes = shard_bytes(&s, op->g->rank);
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
            memcpy(c->output + s.begin + shard_begin(&s, rank), node_peer_reduced(op, rank, step),
                   shard_bytes(&s, rank));
    }
    return status;
}

/* Each rank reduces its shard of every segment; who gets the result takes the other shards from those who reduced them. */
static castor_status reduce_by_shards(reduce_call *c) {
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
        status = node_buffer_take(&c->op, direct ? root : NODE_EVERYONE);
    if (status != CASTOR_OK)
        return status;
    return direct ? reduce_direct(c) : reduce_by_shards(c);
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

/* `shards` of them come together on one rank. */
static pieces pieces_of(size_t bytes, size_t piece, int shards, size_t stream_from) {
    bool large = bytes * (size_t)shards >= stream_from;
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
    return status == CASTOR_OK && offers ? node_buffer_take(op, reader) : status;
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
static pieces pieces_shared(const node_group *g, size_t bytes, int shards) {
    size_t piece = g->cell_bytes / (size_t)g->world;
    return pieces_of(bytes, piece / PIECE_ALIGN * PIECE_ALIGN, shards, STREAM_BYTES);
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
