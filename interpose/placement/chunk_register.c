/* Registration: the manager, its chunks, and the tables that grow with them. */
#include <string.h>
#include "core/error.h"
#include "chunk_manager_inside.h"

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
                                            .home = 0,
                                            .sharded = kind == CHUNK_PARAM,
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

castor_status chunk_manager_place(chunk_manager *m, bool *whole) {
    *whole = true;
    if (m->settings.placement.policy != PLACEMENT_STATIC)
        return CASTOR_OK;
    pthread_mutex_lock(&m->lock);
    castor_status status = CASTOR_OK;
    uint64_t bytes = m->chunks_count * sizeof(placement_chunk);
    placement_chunk *placed = bytes ? m->backend.allocate(m->backend.context, bytes) : NULL;
    if (bytes && !placed)
        status = error_set(CASTOR_ERR_MEMORY, "no memory to place %u chunks", m->chunks_count);
    if (placed) {
        for (uint32_t i = 0; i < m->chunks_count; i++)
            placed[i] = (placement_chunk){m->chunks[i].kind, m->chunks[i].bytes, 0, false};
        *whole = placement_static(&m->settings.placement, placed, m->chunks_count);
        for (uint32_t i = 0; i < m->chunks_count; i++) {
            m->chunks[i].home = (uint8_t)placed[i].tier;
            m->chunks[i].sharded = placed[i].sharded;
        }
        m->backend.deallocate(m->backend.context, placed, bytes);
        chunks_refresh(m);
        room_plan(m);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}
