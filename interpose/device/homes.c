#include <string.h>
#include <sys/mman.h>
#include "base/error.h"
#include "base/log.h"
#include "homes_inside.h"

static void fixed_tables_end(homes *h);

/* ---- Fixed homes: memory that the driver allocates on the host, and a table of what lies where. */

#define ADDRESS_BITS 48 /* of a process */

static void *table_map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static size_t units_table_bytes(const homes *h) {
    return (((size_t)1 << ADDRESS_BITS) / h->unit_bytes) * sizeof *h->fixed_units;
}

static size_t addresses_table_bytes(const homes *h) {
    return (h->units - h->range_units) * sizeof *h->fixed_addresses;
}

/* The tables for as many fixed homes as the range holds, and their end. */
static castor_status fixed_tables_make(homes *h) {
    h->fixed_units = table_map(units_table_bytes(h));
    h->fixed_addresses = table_map(addresses_table_bytes(h));
    if (h->fixed_units && h->fixed_addresses)
        return CASTOR_OK;
    fixed_tables_end(h);
    return error_set(CASTOR_ERR_MEMORY, "no memory for a table of homes, %B of addresses",
                     (uint64_t)units_table_bytes(h));
}

static void fixed_tables_end(homes *h) {
    if (h->fixed_units)
        munmap((void *)h->fixed_units, units_table_bytes(h));
    if (h->fixed_addresses)
        munmap(h->fixed_addresses, addresses_table_bytes(h));
}

static uint32_t fixed_unit(const homes *h, uintptr_t address) {
    if (address >> ADDRESS_BITS)
        return HOMES_NO_UNIT;
    /* 0 - 1: none. */
    return atomic_load_explicit(&h->fixed_units[address / h->unit_bytes], memory_order_relaxed) - 1;
}

static void show(homes *h, uint32_t unit, uint32_t units, uintptr_t address) {
    for (uint32_t i = 0; i < units; i++) {
        h->fixed_addresses[unit - h->range_units + i] = address + i * h->unit_bytes;
        atomic_store_explicit(&h->fixed_units[address / h->unit_bytes + i], unit + i + 1,
                              memory_order_relaxed);
    }
}

static void hide(homes *h, uint32_t unit, uint32_t units, uintptr_t address) {
    for (uint32_t i = 0; i < units; i++) {
        h->fixed_addresses[unit - h->range_units + i] = 0;
        atomic_store_explicit(&h->fixed_units[address / h->unit_bytes + i], 0, memory_order_relaxed);
    }
}

/* Memory for a home, and its end. */
static castor_status fixed_back(homes *h, uint32_t unit, uint32_t units) {
    const device_driver *v = &h->driver;
    uintptr_t address;
    castor_status status =
        v->host_make(v->context, h->device, units * h->unit_bytes, &address, &h->pages[unit]);
    if (status != CASTOR_OK) {
        h->pages[unit] = 0;
        return status;
    }
    if (address >> ADDRESS_BITS) {
        v->host_end(v->context, h->device, h->pages[unit]);
        h->pages[unit] = 0;
        return error_set(CASTOR_ERR_SYSTEM, "the driver has host memory at %p, beyond %d bits of address",
                         (void *)address, ADDRESS_BITS);
    }
    show(h, unit, units, address);
    return CASTOR_OK;
}

static castor_status fixed_end(homes *h, uint32_t unit, uint32_t units) {
    uintptr_t address = unit_address(h, unit);
    hide(h, unit, units, address); /* before another device's home can have the address */
    castor_status status = h->driver.host_end(h->driver.context, h->device, h->pages[unit]);
    if (status != CASTOR_OK)
        show(h, unit, units, address);
    else
        h->pages[unit] = 0;
    return status;
}

static castor_status fixed_check(const homes *h, uint32_t unit) {
    const home_record *r = &h->records[unit];
    for (uint32_t i = 0; i < r->units; i++)
        if (unit_address(h, unit + i) != unit_address(h, unit) + i * h->unit_bytes ||
            fixed_unit(h, unit_address(h, unit + i)) != unit + i)
            return error_set(CASTOR_ERR_MISMATCH, "homes of device %d, unit %u: its address leads elsewhere",
                             h->device, unit + i);
    return CASTOR_OK;
}

/* ---- Which homes are on the host though the device had room, and which return there.
 *
 * A return must last: a home that comes back and leaves again has crossed the link twice for nothing. So homes get what the policy gives
 * chunks (placement_limit) beside the most other data at the end of one of the last steps, none of which had to rescue an allocation. What
 * the script needs within its steps alone is not seen if it gives it back to the driver before the step's end: if returns are followed by a
 * rescue, the next ones wait, each time twice as long. */

#define PAUSE_FIRST 16
#define PAUSE_MOST  (UINT64_C(1) << 20)

void homes_placement_set(homes *h, const placement_settings *placement) {
    pthread_mutex_lock(&h->lock);
    h->placement = *placement;
    pthread_mutex_unlock(&h->lock);
}

/* Where a home of so many bytes is born, if there is room. */
static device_tier policy_birth(const homes *h, chunk_kind kind, uint64_t bytes) {
    uint64_t there = h->statistics.bytes[kind][DEVICE_TIER_HOST];
    uint64_t all = there + h->statistics.bytes[kind][DEVICE_TIER_DEVICE] + bytes;
    return placement_offloads_next(&h->placement, kind, there, all) ? DEVICE_TIER_HOST : DEVICE_TIER_DEVICE;
}

static void pause_longer(home_returns *r) {
    if (r->pause < PAUSE_MOST)
        r->pause = r->pause ? 2 * r->pause : PAUSE_FIRST;
    r->resume = r->steps + r->pause;
}

void homes_short(homes *h) {
    atomic_store_explicit(&h->fell_short, true, memory_order_relaxed);
    atomic_store_explicit(&h->were_short, true, memory_order_relaxed);
}

bool homes_were_short(const homes *h) {
    return atomic_load_explicit(&h->were_short, memory_order_relaxed);
}

static void policy_rescued(homes *h) {
    homes_short(h);
    if (h->returns.moved)
        pause_longer(&h->returns);
    h->returns.moved = false;
}

/* Bytes that may return: what the policy leaves beside other data, as much as there was of them at most. */
static uint64_t return_room(const homes *h) {
    const home_returns *r = &h->returns;
    uint64_t others = 0, there = tier_bytes(h, DEVICE_TIER_DEVICE), allowed = budget_left(h);
    if (r->seen < HOMES_RETURN_STEPS || r->steps < r->resume)
        return 0;
    for (uint32_t i = 0; i < HOMES_RETURN_STEPS; i++)
        others = r->others[i] > others ? r->others[i] : others;
    uint64_t limit = placement_limit(&h->placement, false, r->capacity, others);
    uint64_t room = limit > there ? limit - there : 0;
    return room < allowed ? room : allowed;
}

/* The home of `most` bytes at most that is the next to leave a tier; UINT32_MAX: there is none. */
static uint32_t next_to_move(const homes *h, device_tier from, uint64_t most) {
    bool leaves = from == DEVICE_TIER_DEVICE;
    uint32_t found = UINT32_MAX;
    for (int i = 0; i < CHUNK_KIND_COUNT && found == UINT32_MAX; i++) {
        uint32_t next = h->youngest[leaves ? CHUNK_KIND_COUNT - 1 - i : i];
        for (; next && (found == UINT32_MAX || !leaves); next = h->records[next - 1].older) {
            const home_record *r = &h->records[next - 1];
            bool stays = r->stuck || (!leaves && r->away);
            if (r->tier == from && !stays && (uint64_t)r->units * h->unit_bytes <= most)
                found = next - 1;
        }
    }
    return found;
}

#define SHORT_SHARE 4  /* of a device: where a step leaves less, memory counts as short */
#define ROOM_STEPS  8  /* each of the first steps is looked at, */
#define ROOM_PERIOD 64 /* and of those that follow one of so many */

/* What PyTorch's allocator keeps is what a step has needed at most. */
static void room_look(homes *h) {
    uint64_t free_bytes = 0, total_bytes = 0;
    bool looks = h->returns.steps <= ROOM_STEPS || h->returns.steps % ROOM_PERIOD == 0;
    if (!looks || homes_were_short(h) || h->statistics.budget_bytes != UINT64_MAX)
        return;
    h->driver.room(h->driver.context, h->device, &free_bytes, &total_bytes);
    if (free_bytes < total_bytes / SHORT_SHARE)
        atomic_store_explicit(&h->were_short, true, memory_order_relaxed);
}

bool homes_step_end(homes *h) {
    pthread_mutex_lock(&h->lock);
    home_returns *r = &h->returns;
    bool due = false, fell_short = atomic_exchange_explicit(&h->fell_short, false, memory_order_relaxed);
    r->steps++;
    if (h->fixed || h->placement.policy == PLACEMENT_STATIC || !tier_bytes(h, DEVICE_TIER_HOST)) {
        r->seen = 0;
        room_look(h);
    } else {
        uint64_t free_bytes = 0;
        h->driver.room(h->driver.context, h->device, &free_bytes, &r->capacity);
        uint64_t left = fell_short ? 0 : free_bytes + tier_bytes(h, DEVICE_TIER_DEVICE);
        r->others[r->steps % HOMES_RETURN_STEPS] = r->capacity > left ? r->capacity - left : 0;
        r->seen += r->seen < HOMES_RETURN_STEPS;
        uint64_t room = return_room(h);
        due = room && next_to_move(h, DEVICE_TIER_HOST, room) != UINT32_MAX;
    }
    pthread_mutex_unlock(&h->lock);
    return due;
}

castor_status homes_return(homes *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t begin_ns = h->driver.now_ns(h->driver.context), moved = 0;
    castor_status status = h->driver.drain(h->driver.context, h->device);
    uint32_t unit;
    while (status == CASTOR_OK && moved < HOMES_RETURN_BYTES &&
           (unit = next_to_move(h, DEVICE_TIER_HOST, return_room(h))) != UINT32_MAX) {
        uint64_t bytes = (uint64_t)h->records[unit].units * h->unit_bytes;
        if (moved && bytes > HOMES_RETURN_BYTES - moved)
            break;
        status = flip_drained(h, unit, DEVICE_TIER_DEVICE, false);
        if (status != CASTOR_OK)
            break;
        moved += bytes;
        h->returns.moved = true;
    }
    if (status != CASTOR_OK)
        pause_longer(&h->returns);
    h->statistics.flip_ns += h->driver.now_ns(h->driver.context) - begin_ns;
    pthread_mutex_unlock(&h->lock);
    return status == CASTOR_ERR_MEMORY ? CASTOR_OK : status;
}

/* ---- */

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
    size_t shared = table_place(&total, units * sizeof(uint64_t));
    size_t tiers = table_place(&total, units);
    char *all = table_map(total);
    if (!all)
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
    h->shared = (uint64_t *)(all + shared);
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
    tier_show(h, unit, units, (uint8_t)(tier + 1));
}

static void record_remove(homes *h, uint32_t unit) {
    home_record *r = &h->records[unit];
    tier_show(h, unit, r->units, 0);
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
        if (!h->pages[back] || piece_map(h, back, n * h->unit_bytes, h->pages[back]) == CASTOR_OK)
            continue;
        if (h->pages[back] != h->shared[back])
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
        if (h->pages[at] && h->pages[at] != h->shared[at])
            h->driver.release(h->driver.context, h->pages[at]);
        h->pages[at] = 0;
    }
    joined_end(h, unit);
    if (shared_end(h, unit) != CASTOR_OK) {
        LOG_W("%s: memory that ranks share is not freed", error_text());
        memset(&h->shared[unit], 0, (end - unit) * sizeof *h->shared);
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

/* ---- flips ---- */

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

castor_status home_away(homes *h, uintptr_t address) {
    pthread_mutex_lock(&h->lock);
    uint32_t unit = home_unit(h, address);
    castor_status status = unit == UINT32_MAX
                               ? error_set(CASTOR_ERR_ARGUMENT, "no home begins at %p", (void *)address)
                               : flip_locked(h, unit, DEVICE_TIER_HOST);
    if (status == CASTOR_OK && !h->records[unit].away) {
        h->records[unit].away = true;
        h->statistics.away_bytes += (uint64_t)h->records[unit].units * h->unit_bytes;
    }
    pthread_mutex_unlock(&h->lock);
    return status;
}

uint64_t homes_evict(homes *h, uint64_t bytes) {
    uint64_t freed = 0, most = UINT64_MAX; /* the host is known not to take more than `most` */
    uint32_t unit;
    pthread_mutex_lock(&h->lock);
    if (bytes && homes_evictable(h)) {
        uint64_t begin_ns = h->driver.now_ns(h->driver.context);
        castor_status status = h->driver.drain(h->driver.context, h->device);
        /* Where the host lacks memory a smaller one may find room; after any other failure the next ones would fail as well. */
        while ((status == CASTOR_OK || status == CASTOR_ERR_MEMORY) && freed < bytes &&
               (unit = next_to_move(h, DEVICE_TIER_DEVICE, most)) != UINT32_MAX) {
            uint64_t its = (uint64_t)h->records[unit].units * h->unit_bytes;
            status = room_check(h, DEVICE_TIER_HOST, its);
            if (status == CASTOR_OK)
                status = flip_drained(h, unit, DEVICE_TIER_HOST, true);
            if (status == CASTOR_OK)
                freed += its;
            else
                most = its - 1;
        }
        h->statistics.rescues += freed != 0;
        if (freed)
            policy_rescued(h);
        h->statistics.flip_ns += h->driver.now_ns(h->driver.context) - begin_ns;
    }
    pthread_mutex_unlock(&h->lock);
    return freed;
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

bool home_next(homes *h, uintptr_t address, home *out) {
    for (uint32_t unit = homes_unit(h, address); unit < h->range_units; unit++) {
        if (!atomic_load_explicit(&h->tiers[unit], memory_order_relaxed))
            continue;
        if (home_find(h, unit_address(h, unit), out))
            return true;
    }
    return false;
}

bool home_is_on_host(const homes *h, uintptr_t address) {
    uint32_t unit = homes_unit(h, address);
    return unit != HOMES_NO_UNIT &&
           atomic_load_explicit(&h->tiers[unit], memory_order_relaxed) > DEVICE_TIER_HOST;
}

uint64_t homes_evictable(const homes *h) {
    return atomic_load_explicit(&h->evictable, memory_order_relaxed);
}

void homes_statistics_get(homes *h, homes_statistics *out) {
    pthread_mutex_lock(&h->lock);
    *out = h->statistics;
    pthread_mutex_unlock(&h->lock);
}

/* ---- */

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
        if (atomic_load_explicit(&h->tiers[at], memory_order_relaxed) !=
            (r->joined ? TIER_JOINED : r->tier + 1))
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
