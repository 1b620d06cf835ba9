/* Which storage lies where. */
#include <string.h>
#include "core/error.h"
#include "slots_inside.h"

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
