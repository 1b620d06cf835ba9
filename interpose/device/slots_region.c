/* The region: device memory, cut into ranges by first fit. If there is no memory for all of it, it is smaller, down to the largest
 * storage; if there is none at all, the next step tries again. */
#include <string.h>
#include <sys/mman.h>
#include "base/error.h"
#include "slots_inside.h"

void *slots_map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void slots_unmap(void *memory, size_t bytes) {
    if (memory)
        munmap(memory, bytes);
}

/* ---- Which storage lies where. */

#define STORAGES_FIRST   64 /* room at first */
#define FIXED_UNITS_MOST 65536

/* More than homes are ever long is answered with yes. */
static bool fixed_touched(const slots *s, uintptr_t address, uintptr_t to) {
    uint64_t count = ((to - 1) >> s->unit_bits) - (address >> s->unit_bits) + 1;
    if (count > FIXED_UNITS_MOST)
        return true;
    for (uintptr_t at = address; count-- > 0; at += (uintptr_t)1 << s->unit_bits) {
        uint32_t unit = homes_unit(s->homes, at);
        if (unit != HOMES_NO_UNIT && __atomic_load_n(&s->units[unit], __ATOMIC_RELAXED) & ~SLOTS_KEPT)
            return true;
    }
    return false;
}

bool slots_touched(const slots *s, uintptr_t address, size_t bytes) {
    uintptr_t to = bytes > UINTPTR_MAX - address ? UINTPTR_MAX : address + bytes;
    if (s->fixed)
        return to > address && fixed_touched(s, address, to);
    uintptr_t from = address < s->first ? s->first : address;
    to = to > s->end ? s->end : to;
    if (from >= to)
        return false;
    uint64_t last = (to - 1 - s->first) >> s->unit_bits;
    for (uint64_t unit = (from - s->first) >> s->unit_bits; unit <= last; unit++)
        if (__atomic_load_n(&s->units[unit], __ATOMIC_RELAXED) & ~SLOTS_KEPT)
            return true;
    return false;
}

bool slots_may_hold(const slots *s, uintptr_t address, bool captured, uintptr_t *first, size_t *bytes) {
    const uint32_t *table = captured ? s->units : s->copied;
    uint64_t unit = (address - s->first) >> s->unit_bits;
    *bytes = (size_t)1 << s->unit_bits;
    *first = address & -*bytes; /* homes are aligned to units */
    if (address - s->first >= s->end - s->first) {
        unit = s->fixed ? homes_unit(s->homes, address) : HOMES_NO_UNIT;
        if (unit == HOMES_NO_UNIT)
            return false;
    }
    return __atomic_load_n(&table[unit], __ATOMIC_RELAXED) & ~SLOTS_KEPT;
}

static uint32_t place_after(const slots *s, uintptr_t address) {
    uint32_t low = 0, high = s->places_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->places[middle].address + s->storages[s->places[middle].number].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The first place of the home that holds an address; places_count: no storage is there. */
static uint32_t place_of_home(const slots *s, uintptr_t address) {
    uint32_t place = place_after(s, address);
    if (place == s->places_count || s->storages[s->places[place].number].home > address) {
        if (place == 0 || s->storages[s->places[place - 1].number].home_end <= address)
            return s->places_count;
        place--;
    }
    return place_after(s, s->storages[s->places[place].number].home);
}

uint32_t slots_places(const slots *s, uintptr_t address, size_t bytes, uint32_t *end) {
    uint32_t first = bytes ? place_after(s, address) : place_of_home(s, address);
    uintptr_t to = bytes > UINTPTR_MAX - address ? UINTPTR_MAX : address + bytes;
    if (!bytes && first < s->places_count)
        to = s->storages[s->places[first].number].home_end;
    for (*end = first; *end < s->places_count && s->places[*end].address < to; ++*end)
        continue;
    return first;
}

uint32_t slots_find(const slots *s, uintptr_t address) {
    uint32_t place = place_after(s, address);
    return place < s->places_count && s->places[place].address <= address ? s->places[place].number
                                                                          : SLOTS_NONE;
}

static void units_count(const slots *s, uint32_t *table, const slots_storage *st, uint32_t by) {
    uint64_t count = (st->home_end - st->home) >> s->unit_bits;
    for (uint64_t i = 0; i < count; i++)
        __atomic_fetch_add(&table[st->unit + i], by, __ATOMIC_RELAXED);
}

void slots_storage_copied(slots *s, slots_storage *st) {
    if (!st->copied)
        units_count(s, s->copied, st, 1);
    st->copied = true;
}

void slots_storage_settle(slots *s, uint32_t number) {
    slots_storage *st = &s->storages[number];
    if (st->users)
        return;
    if (st->entry != SLOTS_NONE && !s->entries[st->entry].kept)
        chunk_manager_move(s->manager, number, 1);
    if (!st->forgotten || st->entry != SLOTS_NONE)
        return;
    st->bytes = 0;
    st->forgotten = false;
    st->next_free = s->storages_free;
    s->storages_free = number;
}

void slots_stale(slots *s, uint32_t number) {
    uint32_t entry = s->storages[number].entry;
    if (entry == SLOTS_NONE)
        return;
    s->statistics.stale += !s->entries[entry].stale;
    s->entries[entry].stale = true;
    slots_storage_settle(s, number);
}

static void place_forget(slots *s, uint32_t place) {
    uint32_t number = s->places[place].number;
    slots_storage *st = &s->storages[number];
    s->places_count--;
    memmove(&s->places[place], &s->places[place + 1], (s->places_count - place) * sizeof *s->places);
    units_count(s, s->units, st, UINT32_MAX);
    if (st->copied)
        units_count(s, s->copied, st, UINT32_MAX);
    s->statistics.storages--;
    s->statistics.storage_bytes -= st->bytes;
    st->forgotten = true;
    slots_storage_settle(s, number);
}

/* Returns whether one of them can only be read in its home. */
static bool forget(slots *s, uintptr_t address, size_t bytes) {
    bool home_only = false;
    uintptr_t to = bytes > UINTPTR_MAX - address ? UINTPTR_MAX : address + bytes;
    for (uint32_t place;
         (place = place_after(s, address)) < s->places_count && s->places[place].address < to;) {
        home_only |= s->storages[s->places[place].number].home_only;
        place_forget(s, place);
    }
    return home_only;
}

/* ---- homes in which the device keeps an address ---- */

bool slots_keep(const slots *s, uintptr_t address) {
    uint32_t unit = homes_unit(s->homes, address);
    return unit != HOMES_NO_UNIT && __atomic_load_n(&s->units[unit], __ATOMIC_RELAXED) & SLOTS_KEPT;
}

static bool kept_is(const slots *s, const home *at) {
    uint32_t first = homes_unit(s->homes, at->address);
    for (uint64_t i = 0; i < at->bytes >> s->unit_bits; i++)
        if (__atomic_load_n(&s->units[first + i], __ATOMIC_RELAXED) & SLOTS_KEPT)
            return true;
    return false;
}

static void kept_set(slots *s, const home *at) {
    uint32_t first = homes_unit(s->homes, at->address);
    for (uint64_t i = 0; i < at->bytes >> s->unit_bits; i++)
        __atomic_fetch_or(&s->units[first + i], SLOTS_KEPT, __ATOMIC_RELAXED);
}

/* Units that are freed whole. */
static void kept_forget(slots *s, uintptr_t address, size_t bytes) {
    uintptr_t unit_bytes = (uintptr_t)1 << s->unit_bits;
    uintptr_t to = bytes > UINTPTR_MAX - address ? UINTPTR_MAX : address + bytes;
    if (!s->fixed) {
        address = address < s->first ? s->first : address;
        to = to > s->end ? s->end : to;
    }
    for (uintptr_t at = (address + unit_bytes - 1) & -unit_bytes; at < to && to - at >= unit_bytes;
         at += unit_bytes) {
        uint32_t unit = homes_unit(s->homes, at);
        if (unit != HOMES_NO_UNIT)
            __atomic_fetch_and(&s->units[unit], ~SLOTS_KEPT, __ATOMIC_RELAXED);
    }
}

void slots_kept(slots *s, uintptr_t address, bool sure) {
    home at;
    /* Before the lock: homes have their own. */
    if (!home_find(s->homes, address, &at))
        return;
    pthread_mutex_lock(&s->lock);
    uint32_t number = slots_find(s, address);
    bool begins = number != SLOTS_NONE && s->storages[number].address == address;
    if ((sure || begins) && !kept_is(s, &at)) {
        kept_set(s, &at);
        uint32_t end;
        for (uint32_t i = slots_places(s, address, 0, &end); i < end; i++) {
            s->storages[s->places[i].number].home_only = true;
            slots_stale(s, s->places[i].number);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

void slots_forget(slots *s, uintptr_t address, size_t bytes) {
    pthread_mutex_lock(&s->lock);
    kept_forget(s, address, bytes);
    if (slots_touched(s, address, bytes))
        forget(s, address, bytes);
    pthread_mutex_unlock(&s->lock);
}

/* The table with room for more; NULL: no memory. */
static void *grown(const void *table, size_t bytes, size_t more_bytes) {
    void *more = slots_map(more_bytes);
    if (more && bytes)
        memcpy(more, table, bytes);
    return more;
}

/* Room for one more storage. There are twice as many entries, since those that were left need one too. */
static castor_status tables_room(slots *s) {
    if (s->storages_free != SLOTS_NONE || s->storages_count < s->storages_room)
        return CASTOR_OK;
    size_t room = s->storages_room, more = room ? 2 * room : STORAGES_FIRST;
    slots_storage *storages = grown(s->storages, room * sizeof *storages, more * sizeof *storages);
    slots_place *places = grown(s->places, room * sizeof *places, more * sizeof *places);
    slots_entry *entries = grown(s->entries, 2 * room * sizeof *entries, 2 * more * sizeof *entries);
    if (!storages || !places || !entries) {
        slots_unmap(storages, more * sizeof *storages);
        slots_unmap(places, more * sizeof *places);
        slots_unmap(entries, 2 * more * sizeof *entries);
        return error_set(CASTOR_ERR_MEMORY, "no memory for a table of %zu storages", more);
    }
    slots_tables_end(s);
    s->storages = storages;
    s->places = places;
    s->entries = entries;
    for (size_t i = 2 * room; i < 2 * more; i++) {
        entries[i].next = s->entries_free;
        s->entries_free = (uint32_t)i;
    }
    s->storages_room = (uint32_t)more;
    return CASTOR_OK;
}

void slots_tables_end(slots *s) {
    slots_unmap(s->storages, s->storages_room * sizeof *s->storages);
    slots_unmap(s->places, s->storages_room * sizeof *s->places);
    slots_unmap(s->entries, 2 * (size_t)s->storages_room * sizeof *s->entries);
}

/* A number for a storage that takes so many bytes of the region. */
static castor_status number_take(slots *s, uint64_t room, uint32_t *number) {
    *number = s->storages_free;
    if (*number == SLOTS_NONE) {
        castor_status status = chunk_manager_add_chunk(s->manager, CHUNK_PARAM, room, 1, number);
        s->storages_count += status == CASTOR_OK;
        return status;
    }
    castor_status status = chunk_manager_reuse_chunk(s->manager, *number, room);
    if (status == CASTOR_OK)
        s->storages_free = s->storages[*number].next_free;
    return status;
}

/* `unit`: the home's first one. */
static castor_status add(slots *s, uintptr_t address, size_t bytes, const home *at, uint32_t unit) {
    uint32_t number = slots_find(s, address);
    if (number != SLOTS_NONE && s->storages[number].address == address && s->storages[number].bytes == bytes)
        return CASTOR_OK;
    bool home_only = kept_is(s, at);
    home_only |= forget(s, address, bytes); /* the same memory: what may write it has not changed */
    uint64_t room =
        (address % SLOTS_ALIGNMENT + bytes + SLOTS_ALIGNMENT - 1) / SLOTS_ALIGNMENT * SLOTS_ALIGNMENT;
    castor_status status = tables_room(s);
    if (status == CASTOR_OK)
        status = number_take(s, room, &number);
    if (status != CASTOR_OK)
        return status;
    slots_storage *st = &s->storages[number];
    *st = (slots_storage){.address = address,
                          .bytes = bytes,
                          .home = at->address,
                          .home_end = at->address + at->bytes,
                          .unit = unit,
                          .room = room,
                          .entry = SLOTS_NONE,
                          .home_only = home_only};
    uint32_t place = place_after(s, address);
    memmove(&s->places[place + 1], &s->places[place], (s->places_count - place) * sizeof *s->places);
    s->places[place] = (slots_place){address, number};
    s->places_count++;
    units_count(s, s->units, st, 1);
    s->statistics.storages++;
    s->statistics.storage_bytes += bytes;
    return CASTOR_OK;
}

castor_status slots_storage_add(slots *s, uintptr_t address, size_t bytes) {
    home at;
    /* Before the lock: homes have their own. */
    bool found = bytes && home_find(s->homes, address, &at) && bytes <= at.address + at.bytes - address;
    uint32_t unit = found ? homes_unit(s->homes, at.address) : HOMES_NO_UNIT;
    if (unit == HOMES_NO_UNIT)
        return error_set(CASTOR_ERR_ARGUMENT, "%B at %p do not lie in one home", (uint64_t)bytes,
                         (void *)address);
    pthread_mutex_lock(&s->lock);
    castor_status status = add(s, address, bytes, &at, unit);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- */

#define REGION_PAUSE_MOST 63 /* steps without a region, at most, after others needed its memory */

static uint64_t whole_units(const slots *s, uint64_t bytes) {
    uint64_t unit = UINT64_C(1) << s->unit_bits;
    return (bytes + unit - 1) / unit * unit;
}

/* Of s->region_bytes. */
static castor_status region_try(slots *s) {
    const device_driver *d = &s->driver;
    uintptr_t region = 0;
    castor_status status =
        d->reserve(d->context, s->device, s->region_bytes, UINT64_C(1) << s->unit_bits, &region);
    if (status != CASTOR_OK)
        return status;
    status = d->create(d->context, s->device, DEVICE_TIER_DEVICE, s->region_bytes, &s->region_pages);
    if (status != CASTOR_OK)
        goto no_pages;
    status = d->map(d->context, s->device, region, s->region_bytes, s->region_pages);
    if (status != CASTOR_OK)
        goto no_map;
    if (!s->copy_stream)
        status = d->stream_make(d->context, s->device, &s->copy_stream);
    if (status != CASTOR_OK)
        goto no_stream;
    s->region = region;
    return CASTOR_OK;
no_stream:
    if (d->unmap(d->context, region, s->region_bytes) != CASTOR_OK)
        return status; /* the addresses are not free */
no_map:
    d->release(d->context, s->region_pages);
no_pages:
    d->unreserve(d->context, region, s->region_bytes);
    return status;
}

castor_status slots_region_make(slots *s) {
    if (s->region)
        return CASTOR_OK;
    if (s->region_pause)
        return error_set(CASTOR_ERR_MEMORY, "no memory for slots");
    uint64_t least = 1;
    for (uint32_t i = 0; i < s->places_count; i++) {
        uint64_t room = s->storages[s->places[i].number].room;
        least = room > least && room <= s->region_most ? room : least;
    }
    least = whole_units(s, least);
    castor_status status = CASTOR_OK;
    for (uint64_t bytes = s->region_most;; bytes = whole_units(s, bytes / 2)) {
        s->region_bytes = bytes > least ? bytes : least;
        status = region_try(s);
        if (status != CASTOR_ERR_MEMORY || bytes <= least)
            break;
    }
    s->region_pause = status != CASTOR_OK;
    s->unused_steps = 0;
    if (status != CASTOR_OK)
        s->region_bytes = s->region_most;
    s->statistics.region_bytes = s->region_bytes;
    return status;
}

castor_status slots_region_end(slots *s) {
    const device_driver *d = &s->driver;
    castor_status status = d->unmap(d->context, s->region, s->region_bytes);
    if (status != CASTOR_OK)
        return status;
    d->release(d->context, s->region_pages);
    d->unreserve(d->context, s->region, s->region_bytes);
    s->region = 0;
    return CASTOR_OK;
}

static uint32_t held_from(const slots *s, uint32_t entry) {
    while (entry != SLOTS_NONE && s->entries[entry].storage == SLOTS_NONE)
        entry = s->entries[entry].next;
    return entry;
}

/* The first range among slots. What they have left lies in it. */
static bool range_find(const slots *s, uint64_t bytes, uint64_t *first) {
    uint64_t at = 0;
    for (uint32_t i = held_from(s, s->entries_first); i != SLOTS_NONE; i = held_from(s, s->entries[i].next)) {
        if (s->entries[i].first - at >= bytes)
            break;
        at = s->entries[i].first + s->entries[i].bytes;
    }
    *first = at;
    return s->region_bytes - at >= bytes;
}

static void entry_remove(slots *s, uint32_t entry) {
    slots_entry *e = &s->entries[entry];
    if (e->previous == SLOTS_NONE)
        s->entries_first = e->next;
    else
        s->entries[e->previous].next = e->next;
    if (e->next != SLOTS_NONE)
        s->entries[e->next].previous = e->previous;
    e->next = s->entries_free;
    s->entries_free = entry;
}

castor_status slots_mark_wait(slots *s, slots_mark *mark) {
    if (!mark->pending)
        return CASTOR_OK;
    castor_status status = s->driver.event_wait(s->driver.context, s->device, s->copy_stream, mark->event);
    mark->pending = status != CASTOR_OK;
    return status;
}

/* What was left between two addresses is free for good. */
static castor_status left_wait(slots *s, uint64_t from, uint64_t to) {
    for (uint32_t i = s->entries_first, next; i != SLOTS_NONE && s->entries[i].first < to; i = next) {
        slots_entry *e = &s->entries[i];
        next = e->next;
        if (e->storage != SLOTS_NONE || e->first + e->bytes <= from)
            continue;
        for (uint32_t u = 0; u < SLOTS_STREAMS; u++) {
            castor_status status = slots_mark_wait(s, &e->used[u]);
            if (status != CASTOR_OK)
                return status;
        }
        entry_remove(s, i);
    }
    return CASTOR_OK;
}

/* Into the order of addresses. */
static void entry_insert(slots *s, uint32_t entry, uint64_t first) {
    uint32_t previous = SLOTS_NONE, next = s->entries_first;
    while (next != SLOTS_NONE && s->entries[next].first < first) {
        previous = next;
        next = s->entries[next].next;
    }
    s->entries[entry].previous = previous;
    s->entries[entry].next = next;
    if (previous == SLOTS_NONE)
        s->entries_first = entry;
    else
        s->entries[previous].next = entry;
    if (next != SLOTS_NONE)
        s->entries[next].previous = entry;
}

castor_status slots_range_take(slots *s, uint32_t number) {
    slots_storage *st = &s->storages[number];
    uint64_t first = 0;
    castor_status status = CASTOR_OK;
    if (!range_find(s, st->room, &first))
        return error_set(CASTOR_ERR_MEMORY, "no range of %B is free among the slots", st->room);
    /* The table has as many entries again as there are storages: all that are left may go. */
    if (s->entries_free == SLOTS_NONE)
        status = left_wait(s, 0, s->region_bytes);
    if (status == CASTOR_OK)
        status = left_wait(s, first, first + st->room);
    if (status != CASTOR_OK)
        return status;
    uint32_t entry = s->entries_free;
    slots_entry *e = &s->entries[entry];
    s->entries_free = e->next;
    e->first = first;
    e->bytes = st->room;
    e->storage = number;
    e->stale = e->ahead = e->kept = false;
    entry_insert(s, entry, first);
    st->entry = entry;
    return CASTOR_OK;
}

void slots_range_leave(slots *s, uint32_t number) {
    uint32_t entry = s->storages[number].entry;
    slots_entry *e = &s->entries[entry];
    bool pending = false;
    s->storages[number].entry = e->storage = SLOTS_NONE;
    for (uint32_t u = 0; u < SLOTS_STREAMS; u++)
        pending |= e->used[u].pending;
    if (!pending)
        entry_remove(s, entry);
}

typedef struct run {
    uint32_t first; /* entry; SLOTS_NONE: none was found */
    uint32_t count; /* of slots */
    uint64_t key;   /* the lowest: what is needed first */
    uint64_t bytes; /* that leave */
} run;

/* The run that begins with the slot `first`, behind the address `at`. */
static run run_from(const slots *s, uint32_t first, uint64_t at, uint64_t bytes, uint64_t key) {
    run r = {first, 0, UINT64_MAX, 0};
    for (uint32_t i = first; i != SLOTS_NONE;) {
        const slots_entry *e = &s->entries[i];
        if (e->key <= key)
            break;
        r.key = e->key < r.key ? e->key : r.key;
        r.bytes += e->bytes;
        r.count++;
        i = held_from(s, e->next);
        if ((i == SLOTS_NONE ? s->region_bytes : s->entries[i].first) - at >= bytes)
            return r;
    }
    return (run){SLOTS_NONE, 0, 0, 0};
}

static run run_find(slots *s, uint64_t bytes, uint64_t key) {
    run best = {SLOTS_NONE, 0, 0, 0};
    uint64_t at = 0;
    uint32_t i = held_from(s, s->entries_first);
    for (; i != SLOTS_NONE; i = held_from(s, s->entries[i].next))
        s->entries[i].key = chunk_manager_key(s->manager, s->entries[i].storage);
    for (i = held_from(s, s->entries_first); i != SLOTS_NONE; i = held_from(s, s->entries[i].next)) {
        run r = run_from(s, i, at, bytes, key);
        if (r.key > best.key || (r.key == best.key && r.bytes < best.bytes))
            best = r;
        at = s->entries[i].first + s->entries[i].bytes;
    }
    return best;
}

bool slots_run_free(slots *s, uint32_t number, uint64_t key) {
    uint64_t bytes = s->storages[number].room, first = 0;
    if (range_find(s, bytes, &first))
        return true;
    run r = run_find(s, bytes, key);
    for (uint32_t i = r.first; r.count > 0; r.count--) {
        uint32_t storage = s->entries[i].storage;
        i = held_from(s, s->entries[i].next);
        if (chunk_manager_move(s->manager, storage, 1) != CASTOR_OK)
            return false;
    }
    return range_find(s, bytes, &first);
}

/* Nothing is in use, and no use is unknown. */
static bool region_idle(const slots *s) {
    for (uint32_t i = s->entries_first; i != SLOTS_NONE; i = s->entries[i].next) {
        const slots_entry *e = &s->entries[i];
        if (e->storage != SLOTS_NONE && (e->kept || s->storages[e->storage].users))
            return false;
    }
    return true;
}

/* The device is at rest: nobody waits for what is passed. */
static castor_status region_empty(slots *s) {
    for (uint32_t i = s->entries_first, next; i != SLOTS_NONE; i = next) {
        slots_entry *e = &s->entries[i];
        next = e->next;
        for (uint32_t u = 0; u < SLOTS_STREAMS; u++)
            e->used[u].pending = false;
        if (e->storage == SLOTS_NONE) {
            entry_remove(s, i);
            continue;
        }
        castor_status status = chunk_manager_move(s->manager, e->storage, 1);
        if (status != CASTOR_OK)
            return status;
    }
    return CASTOR_OK;
}

/* `pause`: steps for which there is none. */
static uint64_t region_release(slots *s, uint32_t pause) {
    if (!s->region || !region_idle(s) || s->driver.drain(s->driver.context, s->device) != CASTOR_OK)
        return 0;
    s->region_pause = pause; /* from here on nothing is copied ahead */
    if (region_empty(s) != CASTOR_OK || slots_region_end(s) != CASTOR_OK)
        return 0;
    uint64_t bytes = s->region_bytes;
    s->region_bytes = s->region_most;
    return bytes;
}

uint64_t slots_region_give(slots *s) {
    pthread_mutex_lock(&s->lock);
    uint32_t pause = s->region_given < REGION_PAUSE_MOST ? 2 * s->region_given + 1 : s->region_given;
    uint64_t bytes = region_release(s, pause);
    if (bytes) {
        s->region_given = pause;
        s->warned = true; /* the caller says it */
    }
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

bool slots_region_is_unused(slots *s) {
    pthread_mutex_lock(&s->lock);
    bool unused = s->region && s->unused_steps >= SLOTS_UNUSED_STEPS;
    pthread_mutex_unlock(&s->lock);
    return unused;
}

void slots_region_end_unused(slots *s) {
    pthread_mutex_lock(&s->lock);
    if (s->region && s->unused_steps >= SLOTS_UNUSED_STEPS && region_release(s, 1))
        s->region_pause = 0;
    pthread_mutex_unlock(&s->lock);
}

void slots_region_limit(slots *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    s->region_most = bytes;
    if (!s->region)
        s->statistics.region_bytes = s->region_bytes = bytes;
    pthread_mutex_unlock(&s->lock);
}

uint64_t slots_region_held(slots *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t held = s->region ? s->region_bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return held;
}
