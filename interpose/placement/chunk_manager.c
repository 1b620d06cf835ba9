/* Accesses and events. */
#include "chunk_manager.h"

#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "chunk_manager_inside.h"

/* ---- Registration: the manager, its chunks, and the tables that grow with them. */

#define CHUNKS_FIRST    64 /* room at first; a power of two */
#define MOVES_AT_A_TIME 32 /* at most: two directions on each of three tiers stay far below FLIGHTS_MAX */

chunk_manager_settings chunk_manager_defaults(placement_policy policy) {
    return (chunk_manager_settings){.placement = placement_defaults(policy),
                                    .moments = {16384, 65536, 4},
                                    .timeout_ns = UINT64_C(600000000000),
                                    .moves_at_a_time = 4};
}

castor_status chunk_manager_create(chunk_manager **out, const chunk_backend *backend,
                                   const chunk_manager_settings *settings) {
    castor_status status = placement_settings_check(&settings->placement);
    if (status != CASTOR_OK)
        return status;
    if (backend->tiers < 2 || backend->tiers > TIERS_MAX || settings->moves_at_a_time == 0 ||
        settings->moves_at_a_time > MOVES_AT_A_TIME || settings->moments.moments_max == 0)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a chunk manager needs 2 or %d tiers, 1 to %d moves at a time and room for moments",
                         TIERS_MAX, MOVES_AT_A_TIME);
    uint64_t tables_bytes = moments_bytes(&settings->moments);
    chunk_manager *m = backend->allocate(backend->context, sizeof *m);
    void *tables = m ? backend->allocate(backend->context, tables_bytes) : NULL;
    if (!tables) {
        if (m)
            backend->deallocate(backend->context, m, sizeof *m);
        return error_set(CASTOR_ERR_MEMORY, "no memory for the chunk manager's tables: %B", tables_bytes);
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&m->lock, NULL);
    m->backend = *backend;
    m->settings = *settings;
    m->moments_tables = tables;
    moments_init(&m->moments, &settings->moments, tables, manager_now(m));
    *out = m;
    return CASTOR_OK;
}

/* Tables by chunk, in one block: chunks, then keys and winners of each tier, then those of moments. */
static uint64_t chunk_tables_bytes(const chunk_manager *m, uint32_t room) {
    return (uint64_t)room * (sizeof(managed_chunk) +
                             m->backend.tiers * (sizeof *m->victims->key + sizeof *m->victims->winner) +
                             (2 + MOMENT_RECORDINGS) * sizeof(uint32_t));
}

void chunk_manager_destroy(chunk_manager *m) {
    if (!m)
        return;
    chunk_backend b = m->backend;
    pthread_mutex_lock(&m->lock);
    uint64_t deadline = wait_deadline(m);
    while (m->flights_count && move_await(m, m->flights[0], deadline) != CASTOR_ERR_TIMEOUT)
        ;
    pthread_mutex_unlock(&m->lock);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    if (m->chunks)
        b.deallocate(b.context, m->chunks, chunk_tables_bytes(m, m->chunks_room));
    b.deallocate(b.context, m->moments_tables, moments_bytes(&m->settings.moments));
    b.deallocate(b.context, m, sizeof *m);
}

static castor_status grow_chunks(chunk_manager *m) {
    uint32_t room = m->chunks_room ? 2 * m->chunks_room : CHUNKS_FIRST;
    managed_chunk *old = m->chunks, *chunks = NULL;
    if (room < MOMENT_NONE / 2)
        chunks = m->backend.allocate(m->backend.context, chunk_tables_bytes(m, room));
    if (!chunks)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a table of %u chunks", room);
    if (old)
        memcpy(chunks, old, m->chunks_count * sizeof *chunks);
    uint64_t *keys = (uint64_t *)(chunks + room);
    uint32_t *winners = (uint32_t *)(keys + (uint64_t)m->backend.tiers * room);
    for (uint32_t tier = 0; tier < m->backend.tiers; tier++, keys += room, winners += room) {
        if (old)
            memcpy(keys, m->victims[tier].key, m->chunks_count * sizeof *keys);
        victims_init(&m->victims[tier], keys, winners, room);
    }
    moments_grow(&m->moments, winners, room);
    if (old)
        m->backend.deallocate(m->backend.context, old, chunk_tables_bytes(m, m->chunks_room));
    m->chunks = chunks;
    m->chunks_room = room;
    return CASTOR_OK;
}

castor_status chunk_manager_add_chunk(chunk_manager *m, chunk_kind kind, uint64_t bytes, uint32_t tier,
                                      uint32_t *chunk) {
    if (kind >= CHUNK_KIND_COUNT || tier >= m->backend.tiers || bytes == 0)
        return error_set(CASTOR_ERR_ARGUMENT, "a chunk of %B, kind %d, on tier %u: out of range", bytes,
                         (int)kind, tier);
    pthread_mutex_lock(&m->lock);
    castor_status status = m->chunks_count < m->chunks_room ? CASTOR_OK : grow_chunks(m);
    if (status == CASTOR_OK) {
        *chunk = m->chunks_count++;
        m->chunks[*chunk] = (managed_chunk){.bytes = bytes,
                                            .kind = (uint8_t)kind,
                                            .tier = (uint8_t)tier,
                                            .static_tier = 0,
                                            .dirty = tier == 0,
                                            .last_use = m->uses};
        moments_add_chunk(&m->moments);
        chunk_statistics_count(&m->statistics, kind, tier, bytes, 1);
        chunk_refresh(m, *chunk);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

castor_status chunk_manager_reuse_chunk(chunk_manager *m, uint32_t chunk, uint64_t bytes) {
    pthread_mutex_lock(&m->lock);
    moves_collect(m);
    managed_chunk *c = chunk < m->chunks_count ? &m->chunks[chunk] : NULL;
    castor_status status = CASTOR_OK;
    if (!c || bytes == 0 || c->users || c->pins || c->moving || c->loading) {
        status =
            error_set(CASTOR_ERR_ARGUMENT, "chunk %u cannot become one of %B: it is in use", chunk, bytes);
    } else {
        chunk_statistics_count(&m->statistics, c->kind, c->tier, c->bytes, -1);
        chunk_statistics_count(&m->statistics, c->kind, c->tier, bytes, 1);
        c->bytes = bytes;
        c->last_use = m->uses;
        c->prefetched = c->failed = false;
        c->dirty = c->tier == 0;
        moments_forget_chunk(&m->moments, chunk);
        chunk_refresh(m, chunk);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static void chunks_refresh(chunk_manager *m) {
    for (uint32_t chunk = 0; chunk < m->chunks_count; chunk++)
        chunk_refresh(m, chunk);
}

void chunk_manager_place(chunk_manager *m) {
    uint64_t offloaded[CHUNK_KIND_COUNT] = {0}, all[CHUNK_KIND_COUNT] = {0};
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->chunks_count; i++)
        all[m->chunks[i].kind] += m->chunks[i].bytes;
    for (uint32_t i = 0; i < m->chunks_count; i++) {
        managed_chunk *c = &m->chunks[i];
        c->static_tier =
            placement_offloads_next(&m->settings.placement, c->kind, offloaded[c->kind], all[c->kind]);
        offloaded[c->kind] += c->static_tier ? c->bytes : 0;
    }
    chunks_refresh(m);
    room_plan(m);
    pthread_mutex_unlock(&m->lock);
}

/* ---- */

/* An error: there is no such chunk. */
static castor_status chunk_known(const chunk_manager *m, uint32_t chunk) {
    if (chunk < m->chunks_count)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "chunk %u is not one of the %u that were registered", chunk,
                     m->chunks_count);
}

/* The peak of the moment that ends; the next one begins with what there is now. */
static uint64_t moment_peak(chunk_manager *m) {
    non_model_sample(m);
    uint64_t peak = m->non_model;
    m->non_model = 0;
    non_model_sample(m);
    return peak;
}

static uint64_t headroom(chunk_manager *m) {
    return placement_headroom(&m->settings.placement, m->backend.capacity_bytes(m->backend.context, 0));
}

void chunk_manager_event(chunk_manager *m, moment_event event, uint32_t identity) {
    pthread_mutex_lock(&m->lock);
    moves_collect(m);
    m->event_ns = manager_now(m);
    moments_verdict verdict =
        moments_begin(&m->moments, event, identity, m->event_ns, moment_peak(m), headroom(m));
    chunk_statistics_moment(&m->statistics, event);
    if (verdict.change == MOMENTS_ALL) {
        m->scan = 0;
        chunks_refresh(m);
    }
    const moment_use *uses = m->moments.recordings[m->moments.current].uses;
    for (uint32_t i = verdict.passed_first; i < verdict.passed_end; i++) {
        managed_chunk *c = &m->chunks[uses[i].chunk];
        if (c->prefetched && c->tier == 0 && m->moments.passed[uses[i].chunk] == i) {
            c->prefetched = false;
            m->statistics.wasted++;
        }
        chunk_refresh(m, uses[i].chunk);
    }
    room_plan(m);
    pthread_mutex_unlock(&m->lock);
}

void chunk_manager_step_end(chunk_manager *m) {
    pthread_mutex_lock(&m->lock);
    moves_collect(m);
    m->event_ns = manager_now(m);
    moments_step_end(&m->moments, m->event_ns, moment_peak(m), headroom(m));
    m->scan = 0;
    for (uint32_t chunk = 0; chunk < m->chunks_count; chunk++)
        m->chunks[chunk].failed = false;
    chunks_refresh(m);
    room_plan(m);
    pthread_mutex_unlock(&m->lock);
}

void chunk_manager_advance(chunk_manager *m) {
    pthread_mutex_lock(&m->lock);
    moves_collect(m);
    non_model_sample(m);
    room_plan(m);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void note_use(chunk_manager *m, uint32_t chunk, bool write) {
    managed_chunk *c = &m->chunks[chunk];
    c->prefetched = false;
    c->dirty |= write;
    c->last_use = ++m->uses;
    if (moments_use(&m->moments, chunk, write)) {
        chunk_refresh(m, chunk);
        return;
    }
    m->scan = 0;
    chunks_refresh(m);
}

/* Makes room, then moves. May release the lock meanwhile. */
static castor_status load(chunk_manager *m, uint32_t chunk, uint32_t tier, uint64_t deadline) {
    uint64_t freed = 0;
    m->chunks[chunk].loading = true;
    chunk_refresh(m, chunk);
    castor_status status = room_make(m, tier, chunk, deadline);
    if (status == CASTOR_OK)
        status = move_begin(m, chunk, tier);
    /* There is less room than the manager knows: victims leave until as much is free again. */
    while (status == CASTOR_ERR_MEMORY && freed < m->chunks[chunk].bytes) {
        uint32_t victim = victims_first(&m->victims[tier]);
        if (victim == VICTIM_NONE)
            break;
        if (victim_evict(m, victim) != CASTOR_OK)
            continue; /* it is no victim any more */
        freed += m->chunks[victim].bytes;
        while (m->chunks[victim].moving && (status = move_await(m, victim, deadline)) == CASTOR_OK)
            ;
        if (status != CASTOR_ERR_TIMEOUT)
            status = move_begin(m, chunk, tier);
    }
    m->chunks[chunk].loading = false;
    chunk_refresh(m, chunk);
    pthread_cond_broadcast(&m->changed);
    return status;
}

/* Until the chunk rests on tier 0. */
static castor_status arrive(chunk_manager *m, uint32_t chunk) {
    uint64_t deadline = wait_deadline(m);
    for (uint32_t failures = 0;;) {
        managed_chunk *c = &m->chunks[chunk];
        castor_status status;
        if (!c->moving && c->tier == 0)
            return CASTOR_OK;
        /* What has no room must not stay only because its move has not begun yet: that would depend on the disk's speed. */
        if (c->moving && c->to != 0 && room_possible(m, chunk) && move_cancel(m, chunk))
            continue;
        bool moves = c->moving;
        if (moves)
            status = move_await(m, chunk, deadline);
        else if (c->loading)
            status = change_await(m, chunk, deadline);
        else
            status = load(m, chunk, 0, deadline);
        if (status == CASTOR_ERR_TIMEOUT)
            return status;
        /* A move away that failed is all the better; a prefetch that failed is tried again, once. */
        if (status != CASTOR_OK && m->chunks[chunk].tier != 0 && !(moves && failures++ == 0))
            return status;
    }
}

castor_status chunk_manager_access(chunk_manager *m, uint32_t chunk, bool write) {
    pthread_mutex_lock(&m->lock);
    castor_status status = chunk_known(m, chunk);
    if (status == CASTOR_OK) {
        managed_chunk *c = &m->chunks[chunk];
        chunk_statistics *s = &m->statistics;
        bool there = c->tier == 0 && !c->moving, comes = c->moving && c->to == 0;
        s->accesses++;
        s->hits += there && c->prefetched;
        s->late += comes && c->prefetched;
        s->misses += !there && !comes;
        c->users++; /* from here on nobody moves it away */
        chunk_refresh(m, chunk);
        if (!there) {
            uint64_t begin = m->backend.now_ns(m->backend.context);
            status = arrive(m, chunk);
            s->stall_ns += m->backend.now_ns(m->backend.context) - begin;
        }
        if (status == CASTOR_OK) {
            note_use(m, chunk, write);
        } else {
            m->chunks[chunk].users--;
            chunk_refresh(m, chunk);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

castor_status chunk_manager_release(chunk_manager *m, uint32_t chunk) {
    pthread_mutex_lock(&m->lock);
    castor_status status = chunk_known(m, chunk);
    if (status == CASTOR_OK && m->chunks[chunk].users == 0)
        status =
            error_set(CASTOR_ERR_ARGUMENT, "chunk %u is released more often than it was accessed", chunk);
    if (status == CASTOR_OK) {
        m->chunks[chunk].users--;
        chunk_refresh(m, chunk);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* The chunk is on that tier, whatever the tables say. They stay wrong where the backend refuses the room. */
static bool believe(chunk_manager *m, uint32_t chunk, uint32_t tier) {
    managed_chunk *c = &m->chunks[chunk];
    chunk_backend *b = &m->backend;
    if (c->moving || c->loading || tier == c->tier || tier >= b->tiers ||
        b->room_take(b->context, chunk, tier, c->bytes) != CASTOR_OK)
        return false;
    b->room_give(b->context, chunk, c->tier, c->bytes);
    chunk_settle(m, chunk, tier);
    return true;
}

/* ... and nobody had said so. */
static void believe_late(chunk_manager *m, uint32_t chunk, uint32_t tier) {
    m->statistics.unnoticed += believe(m, chunk, tier);
}

void chunk_manager_touch(chunk_manager *m, uint32_t chunk, bool write) {
    pthread_mutex_lock(&m->lock);
    if (chunk < m->chunks_count) {
        if (m->chunks[chunk].moving && m->chunks[chunk].to != 0)
            move_cancel(m, chunk);
        believe_late(m, chunk, 0);
        note_use(m, chunk, write);
    }
    pthread_mutex_unlock(&m->lock);
}

void chunk_manager_resync(chunk_manager *m, uint32_t count) {
    pthread_mutex_lock(&m->lock);
    if (count > m->chunks_count)
        count = m->chunks_count;
    for (uint32_t i = 0; m->backend.residency && i < count; i++) {
        uint32_t chunk = m->resync_next < m->chunks_count ? m->resync_next : 0;
        m->resync_next = chunk + 1;
        if (!m->chunks[chunk].moving && !m->chunks[chunk].users)
            believe_late(m, chunk, m->backend.residency(m->backend.context, chunk));
    }
    pthread_mutex_unlock(&m->lock);
}

void chunk_manager_leave_again(chunk_manager *m, uint32_t chunk) {
    pthread_mutex_lock(&m->lock);
    managed_chunk *c = chunk < m->chunks_count ? &m->chunks[chunk] : NULL;
    if (c && c->tier != 0 && !c->users && believe(m, chunk, 0) && chunk_may_leave(m, chunk))
        victim_evict(m, chunk);
    pthread_mutex_unlock(&m->lock);
}

static castor_status may_move(const chunk_manager *m, uint32_t chunk, uint32_t tier) {
    const managed_chunk *c = &m->chunks[chunk];
    if (c->users || c->pins)
        return error_set(CASTOR_ERR_ARGUMENT, "chunk %u cannot move to tier %s: %u users, %u pins", chunk,
                         m->backend.tier_names[tier], c->users, c->pins);
    return CASTOR_OK;
}

castor_status chunk_manager_move(chunk_manager *m, uint32_t chunk, uint32_t tier) {
    pthread_mutex_lock(&m->lock);
    uint64_t deadline = wait_deadline(m);
    castor_status status = chunk_known(m, chunk);
    if (status == CASTOR_OK && tier >= m->backend.tiers)
        status = error_set(CASTOR_ERR_ARGUMENT, "tier %u: there are %u", tier, m->backend.tiers);
    while (status == CASTOR_OK) {
        managed_chunk *c = &m->chunks[chunk];
        if (c->moving) {
            status = move_await(m, chunk, deadline);
        } else if (c->loading) {
            status = change_await(m, chunk, deadline);
        } else if (c->tier == tier) {
            break;
        } else {
            status = may_move(m, chunk, tier);
            if (status == CASTOR_OK)
                status = load(m, chunk, tier, deadline);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static castor_status pin(chunk_manager *m, uint32_t chunk, bool more) {
    pthread_mutex_lock(&m->lock);
    castor_status status = chunk_known(m, chunk);
    if (status == CASTOR_OK && !more && m->chunks[chunk].pins == 0)
        status = error_set(CASTOR_ERR_ARGUMENT, "chunk %u is unpinned more often than it was pinned", chunk);
    if (status == CASTOR_OK) {
        m->chunks[chunk].pins += more ? 1u : -1u;
        chunk_refresh(m, chunk);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

castor_status chunk_manager_pin(chunk_manager *m, uint32_t chunk) {
    return pin(m, chunk, true);
}

castor_status chunk_manager_unpin(chunk_manager *m, uint32_t chunk) {
    return pin(m, chunk, false);
}

uint32_t chunk_manager_tier(chunk_manager *m, uint32_t chunk) {
    pthread_mutex_lock(&m->lock);
    uint32_t tier = chunk < m->chunks_count ? m->chunks[chunk].tier : 0;
    pthread_mutex_unlock(&m->lock);
    return tier;
}

uint64_t chunk_manager_key(chunk_manager *m, uint32_t chunk) {
    pthread_mutex_lock(&m->lock);
    uint64_t key = chunk < m->chunks_count ? chunk_key(m, chunk) : 0;
    pthread_mutex_unlock(&m->lock);
    return key;
}

uint64_t chunk_manager_next_use(chunk_manager *m, uint32_t chunk) {
    pthread_mutex_lock(&m->lock);
    uint64_t moment = chunk < m->chunks_count ? moments_next_use(&m->moments, chunk) : MOMENT_NEVER;
    pthread_mutex_unlock(&m->lock);
    return moment;
}

void chunk_manager_statistics(chunk_manager *m, chunk_statistics *out) {
    pthread_mutex_lock(&m->lock);
    *out = m->statistics;
    out->steps = m->moments.steps;
    out->warmups = m->moments.warmups;
    out->deviations = m->moments.deviations;
    pthread_mutex_unlock(&m->lock);
}

/* One word each (moments.h). */
static const char *const kind_words[CHUNK_KIND_COUNT] = {"parameter", "gradient", "state"};

bool chunk_manager_write_recording(chunk_manager *m, moments_sink *sink, void *context) {
    char line[128];
    pthread_mutex_lock(&m->lock);
    bool known = moments_known(&m->moments);
    if (known) {
        sink(context, line, log_format(line, sizeof line, "castor-moments 1\n"));
        for (uint32_t i = 0; i < m->chunks_count; i++)
            sink(context, line,
                 log_format(line, sizeof line, "chunk %u %s %llu\n", i, kind_words[m->chunks[i].kind],
                            (unsigned long long)m->chunks[i].bytes));
        moments_write(&m->moments, sink, context);
    }
    pthread_mutex_unlock(&m->lock);
    return known;
}

/* ---- The chunk manager's invariants, looked at from its tables. */

static castor_status wrong(uint32_t chunk, const char *what) {
    return error_set(CASTOR_ERR_MISMATCH, "chunk manager, chunk %u: %s", chunk, what);
}

typedef struct sums {
    uint64_t bytes[CHUNK_KIND_COUNT][TIERS_MAX], tier[TIERS_MAX], coming[TIERS_MAX], going[TIERS_MAX];
    uint32_t moving;
} sums;

static castor_status check_chunk(const chunk_manager *m, uint32_t chunk, sums *s) {
    const managed_chunk *c = &m->chunks[chunk];
    if (c->tier >= m->backend.tiers || c->static_tier >= m->backend.tiers)
        return wrong(chunk, "it is on no tier");
    s->bytes[c->kind][c->tier] += c->bytes;
    s->tier[c->tier] += c->bytes;
    if (c->moving) {
        uint32_t flights = 0;
        for (uint32_t i = 0; i < m->flights_count; i++)
            flights += m->flights[i] == chunk;
        if (flights != 1 || c->to == c->tier || c->to >= m->backend.tiers)
            return wrong(chunk, "its move is not one of those under way");
        s->bytes[c->kind][c->to] += c->bytes;
        s->tier[c->to] += c->bytes;
        s->coming[c->to] += c->bytes;
        s->going[c->tier] += c->bytes;
        s->moving++;
    } else if (c->waited) {
        return wrong(chunk, "a move is waited for that is over");
    }
    for (uint32_t tier = 0; tier < m->backend.tiers; tier++)
        if (m->victims[tier].key[chunk] != (tier == c->tier ? chunk_key(m, chunk) : 0))
            return wrong(chunk, "it is not where it belongs in the order of victims");
    return CASTOR_OK;
}

static castor_status check_victims(const chunk_manager *m, uint32_t tier) {
    const victims *v = &m->victims[tier];
    uint32_t first = victims_first(v), best = VICTIM_NONE;
    for (uint32_t chunk = 0; chunk < m->chunks_count; chunk++)
        if (v->key[chunk] && (best == VICTIM_NONE || v->key[chunk] > v->key[best]))
            best = chunk;
    return first == best ? CASTOR_OK : wrong(first, "another one should be the victim");
}

static castor_status check_sums(const chunk_manager *m, const sums *s) {
    if (s->moving != m->flights_count)
        return wrong(s->moving, "chunks move that do not");
    for (uint32_t tier = 0; tier < m->backend.tiers; tier++) {
        if (s->tier[tier] != m->statistics.tier_bytes[tier] || s->coming[tier] != m->coming[tier] ||
            s->going[tier] != m->going[tier])
            return wrong(tier, "so is the tier whose bytes are not the sum of its chunks'");
        for (uint32_t kind = 0; kind < CHUNK_KIND_COUNT; kind++)
            if (s->bytes[kind][tier] != m->statistics.bytes[kind][tier])
                return wrong(tier, "so is the tier whose bytes of a kind are not the sum of its chunks'");
    }
    return CASTOR_OK;
}

castor_status chunk_manager_check(chunk_manager *m) {
    sums s = {0};
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&m->lock);
    for (uint32_t chunk = 0; chunk < m->chunks_count && status == CASTOR_OK; chunk++)
        status = check_chunk(m, chunk, &s);
    if (status == CASTOR_OK)
        status = check_sums(m, &s);
    for (uint32_t tier = 0; tier < m->backend.tiers && status == CASTOR_OK; tier++)
        status = check_victims(m, tier);
    const char *moments = moments_check(&m->moments);
    if (status == CASTOR_OK && moments)
        status = error_set(CASTOR_ERR_MISMATCH, "chunk manager, moments: %s", moments);
    pthread_mutex_unlock(&m->lock);
    return status;
}
