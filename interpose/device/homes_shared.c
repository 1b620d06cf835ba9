/* Shared pages (homes.h): one rank of a node makes them, the others take them, and homes whose bytes are theirs have them instead of their own. */
#include "homes_inside.h"

#include <unistd.h>
#include "base/error.h"
#include "base/log.h"

uint32_t homes_joined;

static uint32_t pieces_of(uint32_t units) {
    uint32_t count = 0;
    for (uint32_t at = 0; at < units; at += piece_units(units - at))
        count++;
    return count;
}

static uint64_t bytes_of(const homes *h, const home_record *r) {
    return (uint64_t)r->units * h->unit_bytes;
}

void joined_end(homes *h, uint32_t unit) {
    home_record *r = &h->records[unit];
    if (!r->joined)
        return;
    r->joined = false;
    if (r->taken)
        h->statistics.taken_bytes -= bytes_of(h, r);
    else
        h->statistics.beside_bytes += bytes_of(h, r);
    __atomic_sub_fetch(&homes_joined, 1, __ATOMIC_RELAXED);
}

/* Unmaps what lies beside, up to a unit, and gives the pages back. */
static castor_status beside_unmap(homes *h, uint32_t unit, uint32_t stop) {
    const device_driver *v = &h->driver;
    const home_record *r = &h->records[unit];
    for (uint32_t at = unit, n; at < stop; at += n) {
        n = piece_units(unit + r->units - at);
        if (!h->shared[at])
            continue;
        castor_status status =
            v->unmap(v->context, r->beside + (uintptr_t)(at - unit) * h->unit_bytes, n * h->unit_bytes);
        if (status != CASTOR_OK)
            return status;
        v->release(v->context, h->shared[at]);
        h->shared[at] = 0;
    }
    return CASTOR_OK;
}

castor_status shared_end(homes *h, uint32_t unit) {
    home_record *r = &h->records[unit];
    if (!r->beside)
        return CASTOR_OK;
    if (!r->taken)
        h->statistics.beside_bytes -= bytes_of(h, r);
    r->taken = true; /* it counts no more, whether the rest succeeds or not */
    castor_status status = beside_unmap(h, unit, unit + r->units);
    if (status == CASTOR_OK)
        status = h->driver.unreserve(h->driver.context, r->beside, (size_t)r->units * h->unit_bytes);
    if (status == CASTOR_OK)
        r->beside = 0;
    return status;
}

/* The pages of a piece: made here, for *descriptor, or taken by it. */
static castor_status piece_get(homes *h, size_t bytes, uint64_t *pages, bool takes, int *descriptor) {
    const device_driver *v = &h->driver;
    return takes ? v->take_shared(v->context, h->device, *descriptor, pages)
                 : v->create_shared(v->context, h->device, bytes, pages, descriptor);
}

/* Pages for all pieces, mapped beside. *done: so many descriptors were made. */
static castor_status beside_map(homes *h, uint32_t unit, bool takes, int *descriptors, uint32_t *done) {
    const device_driver *v = &h->driver;
    const home_record *r = &h->records[unit];
    uint32_t end = unit + r->units;
    for (uint32_t at = unit, n; at < end; at += n) {
        n = piece_units(end - at);
        size_t bytes = n * h->unit_bytes;
        uint64_t pages = 0;
        castor_status status = piece_get(h, bytes, &pages, takes, &descriptors[*done]);
        if (status != CASTOR_OK)
            return status;
        ++*done;
        uintptr_t beside = r->beside + (uintptr_t)(at - unit) * h->unit_bytes;
        status = v->map(v->context, h->device, beside, bytes, pages);
        if (status != CASTOR_OK) {
            v->release(v->context, pages);
            return status;
        }
        h->shared[at] = pages;
        if (!takes)
            status = v->copy(v->context, h->device, beside, unit_address(h, at), bytes);
        if (status != CASTOR_OK)
            return status;
    }
    return CASTOR_OK;
}

static castor_status share_check(homes *h, uint32_t unit, bool takes) {
    const home_record *r = &h->records[unit];
    uint64_t bytes = bytes_of(h, r);
    if (h->fixed || !h->driver.create_shared)
        return error_set(CASTOR_ERR_UNSUPPORTED, "the driver of device %d shares no pages", h->device);
    if (r->stuck || r->beside)
        return error_set(CASTOR_ERR_ARGUMENT, "the home at %p has shared pages, or is moved no more",
                         (void *)unit_address(h, unit));
    if (!takes && !tier_has_room(h, DEVICE_TIER_HOST, bytes))
        return room_check(h, DEVICE_TIER_HOST, bytes);
    return CASTOR_OK;
}

static castor_status share(homes *h, uint32_t unit, bool takes, int *descriptors) {
    home_record *r = &h->records[unit];
    uint32_t made = 0;
    castor_status status = share_check(h, unit, takes);
    if (status == CASTOR_OK)
        status = h->driver.reserve(h->driver.context, h->device, (size_t)r->units * h->unit_bytes,
                                   h->unit_bytes, &r->beside);
    if (status != CASTOR_OK)
        return status;
    r->taken = takes;
    if (!takes)
        h->statistics.beside_bytes += bytes_of(h, r);
    status = beside_map(h, unit, takes, descriptors, &made);
    if (status == CASTOR_OK)
        return CASTOR_OK;
    char why[256]; /* undoing may fail and set the text as well */
    log_message(why, sizeof why, "%s", error_text());
    for (uint32_t i = 0; i < made && !takes; i++)
        close(descriptors[i]);
    shared_end(h, unit); /* what cannot be undone stays reserved, and the home is shared no more */
    return error_set(status, "%s", why);
}

/* Runs `what` for the home that begins there. */
#define WITH_HOME(h, address, what)                                                                          \
    do {                                                                                                     \
        pthread_mutex_lock(&(h)->lock);                                                                      \
        uint32_t unit = home_unit(h, address);                                                               \
        castor_status status =                                                                               \
            unit == UINT32_MAX ? error_set(CASTOR_ERR_ARGUMENT, "no home begins at %p", (void *)(address))   \
                               : (what);                                                                     \
        pthread_mutex_unlock(&(h)->lock);                                                                    \
        return status;                                                                                       \
    } while (0)

castor_status home_offer(homes *h, uintptr_t address, int *descriptors) {
    WITH_HOME(h, address, share(h, unit, false, descriptors));
}

castor_status home_take(homes *h, uintptr_t address, const int *descriptors) {
    WITH_HOME(h, address, share(h, unit, true, (int *)(uintptr_t)descriptors)); /* which are only read */
}

static castor_status join(homes *h, uint32_t unit) {
    home_record *r = &h->records[unit];
    uint32_t end = unit + r->units;
    if (r->joined || !r->beside || r->stuck)
        return error_set(CASTOR_ERR_ARGUMENT, "the home at %p cannot be joined to pages that ranks share",
                         (void *)unit_address(h, unit));
    castor_status status = h->driver.drain(h->driver.context, h->device);
    if (status != CASTOR_OK)
        return status;
    for (uint32_t at = unit; at < end; at += piece_units(end - at))
        h->moving[at] = h->shared[at];
    status = home_change(h, unit, end);
    moving_release(h, unit, end);
    if (status != CASTOR_OK)
        return status;
    tier_subtract(h, r, r->tier);
    r->tier = DEVICE_TIER_HOST;
    r->joined = true;
    tier_add(h, r, DEVICE_TIER_HOST);
    if (r->taken)
        h->statistics.taken_bytes += bytes_of(h, r);
    else
        h->statistics.beside_bytes -= bytes_of(h, r);
    __atomic_add_fetch(&homes_joined, 1, __ATOMIC_RELAXED);
    tier_show(h, unit, r->units, TIER_JOINED);
    return CASTOR_OK;
}

castor_status home_join(homes *h, uintptr_t address) {
    WITH_HOME(h, address, join(h, unit));
}

static castor_status leave(homes *h, uint32_t unit, bool on_host) {
    const home_record *r = &h->records[unit];
    uint64_t bytes = bytes_of(h, r);
    if (!r->joined)
        return CASTOR_OK;
    castor_status status = h->driver.drain(h->driver.context, h->device);
    if (status != CASTOR_OK)
        return status;
    status = CASTOR_ERR_MEMORY;
    if (!on_host && !r->away && tier_has_room(h, DEVICE_TIER_DEVICE, bytes))
        status = flip_drained(h, unit, DEVICE_TIER_DEVICE, false);
    if (status == CASTOR_ERR_MEMORY)
        status = room_check(h, DEVICE_TIER_HOST, bytes);
    if (status == CASTOR_OK && r->joined)
        status = flip_drained(h, unit, DEVICE_TIER_HOST, false);
    return status;
}

castor_status home_leave(homes *h, uintptr_t address, bool on_host) {
    WITH_HOME(h, address, leave(h, unit, on_host));
}

static castor_status part(homes *h, uint32_t unit) {
    if (h->records[unit].joined)
        return error_set(CASTOR_ERR_ARGUMENT, "the home at %p has the pages that ranks share",
                         (void *)unit_address(h, unit));
    return shared_end(h, unit);
}

castor_status home_part(homes *h, uintptr_t address) {
    WITH_HOME(h, address, part(h, unit));
}

uint32_t home_pieces(homes *h, uintptr_t address) {
    pthread_mutex_lock(&h->lock);
    uint32_t unit = home_unit(h, address);
    uint32_t count = unit == UINT32_MAX ? 0 : pieces_of(h->records[unit].units);
    pthread_mutex_unlock(&h->lock);
    return count;
}

uintptr_t home_beside(homes *h, uintptr_t address) {
    uintptr_t beside = 0;
    pthread_mutex_lock(&h->lock);
    uint32_t unit = homes_unit(h, address), owner = unit == HOMES_NO_UNIT ? 0 : h->owner[unit];
    if (owner && owner != OWNER_GIVEN_UP && h->records[owner - 1].beside)
        beside = h->records[owner - 1].beside + (address - unit_address(h, owner - 1));
    pthread_mutex_unlock(&h->lock);
    return beside;
}

bool home_is_joined(const homes *h, uintptr_t address) {
    uint32_t unit = homes_unit(h, address);
    return unit != HOMES_NO_UNIT &&
           atomic_load_explicit(&h->tiers[unit], memory_order_relaxed) == TIER_JOINED;
}
