#include "homes_inside.h"

#include "base/error.h"
#include "base/log.h"
#include "trace/trace.h"

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

static castor_status room_check(homes *h, device_tier to, uint64_t bytes) {
    if (tier_has_room(h, to, bytes))
        return CASTOR_OK;
    if (to == DEVICE_TIER_HOST)
        return error_set(CASTOR_ERR_MEMORY, "a home of %B cannot move to the host, which has %B left", bytes,
                         h->driver.host_room(h->driver.context));
    return error_set(CASTOR_ERR_MEMORY,
                     "a home of %B cannot move to device %d: homes have %B there, of a budget of %B", bytes,
                     h->device, tier_bytes(h, DEVICE_TIER_DEVICE), h->statistics.budget_bytes);
}

/* Gives back the pages of `moving`. */
static void moving_release(homes *h, uint32_t unit, uint32_t end) {
    for (uint32_t at = unit; at < end; at += piece_units(end - at)) {
        if (h->moving[at])
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
    status = v->map(v->context, h->device, address, bytes, h->moving[at]);
    if (status == CASTOR_OK) {
        h->pages[at] = h->moving[at];
        h->moving[at] = old;
    } else if (v->map(v->context, h->device, address, bytes, old) != CASTOR_OK) {
        v->release(v->context, old);
        h->pages[at] = 0;
        *lost = true;
    }
    return status;
}

/* All pieces change, or none does. */
static castor_status home_change(homes *h, uint32_t unit, uint32_t end) {
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
    r->tier = (uint8_t)to;
    tier_add(h, r, to);
    tier_show(h, unit, r->units, to);
    h->statistics.flips[to]++;
    h->statistics.flipped_bytes[to] += bytes;
    flip_record(to == DEVICE_TIER_DEVICE ? FLIP_TO_DEVICE
                : rescues                ? FLIP_RESCUE
                                         : FLIP_TO_HOST,
                begin_ns, bytes, (chunk_kind)r->kind, unit);
    return CASTOR_OK;
}

static castor_status flip_locked(homes *h, uint32_t unit, device_tier to) {
    home_record *r = &h->records[unit];
    if (r->tier == to)
        return CASTOR_OK;
    if (h->fixed)
        return error_set(CASTOR_ERR_UNSUPPORTED, "the driver of device %d moves no homes", h->device);
    if (r->stuck)
        return error_set(CASTOR_ERR_SYSTEM, "the home at %p is moved no more, since moving it has failed",
                         (void *)unit_address(h, unit));
    castor_status status = room_check(h, to, (uint64_t)r->units * h->unit_bytes);
    if (status != CASTOR_OK)
        return status;
    uint64_t begin_ns = h->driver.now_ns(h->driver.context);
    status = h->driver.drain(h->driver.context, h->device);
    if (status == CASTOR_OK)
        status = flip_drained(h, unit, to, false);
    h->statistics.flip_ns += h->driver.now_ns(h->driver.context) - begin_ns;
    return status;
}

castor_status home_flip(homes *h, uintptr_t address, device_tier to) {
    if ((unsigned)to >= DEVICE_TIER_COUNT)
        return error_set(CASTOR_ERR_ARGUMENT, "a home cannot move to tier %d", (int)to);
    pthread_mutex_lock(&h->lock);
    uint32_t unit = home_unit(h, address);
    castor_status status = unit == UINT32_MAX
                               ? error_set(CASTOR_ERR_ARGUMENT, "no home begins at %p", (void *)address)
                               : flip_locked(h, unit, to);
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* Homes of one kind. False: something is wrong that is no lack of memory, and the next ones would fail as well. `most` bytes are
 * known to be more than the host takes. */
static bool evict_kind(homes *h, chunk_kind kind, uint64_t bytes, uint64_t *freed, uint64_t *most) {
    for (uint32_t next = h->youngest[kind]; next && *freed < bytes; next = h->records[next - 1].older) {
        const home_record *r = &h->records[next - 1];
        uint64_t its = (uint64_t)r->units * h->unit_bytes;
        if (r->tier != DEVICE_TIER_DEVICE || r->stuck || its >= *most)
            continue;
        castor_status status = room_check(h, DEVICE_TIER_HOST, its);
        if (status == CASTOR_OK)
            status = flip_drained(h, next - 1, DEVICE_TIER_HOST, true);
        if (status == CASTOR_OK)
            *freed += its;
        else if (status == CASTOR_ERR_MEMORY)
            *most = its; /* a smaller one may find room */
        else
            return false;
    }
    return true;
}

uint64_t homes_evict(homes *h, uint64_t bytes) {
    static const chunk_kind order[CHUNK_KIND_COUNT] = {CHUNK_OPTIM, CHUNK_GRAD, CHUNK_PARAM};
    uint64_t freed = 0, most = UINT64_MAX;
    pthread_mutex_lock(&h->lock);
    if (bytes && homes_evictable(h)) {
        uint64_t begin_ns = h->driver.now_ns(h->driver.context);
        bool goes_on = h->driver.drain(h->driver.context, h->device) == CASTOR_OK;
        for (int i = 0; i < CHUNK_KIND_COUNT && goes_on; i++)
            goes_on = evict_kind(h, order[i], bytes, &freed, &most);
        h->statistics.rescues += freed != 0;
        if (freed)
            policy_rescued(h);
        h->statistics.flip_ns += h->driver.now_ns(h->driver.context) - begin_ns;
    }
    pthread_mutex_unlock(&h->lock);
    return freed;
}
