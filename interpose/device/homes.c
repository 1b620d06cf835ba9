#include "homes_inside.h"

#include <string.h>
#include <sys/mman.h>
#include "core/error.h"
#include "core/log.h"

static size_t table_place(size_t *total, size_t bytes) {
    size_t place = *total;
    *total += (bytes + 63) & ~(size_t)63;
    return place;
}

castor_status homes_create(homes **out, const device_driver *driver, int device, uintptr_t address,
                           uint64_t reserved_bytes, uint64_t budget_bytes) {
    size_t unit_bytes = driver->granularity(driver->context, device);
    if (!unit_bytes)
        return CASTOR_ERR_UNSUPPORTED; /* the driver has set the text */
    uint64_t units = reserved_bytes / unit_bytes;
    if (!units || units >= OWNER_GIVEN_UP / 2 || reserved_bytes % unit_bytes || address % unit_bytes)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "%B at %p for homes are not whole units of %zu bytes, one or more", reserved_bytes,
                         (void *)address, unit_bytes);
    bool fixed = !driver->maps_host(driver->context, device);
    uint32_t range_units = (uint32_t)units;
    if (fixed)
        units *= 2;
    size_t total = 0;
    table_place(&total, sizeof(homes));
    size_t owner = table_place(&total, units * sizeof(uint32_t));
    size_t records = table_place(&total, units * sizeof(home_record));
    size_t pages = table_place(&total, units * sizeof(uint64_t));
    size_t moving = table_place(&total, units * sizeof(uint64_t));
    size_t tiers = table_place(&total, units);
    char *all = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the tables of homes, %B of addresses",
                         (uint64_t)total);
    homes *h = (homes *)all;
    pthread_mutex_init(&h->lock, NULL);
    h->driver = *driver;
    h->device = device;
    h->address = address;
    h->unit_bytes = unit_bytes;
    h->mapped_bytes = total;
    h->units = (uint32_t)units;
    h->range_units = range_units;
    h->hints[1] = range_units;
    h->fixed = fixed;
    h->owner = (uint32_t *)(all + owner);
    h->records = (home_record *)(all + records);
    h->pages = (uint64_t *)(all + pages);
    h->moving = (uint64_t *)(all + moving);
    h->tiers = (_Atomic uint8_t *)(all + tiers);
    h->statistics.budget_bytes = h->allowed_bytes = budget_bytes;
    castor_status status = fixed ? fixed_tables_make(h) : CASTOR_OK;
    if (status != CASTOR_OK) {
        munmap(all, total);
        return status;
    }
    *out = h;
    return CASTOR_OK;
}

void homes_budget_set(homes *h, uint64_t budget_bytes) {
    pthread_mutex_lock(&h->lock);
    uint64_t there = tier_bytes(h, DEVICE_TIER_DEVICE);
    h->statistics.budget_bytes = budget_bytes;
    h->allowed_bytes = there > budget_bytes ? there : budget_bytes;
    pthread_mutex_unlock(&h->lock);
}

/* ---- tables ---- */

uint32_t home_unit(const homes *h, uintptr_t address) {
    uint32_t unit = homes_unit(h, address);
    return unit == HOMES_NO_UNIT || address % h->unit_bytes || h->owner[unit] != unit + 1 ? UINT32_MAX : unit;
}

static void evictable_renew(homes *h) {
    uint64_t movable = h->fixed ? 0 : tier_bytes(h, DEVICE_TIER_DEVICE) - h->stuck_bytes;
    atomic_store_explicit(&h->evictable, movable, memory_order_relaxed);
}

void tier_add(homes *h, const home_record *r, device_tier tier) {
    uint64_t *bytes = &h->statistics.bytes[r->kind][tier], *peak = &h->statistics.peak_bytes[r->kind][tier];
    *bytes += (uint64_t)r->units * h->unit_bytes;
    *peak = *bytes > *peak ? *bytes : *peak;
    evictable_renew(h);
}

void tier_subtract(homes *h, const home_record *r, device_tier tier) {
    uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
    h->statistics.bytes[r->kind][tier] -= bytes;
    if (r->stuck && tier == DEVICE_TIER_DEVICE)
        h->stuck_bytes -= bytes;
    uint64_t there = tier_bytes(h, DEVICE_TIER_DEVICE), budget = h->statistics.budget_bytes;
    if (there < h->allowed_bytes)
        h->allowed_bytes = there > budget ? there : budget;
    evictable_renew(h);
}

bool tier_has_room(const homes *h, device_tier tier, uint64_t bytes) {
    if (tier == DEVICE_TIER_HOST)
        return bytes <= h->driver.host_room(h->driver.context);
    uint64_t there = tier_bytes(h, DEVICE_TIER_DEVICE), budget = h->statistics.budget_bytes;
    return there <= budget && bytes <= budget - there;
}

void tier_show(homes *h, uint32_t unit, uint32_t units, device_tier tier) {
    uint8_t shown = tier == DEVICE_TIER_COUNT ? 0 : (uint8_t)(tier + 1);
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

static void record_add(homes *h, uint32_t unit, uint32_t units, chunk_kind kind, device_tier tier) {
    home_record *r = &h->records[unit];
    *r = (home_record){
        .units = units, .older = h->youngest[kind], .kind = (uint8_t)kind, .tier = (uint8_t)tier};
    if (r->older)
        h->records[r->older - 1].younger = unit + 1;
    h->youngest[kind] = unit + 1;
    for (uint32_t i = unit; i < unit + units; i++)
        h->owner[i] = unit + 1;
    if (unit == *unit_hint(h, unit))
        *unit_hint(h, unit) += units;
    h->statistics.count[kind]++;
    tier_add(h, r, tier);
    tier_show(h, unit, units, tier);
}

static void record_remove(homes *h, uint32_t unit) {
    home_record *r = &h->records[unit];
    tier_show(h, unit, r->units, DEVICE_TIER_COUNT);
    tier_subtract(h, r, r->tier);
    h->statistics.count[r->kind]--;
    if (r->older)
        h->records[r->older - 1].younger = r->younger;
    if (r->younger)
        h->records[r->younger - 1].older = r->older;
    else
        h->youngest[r->kind] = r->older;
    memset(&h->owner[unit], 0, r->units * sizeof *h->owner);
    uint32_t *hint = unit_hint(h, unit);
    *hint = unit < *hint ? unit : *hint;
    *r = (home_record){0};
}

/* The first free units, so many in a row, for a home of the tier; UINT32_MAX: there are none, and `longest` is how many there are in a
 * row. */
static uint32_t units_find(homes *h, device_tier tier, uint32_t units, uint32_t *longest) {
    bool fixed = h->fixed && tier == DEVICE_TIER_HOST, seen = false;
    uint32_t unit = h->hints[fixed], last = fixed ? h->units : h->range_units;
    *longest = 0;
    while (unit < last) {
        uint32_t owner = h->owner[unit];
        if (owner) {
            unit = owner == OWNER_GIVEN_UP ? unit + 1 : owner - 1 + h->records[owner - 1].units;
            continue;
        }
        if (!seen)
            h->hints[fixed] = unit;
        seen = true;
        uint32_t end = unit;
        while (end < last && !h->owner[end] && end - unit < units)
            end++;
        if (end - unit == units)
            return unit;
        *longest = end - unit > *longest ? end - unit : *longest;
        unit = end;
    }
    return UINT32_MAX;
}

/* ---- birth ---- */

/* Takes back what home_back did, up to a unit. Where that fails too the addresses stay taken. */
static void back_undo(homes *h, uint32_t unit, uint32_t units, uint32_t stop) {
    for (uint32_t at = unit, n; at < stop; at += n) {
        n = piece_units(unit + units - at);
        if (h->driver.unmap(h->driver.context, unit_address(h, at), n * h->unit_bytes) != CASTOR_OK)
            for (uint32_t i = at; i < at + n; i++)
                h->owner[i] = OWNER_GIVEN_UP;
        h->driver.release(h->driver.context, h->pages[at]);
        h->pages[at] = 0;
    }
}

/* Pages of a tier for a range. */
static castor_status home_back(homes *h, uint32_t unit, uint32_t units, device_tier tier) {
    const device_driver *v = &h->driver;
    for (uint32_t at = unit, n; at < unit + units; at += n) {
        n = piece_units(unit + units - at);
        size_t bytes = n * h->unit_bytes;
        castor_status status = v->create(v->context, h->device, tier, bytes, &h->pages[at]);
        if (status == CASTOR_OK) {
            status = v->map(v->context, h->device, unit_address(h, at), bytes, h->pages[at]);
            if (status != CASTOR_OK)
                v->release(v->context, h->pages[at]);
        }
        if (status != CASTOR_OK) {
            char why[256]; /* undoing may fail and set the text as well */
            log_message(why, sizeof why, "%s", error_text());
            h->pages[at] = 0;
            back_undo(h, unit, units, at);
            return error_set(status, "%s", why);
        }
    }
    return CASTOR_OK;
}

static castor_status no_room(homes *h, chunk_kind kind, uint64_t bytes) {
    uint64_t free_bytes = 0, total_bytes = 0, budget = h->statistics.budget_bytes;
    h->driver.room(h->driver.context, h->device, &free_bytes, &total_bytes);
    return error_set(
        CASTOR_ERR_MEMORY,
        "no room for a home of %B (%s): homes have %B of device %d (budget %B, free %B), and the host has %B "
        "left. Give the device a larger budget, or this job more host memory",
        bytes, chunk_kind_names[kind], tier_bytes(h, DEVICE_TIER_DEVICE), h->device,
        budget < total_bytes ? budget : total_bytes, free_bytes, h->driver.host_room(h->driver.context));
}

/* Units for a home, with pages of a tier. Those that a try before has given up are not free any more. */
static castor_status tier_back(homes *h, device_tier tier, uint64_t bytes, uint32_t units, uint32_t *unit) {
    uint32_t longest;
    *unit = units_find(h, tier, units, &longest);
    if (*unit == UINT32_MAX || !tier_has_room(h, tier, bytes))
        return CASTOR_ERR_MEMORY;
    return *unit < h->range_units ? home_back(h, *unit, units, tier) : fixed_back(h, *unit, units);
}

static castor_status create_locked(homes *h, chunk_kind kind, uint64_t bytes, uint32_t units, home *out) {
    uint32_t longest, unit;
    if (units_find(h, DEVICE_TIER_DEVICE, units, &longest) == UINT32_MAX)
        return error_set(CASTOR_ERR_MEMORY,
                         "no addresses are left for a home of %B (%s): of %B, used in part, the longest free "
                         "range has %B. Free homes, or start with more addresses",
                         bytes, chunk_kind_names[kind], (uint64_t)h->range_units * h->unit_bytes,
                         (uint64_t)longest * h->unit_bytes);
    device_tier tier = policy_birth(h, kind, bytes);
    castor_status status = tier_back(h, tier, bytes, units, &unit);
    if (status == CASTOR_ERR_MEMORY) {
        if (tier == DEVICE_TIER_DEVICE)
            homes_short(h);
        tier = tier == DEVICE_TIER_DEVICE ? DEVICE_TIER_HOST : DEVICE_TIER_DEVICE;
        status = tier_back(h, tier, bytes, units, &unit);
    }
    if (status == CASTOR_ERR_MEMORY)
        return no_room(h, kind, bytes);
    if (status != CASTOR_OK)
        return status;
    record_add(h, unit, units, kind, tier);
    *out = (home){unit_address(h, unit), bytes, kind, tier};
    return CASTOR_OK;
}

castor_status home_create(homes *h, chunk_kind kind, size_t bytes, home *out) {
    if (!bytes || (unsigned)kind >= CHUNK_KIND_COUNT)
        return error_set(CASTOR_ERR_ARGUMENT, "a home of %zu bytes and kind %d cannot be", bytes, (int)kind);
    uint64_t units = bytes / h->unit_bytes + (bytes % h->unit_bytes != 0);
    /* More than all addresses: the search says so. */
    uint32_t wanted = units <= h->range_units ? (uint32_t)units : h->range_units + 1;
    pthread_mutex_lock(&h->lock);
    castor_status status = create_locked(h, kind, units * h->unit_bytes, wanted, out);
    h->statistics.refused += status != CASTOR_OK;
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* ---- death ---- */

/* Unmaps every piece, or none. */
static castor_status unmap_all(homes *h, uint32_t unit) {
    const device_driver *v = &h->driver;
    uint32_t at, n, end = unit + h->records[unit].units;
    castor_status status = CASTOR_OK;
    for (at = unit; at < end; at += n) {
        n = piece_units(end - at);
        if (h->pages[at])
            status = v->unmap(v->context, unit_address(h, at), n * h->unit_bytes);
        if (status != CASTOR_OK)
            break;
    }
    if (status == CASTOR_OK)
        return CASTOR_OK;
    bool lost = false;
    for (uint32_t back = unit; back < at; back += n) {
        n = piece_units(end - back);
        if (!h->pages[back] || v->map(v->context, h->device, unit_address(h, back), n * h->unit_bytes,
                                      h->pages[back]) == CASTOR_OK)
            continue;
        v->release(v->context, h->pages[back]);
        h->pages[back] = 0;
        lost = true;
    }
    return lost ? home_stick(h, unit, true, status) : status;
}

static castor_status destroy_locked(homes *h, uint32_t unit) {
    uint32_t end = unit + h->records[unit].units;
    bool fixed = unit >= h->range_units;
    castor_status status = fixed ? fixed_end(h, unit, end - unit) : unmap_all(h, unit);
    if (status != CASTOR_OK)
        return status;
    for (uint32_t at = unit; at < end && !fixed; at += piece_units(end - at)) {
        if (h->pages[at])
            h->driver.release(h->driver.context, h->pages[at]);
        h->pages[at] = 0;
    }
    record_remove(h, unit);
    return CASTOR_OK;
}

castor_status home_destroy(homes *h, uintptr_t address) {
    pthread_mutex_lock(&h->lock);
    uint32_t unit = home_unit(h, address);
    castor_status status = unit == UINT32_MAX
                               ? error_set(CASTOR_ERR_ARGUMENT, "no home begins at %p", (void *)address)
                               : destroy_locked(h, unit);
    pthread_mutex_unlock(&h->lock);
    return status;
}

void homes_destroy(homes *h) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        for (uint32_t next = h->youngest[kind], older; next; next = older) {
            older = h->records[next - 1].older;
            destroy_locked(
                h, next - 1); /* what cannot be unmapped stays: nobody has the addresses but the caller */
        }
    if (h->alias)
        h->driver.unreserve(h->driver.context, h->alias, HOMES_PIECE_UNITS * h->unit_bytes);
    fixed_tables_end(h);
    pthread_mutex_destroy(&h->lock);
    munmap(h, h->mapped_bytes);
}

/* ---- look-ups ---- */

void homes_range(const homes *h, uintptr_t *first, uintptr_t *end) {
    *first = h->address;
    *end = h->address + (uintptr_t)h->range_units * h->unit_bytes;
}

bool homes_are_fixed(const homes *h) {
    return h->fixed;
}

uint32_t homes_units(const homes *h) {
    return h->units;
}

uint32_t homes_unit(const homes *h, uintptr_t address) {
    uint64_t unit = (address - h->address) / h->unit_bytes;
    if (address >= h->address && unit < h->range_units)
        return (uint32_t)unit;
    return h->fixed ? fixed_unit(h, address) : HOMES_NO_UNIT;
}

bool home_find(homes *h, uintptr_t address, home *out) {
    pthread_mutex_lock(&h->lock);
    uint32_t unit = homes_unit(h, address);
    uint32_t owner = unit == HOMES_NO_UNIT ? 0 : h->owner[unit];
    bool found = owner && owner != OWNER_GIVEN_UP;
    if (found) {
        const home_record *r = &h->records[owner - 1];
        *out = (home){unit_address(h, owner - 1), r->units * h->unit_bytes, r->kind, r->tier};
    }
    pthread_mutex_unlock(&h->lock);
    return found;
}

bool home_is_on_host(const homes *h, uintptr_t address) {
    uint32_t unit = homes_unit(h, address);
    return unit != HOMES_NO_UNIT &&
           atomic_load_explicit(&h->tiers[unit], memory_order_relaxed) == DEVICE_TIER_HOST + 1;
}

uint64_t homes_evictable(const homes *h) {
    return atomic_load_explicit(&h->evictable, memory_order_relaxed);
}

void homes_statistics_get(homes *h, homes_statistics *out) {
    pthread_mutex_lock(&h->lock);
    *out = h->statistics;
    pthread_mutex_unlock(&h->lock);
}
