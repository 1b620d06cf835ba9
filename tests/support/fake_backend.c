#include "fake_backend.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"

static fake_backend *enter(void *context) {
    fake_backend *f = context;
    pthread_mutex_lock(&f->lock);
    return f;
}

static void leave(fake_backend *f) {
    pthread_mutex_unlock(&f->lock);
}

static void promise(fake_backend *f, int kept, const char *what) {
    if (!kept && !f->broken)
        f->broken = what;
}

/* The nth call of those that may fail does. */
static int fails(fake_backend *f) {
    uint64_t call = ++f->calls;
    int now = f->fail_at && (call == f->fail_at || (f->fail_more && call > f->fail_at));
    f->failed += (uint64_t)now;
    return now;
}

static uint64_t now_ns(void *context) {
    fake_backend *f = enter(context);
    uint64_t now = f->now_ns;
    leave(f);
    return now;
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    fake_backend *f = enter(context);
    uint64_t capacity = f->capacity[tier];
    leave(f);
    return capacity;
}

static uint64_t non_model_bytes(void *context) {
    fake_backend *f = enter(context);
    uint64_t peak = f->non_model_peak;
    f->non_model_peak = f->non_model;
    leave(f);
    return peak;
}

static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    fake_backend *f = enter(context);
    castor_status status = CASTOR_OK;
    if (fails(f))
        status = error_set(CASTOR_ERR_MEMORY, "no room for chunk %u (injected)", chunk);
    else
        f->room[tier] += bytes;
    leave(f);
    return status;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    fake_backend *f = enter(context);
    (void)chunk;
    promise(f, f->room[tier] >= bytes, "room is given that was not taken");
    f->room[tier] -= bytes;
    leave(f);
}

static castor_status move_start(void *context, const chunk_move *move, uint64_t *handle) {
    fake_backend *f = enter(context);
    castor_status status = CASTOR_OK;
    fake_move *m = &f->moves[move->chunk];
    promise(f, !m->running, "a chunk moves twice at a time");
    promise(f, move->from != move->to, "a move to where it is");
    if (fails(f)) {
        status = error_set(CASTOR_ERR_SYSTEM, "a move does not start (injected)");
    } else {
        uint64_t begin = f->now_ns, *free_ns = &f->free_ns[move->from][move->to], takes = 0;
        uint64_t speed = f->bytes_per_second[move->from][move->to];
        if (f->one_at_a_time)
            free_ns = &f->free_ns[0][0];
        begin = *free_ns > begin ? *free_ns : begin;
        if (move->dirty)
            takes = f->latency_ns + (speed ? (uint64_t)((double)move->bytes * 1e9 / (double)speed) : 0);
        *m = (fake_move){*move, begin, begin + takes, 1, fails(f)};
        if (move->dirty)
            *free_ns = m->end_ns;
        else
            m->end_ns = f->now_ns;
        f->begun_ns[move->chunk] = f->now_ns;
        f->chunks = move->chunk >= f->chunks ? move->chunk + 1 : f->chunks;
        f->started++;
        *handle = move->chunk;
    }
    leave(f);
    return status;
}

static castor_status look(fake_backend *f, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    fake_move *m = &f->moves[handle];
    promise(f, m->running, "a move is looked at that is over");
    *end = MOVE_RUNNING;
    if (f->stuck || m->end_ns > f->now_ns)
        return CASTOR_OK;
    m->running = 0;
    if (m->fails)
        return error_set(CASTOR_ERR_SYSTEM, "a move fails (injected)");
    f->tier[handle] = m->move.to;
    *end = MOVE_DONE;
    *finished_ns = m->end_ns;
    return CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    fake_backend *f = enter(context);
    castor_status status = look(f, handle, end, finished_ns);
    leave(f);
    return status;
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    fake_backend *f = enter(context);
    (void)timeout_ns;
    if (f->stuck) {
        leave(f);
        usleep(1000);
        f = enter(context);
    } else if (f->moves[handle].end_ns > f->now_ns) {
        f->now_ns = f->moves[handle].end_ns;
    }
    castor_status status = look(f, handle, end, finished_ns);
    leave(f);
    return status;
}

static bool move_cancel(void *context, uint64_t handle) {
    fake_backend *f = enter(context);
    fake_move *m = &f->moves[handle];
    promise(f, m->running, "a move is cancelled that is over");
    bool cancelled = f->can_cancel && m->end_ns > f->now_ns;
    if (cancelled) {
        m->running = 0;
        f->cancelled++;
    }
    leave(f);
    return cancelled;
}

static uint32_t residency(void *context, uint32_t chunk) {
    fake_backend *f = enter(context);
    uint32_t tier = f->tier[chunk];
    leave(f);
    return tier;
}

static void *allocate(void *context, size_t bytes) {
    fake_backend *f = enter(context);
    void *memory = fails(f) ? NULL : calloc(1, bytes);
    f->live_allocations += memory != NULL;
    leave(f);
    return memory;
}

static void deallocate(void *context, void *memory, size_t bytes) {
    fake_backend *f = enter(context);
    memset(memory, 0xa5, bytes); /* who looks at it later sees that */
    free(memory);
    f->live_allocations--;
    leave(f);
}

void fake_init(fake_backend *f, uint32_t tiers, chunk_backend *backend) {
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    f->tier = calloc(FAKE_CHUNKS, sizeof *f->tier);
    f->moves = calloc(FAKE_CHUNKS, sizeof *f->moves);
    f->begun_ns = calloc(FAKE_CHUNKS, sizeof *f->begun_ns);
    f->can_cancel = 1;
    for (uint32_t tier = 0; tier < TIERS_MAX; tier++)
        f->capacity[tier] = UINT64_MAX;
    *backend = (chunk_backend){.context = f,
                               .tiers = tiers,
                               .now_ns = now_ns,
                               .capacity_bytes = capacity_bytes,
                               .non_model_bytes = non_model_bytes,
                               .room_take = room_take,
                               .room_give = room_give,
                               .move_start = move_start,
                               .move_poll = move_poll,
                               .move_wait = move_wait,
                               .move_cancel = move_cancel,
                               .residency = residency,
                               .allocate = allocate,
                               .deallocate = deallocate};
    const char *names[TIERS_MAX] = {"device", "host", "disk"};
    for (uint32_t tier = 0; tier < tiers; tier++)
        backend->tier_names[tier] = names[TIERS_MAX - tiers + tier];
}

void fake_free(fake_backend *f) {
    free(f->tier);
    free(f->moves);
    free(f->begun_ns);
    pthread_mutex_destroy(&f->lock);
}

void fake_place(fake_backend *f, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    enter(f);
    f->tier[chunk] = tier;
    f->room[tier] += bytes;
    leave(f);
}

void fake_advance(fake_backend *f, uint64_t ns) {
    enter(f);
    f->now_ns += ns;
    leave(f);
}

uint64_t fake_next_end(fake_backend *f) {
    uint64_t next = UINT64_MAX;
    enter(f);
    for (uint32_t chunk = 0; chunk < f->chunks; chunk++)
        if (f->moves[chunk].running && f->moves[chunk].end_ns < next)
            next = f->moves[chunk].end_ns;
    next = next < f->now_ns ? f->now_ns : next;
    leave(f);
    return next;
}

void fake_non_model(fake_backend *f, uint64_t bytes) {
    enter(f);
    f->non_model = bytes;
    f->non_model_peak = bytes > f->non_model_peak ? bytes : f->non_model_peak;
    leave(f);
}
