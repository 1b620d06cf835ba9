/* The region: device memory, cut into ranges by first fit. If there is no memory for all of it, it is smaller, down to the largest
 * storage; if there is none at all, the next step tries again. */
#include "core/error.h"
#include "slots_inside.h"

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

uint64_t slots_region_give(slots *s) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    if (s->region && region_idle(s) && s->driver.drain(s->driver.context, s->device) == CASTOR_OK) {
        s->region_given = s->region_given < REGION_PAUSE_MOST ? 2 * s->region_given + 1 : s->region_given;
        s->region_pause = s->region_given; /* from here on nothing is copied ahead */
        if (region_empty(s) == CASTOR_OK && slots_region_end(s) == CASTOR_OK) {
            bytes = s->region_bytes;
            s->region_bytes = s->region_most;
            s->warned = true; /* the caller says it */
        }
    }
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

uint64_t slots_region_held(slots *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t held = s->region ? s->region_bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return held;
}
