#include "replay.h"

#include <stdlib.h>
#include <time.h>
#include "placement/chunk_manager.h"

/* ---- the backend: host and disk (placement/backend.h) ---- */

enum { HOST, DISK, TIERS };

typedef struct move {
    uint64_t end_ns;
    uint32_t to;
    bool running;
} move;

typedef struct world {
    uint64_t now_ns, budget, non_model, non_model_peak;
    uint64_t bytes_per_second[TIERS]; /* to that tier */
    uint64_t free_ns[TIERS];          /* when all moves to it are done */
    bool half;
    move *moves; /* by chunk: handles are chunks */
    uint32_t *tier, chunks;
} world;

static uint64_t now_ns(void *context) {
    return ((world *)context)->now_ns;
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    return tier == HOST ? ((world *)context)->budget : UINT64_MAX;
}

static uint64_t non_model_bytes(void *context) {
    world *w = context;
    uint64_t peak = w->non_model_peak;
    w->non_model_peak = w->non_model;
    return peak;
}

static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
    return CASTOR_OK;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
}

static castor_status move_start(void *context, const chunk_move *wanted, uint64_t *handle) {
    world *w = context;
    uint64_t *free_ns = &w->free_ns[w->half ? HOST : wanted->to], end = w->now_ns;
    if (wanted->dirty) {
        uint64_t begin = *free_ns > w->now_ns ? *free_ns : w->now_ns;
        end = begin + (uint64_t)((double)wanted->bytes * 1e9 / (double)w->bytes_per_second[wanted->to]);
        *free_ns = end;
    }
    w->moves[wanted->chunk] = (move){end, wanted->to, true};
    *handle = wanted->chunk;
    return CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    world *w = context;
    move *m = &w->moves[handle];
    *end = MOVE_RUNNING;
    if (m->end_ns > w->now_ns)
        return CASTOR_OK;
    m->running = false;
    w->tier[handle] = m->to;
    *end = MOVE_DONE;
    *finished_ns = m->end_ns;
    return CASTOR_OK;
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    world *w = context;
    (void)timeout_ns;
    if (w->moves[handle].end_ns > w->now_ns)
        w->now_ns = w->moves[handle].end_ns;
    return move_poll(context, handle, end, finished_ns);
}

static bool move_cancel(void *context, uint64_t handle) {
    world *w = context;
    bool cancelled = w->moves[handle].end_ns > w->now_ns;
    if (cancelled)
        w->moves[handle].running = false;
    return cancelled;
}

static uint32_t residency(void *context, uint32_t chunk) {
    return ((world *)context)->tier[chunk];
}

static void *allocate(void *context, size_t bytes) {
    (void)context;
    return calloc(1, bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context, (void)bytes;
    free(memory);
}

static chunk_backend backend_of(world *w) {
    return (chunk_backend){.context = w,
                           .tiers = TIERS,
                           .tier_names = {"host", "disk"},
                           .keeps_copies = true,
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
}

/* ---- the replay ---- */

typedef struct replay {
    const replay_step *step;
    world world;
    chunk_manager *manager;
    replay_result *out;
    struct timespec begin;
} replay;

static void call_begin(replay *r) {
    clock_gettime(CLOCK_MONOTONIC, &r->begin);
}
static void call_end(replay *r) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    r->out->calls++;
    r->out->calls_ns += (uint64_t)(end.tv_sec - r->begin.tv_sec) * 1000000000u + (uint64_t)end.tv_nsec -
                        (uint64_t)r->begin.tv_nsec;
}

uint32_t replay_uses_end(const replay_step *step, uint32_t moment) {
    return moment + 1 < step->moments_count ? step->moments[moment + 1].first_use : step->uses_count;
}

/* When the next move that is under way ends; UINT64_MAX: none is. */
static uint64_t next_end(const world *w) {
    uint64_t next = UINT64_MAX;
    for (uint32_t chunk = 0; chunk < w->chunks; chunk++)
        if (w->moves[chunk].running && w->moves[chunk].end_ns < next)
            next = w->moves[chunk].end_ns;
    return next < w->now_ns ? w->now_ns : next;
}

/* Work goes on until the clock says so; the manager learns of the end of each move, as from the thread that moves. */
static void work(replay *r, uint64_t until_ns) {
    uint64_t end;
    while ((end = next_end(&r->world)) <= until_ns) {
        r->world.now_ns = end;
        call_begin(r);
        chunk_manager_advance(r->manager);
        call_end(r);
    }
    if (until_ns > r->world.now_ns)
        r->world.now_ns = until_ns;
}

static castor_status moment_replay(replay *r, uint32_t at) {
    const replay_step *s = r->step;
    const moment *now = &s->moments[at];
    uint64_t until = at + 1 < s->moments_count ? now[1].begin_ns : s->step_ns;
    castor_status status = CASTOR_OK;
    uint32_t end = replay_uses_end(s, at), held = now->first_use;
    call_begin(r);
    chunk_manager_event(r->manager, now->event, now->identity);
    call_end(r);
    for (; held < end && status == CASTOR_OK; held++) {
        call_begin(r);
        status = chunk_manager_access(r->manager, s->uses[held].chunk, s->uses[held].write);
        call_end(r);
    }
    if (status != CASTOR_OK)
        return status;
    r->world.non_model = now->non_model_bytes;
    if (r->world.non_model > r->world.non_model_peak)
        r->world.non_model_peak = r->world.non_model;
    work(r, r->world.now_ns + (until - now->begin_ns));
    for (uint32_t use = now->first_use; use < end && status == CASTOR_OK; use++)
        status = chunk_manager_release(r->manager, s->uses[use].chunk);
    return status;
}

static castor_status steps_replay(replay *r, uint32_t steps) {
    castor_status status = CASTOR_OK;
    for (uint32_t step = 0; step < REPLAY_WARM_STEPS + steps && status == CASTOR_OK; step++) {
        if (step == REPLAY_WARM_STEPS) {
            chunk_manager_statistics(r->manager, &r->out->before);
            r->out->calls = r->out->calls_ns = 0;
        }
        for (uint32_t at = 0; at < r->step->moments_count && status == CASTOR_OK; at++)
            status = moment_replay(r, at);
        call_begin(r);
        chunk_manager_step_end(r->manager);
        call_end(r);
    }
    chunk_manager_statistics(r->manager, &r->out->after);
    return status;
}

static castor_status chunks_add(replay *r) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < r->step->chunks && status == CASTOR_OK; i++) {
        uint32_t chunk;
        status = chunk_manager_add_chunk(r->manager, r->step->kinds[i], r->step->bytes[i], DISK, &chunk);
        r->world.tier[i] = DISK;
    }
    return status;
}

castor_status replay_run(const replay_step *step, const replay_machine *machine, uint32_t steps,
                         replay_result *out) {
    replay r = {.step = step, .out = out};
    chunk_manager_settings settings = chunk_manager_defaults(PLACEMENT_AUTO);
    castor_status status = CASTOR_ERR_MEMORY;
    *out = (replay_result){0};
    settings.moments.moments_max = step->moments_count + 16;
    settings.moments.uses_max = step->uses_count + 16;
    r.world = (world){.budget = machine->budget_bytes,
                      .bytes_per_second = {machine->read_bytes_per_second, machine->write_bytes_per_second},
                      .half = machine->half,
                      .chunks = step->chunks,
                      .moves = calloc(step->chunks, sizeof *r.world.moves),
                      .tier = calloc(step->chunks, sizeof *r.world.tier)};
    chunk_backend backend = backend_of(&r.world);
    if (r.world.moves != NULL && r.world.tier != NULL && step->chunks <= REPLAY_CHUNKS_MAX)
        status = chunk_manager_create(&r.manager, &backend, &settings);
    if (status == CASTOR_OK) {
        status = chunks_add(&r);
        if (status == CASTOR_OK)
            status = steps_replay(&r, steps);
        chunk_manager_destroy(r.manager);
    }
    free(r.world.moves);
    free(r.world.tier);
    return status;
}
