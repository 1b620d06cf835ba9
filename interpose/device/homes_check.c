#include "homes_inside.h"

#include "core/error.h"

typedef struct sums {
    uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT], count[CHUNK_KIND_COUNT];
    uint64_t units, stuck_bytes;
} sums;

static castor_status wrong(const homes *h, uint32_t unit, const char *what) {
    return error_set(CASTOR_ERR_MISMATCH, "homes of device %d, unit %u: %s", h->device, unit, what);
}

static castor_status check_home(const homes *h, chunk_kind kind, uint32_t unit, sums *s) {
    const home_record *r = &h->records[unit];
    bool fixed = unit >= h->range_units;
    if (!r->units || r->units > (fixed ? h->units : h->range_units) - unit || r->kind != kind ||
        r->tier >= DEVICE_TIER_COUNT || fixed != (h->fixed && r->tier == DEVICE_TIER_HOST))
        return wrong(h, unit, "no such home can be");
    castor_status status = fixed ? fixed_check(h, unit) : CASTOR_OK;
    if (status != CASTOR_OK)
        return status;
    uint32_t next_piece = unit, end = unit + r->units;
    for (uint32_t at = unit; at < end; at++) {
        if (h->owner[at] != unit + 1)
            return wrong(h, at, "two homes share it, or none knows it");
        if (atomic_load_explicit(&h->tiers[at], memory_order_relaxed) != r->tier + 1)
            return wrong(h, at, "look-ups show another tier than the home has");
        if (h->moving[at])
            return wrong(h, at, "pages are left from a flip");
        if (at == next_piece) {
            next_piece += fixed ? end - at : piece_units(end - at);
            if (!h->pages[at] && !r->stuck)
                return wrong(h, at, "a piece has no pages");
        } else if (h->pages[at]) {
            return wrong(h, at, "pages inside of a piece");
        }
    }
    uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
    s->bytes[kind][r->tier] += bytes;
    s->count[kind]++;
    s->units += r->units;
    if (r->stuck && r->tier == DEVICE_TIER_DEVICE)
        s->stuck_bytes += bytes;
    return CASTOR_OK;
}

static castor_status check_kind(const homes *h, chunk_kind kind, sums *s) {
    uint32_t younger = 0;
    for (uint32_t next = h->youngest[kind]; next; next = h->records[next - 1].older) {
        if (next > h->units || h->records[next - 1].younger != younger || s->units > h->units)
            return wrong(h, next - 1, "the order of homes is broken");
        castor_status status = check_home(h, kind, next - 1, s);
        if (status != CASTOR_OK)
            return status;
        younger = next;
    }
    return CASTOR_OK;
}

/* Units without a home. */
static castor_status check_free(const homes *h, const sums *s) {
    uint64_t owned = 0;
    for (uint32_t unit = 0; unit < h->units; unit++) {
        if (h->owner[unit] && h->owner[unit] != OWNER_GIVEN_UP)
            owned++;
        else if (h->pages[unit] || h->moving[unit] || h->records[unit].units ||
                 atomic_load_explicit(&h->tiers[unit], memory_order_relaxed))
            return wrong(h, unit, "a table shows a home where none is");
        if (unit >= h->range_units && !h->owner[unit] && h->fixed_addresses[unit - h->range_units])
            return wrong(h, unit, "it has an address where no home is");
        if (!h->owner[unit] && unit < h->hints[unit >= h->range_units])
            return wrong(h, unit, "the search overlooks it");
    }
    return owned == s->units ? CASTOR_OK : wrong(h, 0, "units belong to homes that do not exist");
}

static castor_status check_sums(const homes *h, const sums *s) {
    uint64_t there = 0;
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
            if (s->bytes[kind][tier] != h->statistics.bytes[kind][tier] ||
                s->bytes[kind][tier] > h->statistics.peak_bytes[kind][tier])
                return error_set(CASTOR_ERR_MISMATCH,
                                 "homes of device %d: %B of kind %d on tier %d, counted are %B, peak %B",
                                 h->device, s->bytes[kind][tier], kind, tier, h->statistics.bytes[kind][tier],
                                 h->statistics.peak_bytes[kind][tier]);
        if (s->count[kind] != h->statistics.count[kind])
            return wrong(h, 0, "homes are miscounted");
        there += s->bytes[kind][DEVICE_TIER_DEVICE];
    }
    if (s->stuck_bytes != h->stuck_bytes || homes_evictable(h) != (h->fixed ? 0 : there - h->stuck_bytes))
        return wrong(h, 0, "the bytes that can be evicted are miscounted");
    if (there > h->allowed_bytes)
        return error_set(CASTOR_ERR_MISMATCH, "homes of device %d: %B on the device, %B are allowed",
                         h->device, there, h->allowed_bytes);
    return CASTOR_OK;
}

castor_status homes_check(homes *h) {
    sums s = {0};
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&h->lock);
    for (int kind = 0; kind < CHUNK_KIND_COUNT && status == CASTOR_OK; kind++)
        status = check_kind(h, (chunk_kind)kind, &s);
    if (status == CASTOR_OK)
        status = check_free(h, &s);
    if (status == CASTOR_OK)
        status = check_sums(h, &s);
    pthread_mutex_unlock(&h->lock);
    return status;
}
