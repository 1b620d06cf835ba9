/* The chunk manager's world on a node without devices: memory, and the files of the offload folder. */
#include <sched.h>
#include <stdlib.h>
#include "arena/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "inside.h"

enum { TIER_HOST, TIER_DISK };

/* An operation counts as over a moment before its record is free again. */
#define RECORD_NS 10000000u

static uint64_t now_ns(void *context) {
    (void)context;
    return clock_ns(CLOCK_MONOTONIC);
}

/* This rank's share of `bytes`, which is the node's. */
static uint64_t share_of(const budget *b, uint64_t bytes) {
    uint64_t all = atomic_load(&b->all_load);
    return all ? (uint64_t)((double)bytes * ((double)atomic_load(&b->own_load) / (double)all)) : bytes;
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    const budget *b = context;
    return tier == TIER_HOST && b->bytes ? share_of(b, b->bytes) : UINT64_MAX;
}

static uint64_t lingering_bytes(void *context) {
    const budget *b = context;
    return atomic_load(&b->left_bytes);
}

/* The peak of this rank's since it last asked, and what the others have told. */
static uint64_t non_model_bytes(void *context) {
    const budget *b = context;
    const store *s = b->store;
    atomic_store(&s->control->rank[s->rank].other_bytes, arena_peak_take());
    uint64_t all = 0;
    for (int rank = 0; rank < s->world; rank++)
        all += atomic_load(&s->control->rank[rank].other_bytes);
    return share_of(b, all);
}

/* Disk blocks are taken where a chunk is placed, memory is the kernel's. */
static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
    return CASTOR_OK;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
}

static void move_done(disk_operation *operation, void *context) {
    budget_chunk *c = context;
    budget *b = c->store->budget;
    if (!operation->cancelled && disk_operation_error(operation) != CASTOR_OK &&
        !atomic_exchange(&b->disk_told, true))
        LOG_W("%s", error_text());
    if (operation->action == DISK_EVICT && !operation->cancelled) {
        uint64_t left = operation->left_bytes < c->bytes ? operation->left_bytes : c->bytes;
        atomic_fetch_add(&b->left_bytes, left);
        atomic_fetch_sub(&b->left_bytes, atomic_exchange(&c->left_bytes, left));
    }
    atomic_store(&c->finished_ns, clock_ns(CLOCK_MONOTONIC));
    pthread_mutex_lock(&b->lock);
    pthread_cond_signal(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

static castor_status move_start(void *context, const chunk_move *move, uint64_t *handle) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, move->chunk);
    chunk *of_store = &b->store->chunks.list[c->kind].chunks[c->index];
    uint64_t until = clock_ns(CLOCK_MONOTONIC) + RECORD_NS;
    disk_operation *o = &c->operation;
    while (disk_operation_busy(o) && clock_ns(CLOCK_MONOTONIC) < until)
        sched_yield();
    atomic_store(&c->finished_ns, 0);
    /* Set one by one: `state` is the queue's. */
    o->action = move->to == TIER_DISK ? DISK_EVICT : DISK_LOAD;
    o->fd = b->store->chunks.list[c->kind].fd;
    o->offset = c->offset;
    o->bytes = c->bytes;
    o->alias = of_store->alias;
    o->map = c->kind == CHUNK_OPTIM && o->alias ? DISK_MAP_WRITE : DISK_MAP_NONE;
    o->done = move_done;
    o->context = c;
    *handle = move->chunk;
    return disk_queue_submit(b->queue, o);
}

static castor_status move_over(budget_chunk *c, chunk_move_end *end, uint64_t *finished_ns) {
    *finished_ns = atomic_load(&c->finished_ns);
    *end = *finished_ns ? MOVE_DONE : MOVE_RUNNING;
    return *finished_ns ? disk_operation_error(&c->operation) : CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    return move_over(budget_chunk_at(context, handle), end, finished_ns);
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, handle);
    castor_status status = disk_queue_wait(b->queue, &c->operation, (double)timeout_ns * 1e-9);
    if (status == CASTOR_ERR_TIMEOUT && !atomic_load(&c->finished_ns)) {
        *end = MOVE_RUNNING;
        return CASTOR_OK;
    }
    return move_over(c, end, finished_ns);
}

/* What is being written back or read is let finish. */
static bool move_cancel(void *context, uint64_t handle) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, handle);
    return disk_queue_cancel(b->queue, &c->operation) && disk_operation_ended(&c->operation);
}

static uint32_t residency(void *context, uint32_t number) {
    budget *b = context;
    const budget_chunk *c = budget_chunk_at(b, number);
    uint64_t resident = 0;
    disk_resident(b->store->chunks.list[c->kind].fd, c->offset, c->bytes, NULL, &resident);
    return resident * 2 >= c->bytes ? TIER_HOST : TIER_DISK;
}

static void *allocate(void *context, size_t bytes) {
    (void)context;
    return calloc(1, bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context, (void)bytes;
    free(memory);
}

chunk_backend budget_backend(budget *b) {
    return (chunk_backend){
        .context = b,
        .tiers = 2,
        .tier_names = {"host", "disk"},
        .keeps_copies = true,
        .now_ns = now_ns,
        .capacity_bytes = capacity_bytes,
        .lingering_bytes = lingering_bytes,
        .non_model_bytes = non_model_bytes,
        .room_take = room_take,
        .room_give = room_give,
        .move_start = move_start,
        .move_poll = move_poll,
        .move_wait = move_wait,
        .move_cancel = move_cancel,
        .residency = residency,
        .allocate = allocate,
        .deallocate = deallocate,
    };
}
