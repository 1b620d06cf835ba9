#include "homes_inside.h"

#include "base/error.h"
#include "base/log.h"
#include "trace/trace.h"

static void evictable_renew(homes *h) {
    uint64_t movable = h->fixed ? 0 : tier_bytes(h, DEVICE_TIER_DEVICE) - h->stuck_bytes;
    atomic_store_explicit(&h->evictable, movable, memory_order_relaxed);
}

void tier_add(homes *h, const home_record *r, device_tier tier) {
    uint64_t *bytes = &h->statistics.bytes[r->kind][tier], *peak = &h->statistics.peak_bytes[r->kind][tier];
    *bytes += (uint64_t)r->units * h->unit_bytes;
    *peak = *bytes > *peak ? *bytes : *peak;
    if (r->away && tier == DEVICE_TIER_HOST)
        h->statistics.away_bytes += (uint64_t)r->units * h->unit_bytes;
    evictable_renew(h);
}

void tier_subtract(homes *h, const home_record *r, device_tier tier) {
    uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
    h->statistics.bytes[r->kind][tier] -= bytes;
    if (r->away && tier == DEVICE_TIER_HOST)
        h->statistics.away_bytes -= bytes;
    if (r->stuck && tier == DEVICE_TIER_DEVICE)
        h->stuck_bytes -= bytes;
    uint64_t there = tier_bytes(h, DEVICE_TIER_DEVICE), budget = h->statistics.budget_bytes;
    if (there < h->allowed_bytes)
        h->allowed_bytes = there > budget ? there : budget;
    evictable_renew(h);
}

uint64_t budget_left(const homes *h) {
    uint64_t there = tier_bytes(h, DEVICE_TIER_DEVICE), budget = h->statistics.budget_bytes;
    return there < budget ? budget - there : 0;
}

bool tier_has_room(const homes *h, device_tier tier, uint64_t bytes) {
    if (tier == DEVICE_TIER_HOST)
        return bytes <= h->driver.host_room(h->driver.context);
    return bytes <= budget_left(h);
}

void tier_show(homes *h, uint32_t unit, uint32_t units, uint8_t shown) {
    for (uint32_t i = unit; i < unit + units; i++)
        atomic_store_explicit(&h->tiers[i], shown, memory_order_relaxed);
}

castor_status home_stick(homes *h, uint32_t unit, bool lost, castor_status status) {
    home_record *r = &h->records[unit];
    uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
    char why[256];
    log_message(why, sizeof why, "%s", error_text());
    if (!r->stuck && r->tier == DEVICE_TIER_DEVICE)
        h->stuck_bytes += bytes;
    r->stuck = true;
    evictable_renew(h);
    if (lost)
        return error_set(status, "the home of %B at %p is lost: %s. What touches it faults", bytes,
                         (void *)unit_address(h, unit), why);
    return error_set(status, "the home of %B at %p keeps its bytes but is moved no more: %s", bytes,
                     (void *)unit_address(h, unit), why);
}

/* What the report calls a flip, and why: ids of CHUNK records. */
typedef enum flip_event { FLIP_TO_DEVICE, FLIP_TO_HOST, FLIP_RESCUE, FLIP_EVENT_COUNT } flip_event;

static void flip_record(flip_event event, uint64_t begin_ns, uint64_t bytes, chunk_kind kind, uint32_t unit) {
    static const char *const names[FLIP_EVENT_COUNT] = {"home to device", "home to host",
                                                        "home to host, for an allocation"};
    trace_name_set(TRACE_CHUNK, event, names[event]);
    trace_record_write(TRACE_CHUNK, event, begin_ns, trace_now_ns(), bytes, kind, unit, 0);
}

static castor_status alias_reserve(homes *h) {
    if (h->alias)
        return CASTOR_OK;
    return h->driver.reserve(h->driver.context, h->device, HOMES_PIECE_UNITS * h->unit_bytes, h->unit_bytes,
                             &h->alias);
}

castor_status room_check(homes *h, device_tier to, uint64_t bytes) {
    if (tier_has_room(h, to, bytes))
        return CASTOR_OK;
    if (to == DEVICE_TIER_HOST)
        return error_set(CASTOR_ERR_MEMORY, "a home of %B cannot move to the host, which has %B left", bytes,
                         h->driver.host_room(h->driver.context));
    return error_set(CASTOR_ERR_MEMORY,
                     "a home of %B cannot move to device %d: homes have %B there, of a budget of %B", bytes,
                     h->device, tier_bytes(h, DEVICE_TIER_DEVICE), h->statistics.budget_bytes);
}

void moving_release(homes *h, uint32_t unit, uint32_t end) {
    for (uint32_t at = unit; at < end; at += piece_units(end - at)) {
        if (h->moving[at] && h->moving[at] != h->shared[at])
            h->driver.release(h->driver.context, h->moving[at]);
        h->moving[at] = 0;
    }
}

static castor_status moving_create(homes *h, uint32_t unit, uint32_t end, device_tier to) {
    for (uint32_t at = unit, n; at < end; at += n) {
        n = piece_units(end - at);
        castor_status status =
            h->driver.create(h->driver.context, h->device, to, n * h->unit_bytes, &h->moving[at]);
        if (status != CASTOR_OK) {
            h->moving[at] = 0;
            return status;
        }
    }
    return CASTOR_OK;
}

/* The home's bytes into the pages of `moving`. */
static castor_status moving_fill(homes *h, uint32_t unit, uint32_t end) {
    const device_driver *v = &h->driver;
    for (uint32_t at = unit, n; at < end; at += n) {
        n = piece_units(end - at);
        size_t bytes = n * h->unit_bytes;
        castor_status status = v->map(v->context, h->device, h->alias, bytes, h->moving[at]);
        if (status != CASTOR_OK)
            return status;
        status = v->copy(v->context, h->device, h->alias, unit_address(h, at), bytes);
        castor_status after = v->unmap(v->context, h->alias, bytes);
        /* Once more; a range that cannot be cleared serves no further flip. */
        if (after != CASTOR_OK && v->unmap(v->context, h->alias, bytes) != CASTOR_OK)
            h->alias = 0;
        if (status != CASTOR_OK || after != CASTOR_OK)
            return status != CASTOR_OK ? status : after;
    }
    return CASTOR_OK;
}

castor_status piece_map(homes *h, uint32_t at, size_t bytes, uint64_t pages) {
    const device_driver *v = &h->driver;
    castor_status status = v->map(v->context, h->device, unit_address(h, at), bytes, pages);
    if (status != CASTOR_OK || pages != h->shared[at])
        return status;
    status = v->read_only(v->context, h->device, unit_address(h, at), bytes);
    if (status != CASTOR_OK && v->unmap(v->context, unit_address(h, at), bytes) == CASTOR_OK)
        return status;
    return CASTOR_OK; /* it is mapped, for better or worse */
}

/* The pages of `pages` and `moving` change places in the mapping: done once more it undoes itself. On failure nothing has changed,
 * or *lost is set and the piece has no pages. */
static castor_status piece_change(homes *h, uint32_t at, uint32_t units, bool *lost) {
    const device_driver *v = &h->driver;
    uintptr_t address = unit_address(h, at);
    size_t bytes = units * h->unit_bytes;
    uint64_t old = h->pages[at];
    castor_status status = v->unmap(v->context, address, bytes);
    if (status != CASTOR_OK)
        return status;
    status = piece_map(h, at, bytes, h->moving[at]);
    if (status == CASTOR_OK) {
        h->pages[at] = h->moving[at];
        h->moving[at] = old;
    } else if (piece_map(h, at, bytes, old) != CASTOR_OK) {
        if (old != h->shared[at])
            v->release(v->context, old);
        h->pages[at] = 0;
        *lost = true;
    }
    return status;
}

castor_status home_change(homes *h, uint32_t unit, uint32_t end) {
    castor_status status = CASTOR_OK;
    bool lost = false, stuck = false;
    uint32_t at, n;
    for (at = unit; at < end; at += n) {
        n = piece_units(end - at);
        status = piece_change(h, at, n, &lost);
        if (status != CASTOR_OK)
            break;
    }
    if (status == CASTOR_OK)
        return CASTOR_OK;
    for (uint32_t back = unit; back < at; back += n) {
        n = piece_units(end - back);
        stuck |= piece_change(h, back, n, &lost) != CASTOR_OK;
    }
    return stuck || lost ? home_stick(h, unit, lost, status) : status;
}

castor_status flip_drained(homes *h, uint32_t unit, device_tier to, bool rescues) {
    home_record *r = &h->records[unit];
    uint64_t begin_ns = trace_now_ns();
    uint32_t end = unit + r->units;
    uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
    castor_status status = alias_reserve(h);
    if (status == CASTOR_OK)
        status = moving_create(h, unit, end, to);
    if (status == CASTOR_OK)
        status = moving_fill(h, unit, end);
    if (status == CASTOR_OK)
        status = home_change(h, unit, end);
    moving_release(h, unit, end);
    if (status != CASTOR_OK)
        return status;
    tier_subtract(h, r, r->tier);
    joined_end(h, unit);
    r->tier = (uint8_t)to;
    tier_add(h, r, to);
    tier_show(h, unit, r->units, (uint8_t)(to + 1));
    h->statistics.flips[to]++;
    h->statistics.flipped_bytes[to] += bytes;
    flip_record(to == DEVICE_TIER_DEVICE ? FLIP_TO_DEVICE
                : rescues                ? FLIP_RESCUE
                                         : FLIP_TO_HOST,
                begin_ns, bytes, (chunk_kind)r->kind, unit);
    return CASTOR_OK;
}
