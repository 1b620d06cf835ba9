/* The chunk manager's invariants, looked at from its tables. */
#include "core/error.h"
#include "chunk_manager_inside.h"

static castor_status wrong(uint32_t chunk, const char *what) {
    return error_set(CASTOR_ERR_MISMATCH, "chunk manager, chunk %u: %s", chunk, what);
}

typedef struct sums {
    uint64_t bytes[CHUNK_KIND_COUNT][TIERS_MAX], tier[TIERS_MAX], coming[TIERS_MAX], going[TIERS_MAX];
    uint32_t moving;
} sums;

static castor_status check_chunk(const chunk_manager *m, uint32_t chunk, sums *s) {
    const managed_chunk *c = &m->chunks[chunk];
    if (c->tier >= m->backend.tiers || c->home >= m->backend.tiers)
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
