/* Uses and writers. */
#include "slots.h"

#include "core/error.h"
#include "core/log.h"
#include "slots_inside.h"

#define RUNS_AT_ONCE 4 /* runs that leave the region for copies ahead, in one go */

castor_status slots_create(slots **out, homes *h, const device_driver *driver, int device,
                           uint64_t region_bytes) {
    size_t unit = driver->granularity(driver->context, device);
    if (unit == 0)
        return CASTOR_ERR_UNSUPPORTED;
    slots *s = slots_map(sizeof *s);
    if (!s)
        return error_set(CASTOR_ERR_MEMORY, "no memory for slots");
    *s = (slots){.driver = *driver,
                 .homes = h,
                 .device = device,
                 .unit_bits = (uint32_t)__builtin_ctzll(unit),
                 .region_most = (region_bytes + unit - 1) / unit * unit,
                 .storages_free = SLOTS_NONE,
                 .entries_free = SLOTS_NONE,
                 .entries_first = SLOTS_NONE,
                 .order = 1,
                 .batches.last = 1,
                 .user = SLOTS_NONE,
                 .wanted = SLOTS_NONE};
    s->statistics.region_bytes = s->region_bytes = s->region_most;
    homes_range(h, &s->first, &s->end);
    s->fixed = homes_are_fixed(h);
    uint64_t units = homes_units(h);
    s->units = slots_map(2 * units * sizeof *s->units);
    s->copied = s->units + units;
    castor_status status = s->units ? slots_manager_make(s)
                                    : error_set(CASTOR_ERR_MEMORY, "no memory for a table of %llu units",
                                                (unsigned long long)units);
    if (status != CASTOR_OK) {
        slots_unmap(s->units, 2 * units * sizeof *s->units);
        slots_unmap(s, sizeof *s);
        return status;
    }
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return CASTOR_OK;
}

void slots_copies_set(slots *s, copies *c) {
    s->copies = c;
}

void slots_destroy(slots *s) {
    if (!s)
        return;
    const device_driver *d = &s->driver;
    chunk_manager_destroy(s->manager);
    /* What may still run there keeps its memory and its events. */
    if (d->drain(d->context, s->device) == CASTOR_OK) {
        for (uint32_t i = 0; i < 2 * s->storages_room; i++) {
            for (uint32_t u = 0; u < SLOTS_STREAMS; u++)
                slots_mark_end(s, &s->entries[i].used[u]);
            if (s->entries[i].ready_made)
                d->event_end(d->context, s->entries[i].ready);
        }
        slots_batches_end(s);
        slots_mark_end(s, &s->join);
        if (s->copy_stream)
            d->stream_end(d->context, s->copy_stream);
        if (s->region)
            slots_region_end(s);
    }
    slots_tables_end(s);
    slots_unmap(s->units, 2 * sizeof *s->units * homes_units(s->homes));
    pthread_mutex_destroy(&s->lock);
    slots_unmap(s, sizeof *s);
}

/* The manager found no range for a copy ahead: a run of slots that are needed later leaves, and it tries again. */
static void plan_again(slots *s) {
    for (uint32_t runs = 0; s->wanted != SLOTS_NONE && runs <= RUNS_AT_ONCE; runs++) {
        /* At first what has left already gives its room. */
        if (runs > 0 && !slots_run_free(s, s->wanted, chunk_manager_key(s->manager, s->wanted)))
            break;
        s->wanted = SLOTS_NONE;
        chunk_manager_advance(s->manager);
    }
    s->wanted = SLOTS_NONE;
}

static castor_status access_make(slots *s, uint32_t number) {
    castor_status status = chunk_manager_access(s->manager, number, false);
    if (status == CASTOR_ERR_MEMORY && slots_run_free(s, number, 0))
        status = chunk_manager_access(s->manager, number, false);
    return status;
}

static bool captures(const slots *s, uint64_t stream) {
    const device_driver *d = &s->driver;
    return d->captures_run(d->context) && d->stream_captures(d->context, s->device, stream);
}

static bool slot_may_be(slots *s, uint32_t number, uint64_t stream) {
    const slots_storage *st = &s->storages[number];
    if (st->room > s->region_most && st->bytes > s->too_large_bytes) {
        s->too_large = st->address;
        s->too_large_bytes = st->bytes;
    }
    if (st->home_only || st->room > s->region_bytes || captures(s, stream))
        return false;
    if (slots_region_make(s) == CASTOR_OK)
        return true;
    if (!s->warned)
        LOG_W("device %d: no memory for %B of slots (%s): parameters in host memory are read from there; "
              "lower CASTOR_DEVICE_BUDGET or the batch size",
              s->device, s->region_most, error_text());
    s->warned = true;
    return false;
}

/* The storage's slot is there, and what comes in the stream waits for its copy. False: it is read in its home. */
static bool use_make(slots *s, uint32_t number, uint64_t stream) {
    const device_driver *d = &s->driver;
    if (!slot_may_be(s, number, stream))
        return false;
    s->user = number;
    s->user_stream = stream;
    s->used_copy = false;
    chunk_manager_event(s->manager, MOMENT_FORWARD, number);
    plan_again(s);
    slots_storage *st = &s->storages[number];
    if (st->entry != SLOTS_NONE && s->entries[st->entry].stale)
        slots_storage_settle(s, number);
    /* A stale slot stays where it is in use, or was for a use that could not be noted. */
    castor_status status = CASTOR_ERR_UNSUPPORTED;
    if (st->entry == SLOTS_NONE || !s->entries[st->entry].stale)
        status = access_make(s, number);
    s->user = s->wanted = SLOTS_NONE;
    if (status != CASTOR_OK)
        return false;
    slots_entry *e = &s->entries[st->entry];
    bool in_time = !s->used_copy && d->event_done(d->context, e->ready);
    if (d->event_wait(d->context, s->device, stream, e->ready) != CASTOR_OK) {
        chunk_manager_release(s->manager, number);
        return false;
    }
    if (!s->used_copy) {
        s->statistics.hits++;
        s->statistics.prefetched += e->ahead;
        s->statistics.in_time += in_time;
    }
    e->ahead = false;
    st->users++;
    return true;
}

slot_use slot_use_begin(slots *s, uintptr_t pointer, size_t bytes, uint64_t stream) {
    slot_use use = {pointer, SLOT_USE_NONE, stream};
    if (!slots_touched(s, pointer, 1))
        return use;
    copies_look(s->copies, false);
    pthread_mutex_lock(&s->lock);
    slots_batches_close(s);
    uint32_t number = slots_find(s, pointer);
    const slots_storage *st = number == SLOTS_NONE ? NULL : &s->storages[number];
    if (st && bytes <= st->address + st->bytes - pointer && home_is_on_host(s->homes, pointer)) {
        s->statistics.uses++;
        if (use_make(s, number, stream)) {
            const slots_entry *e = &s->entries[st->entry];
            use.storage = number;
            use.pointer = s->region + e->first + st->address % SLOTS_ALIGNMENT + (pointer - st->address);
        } else {
            s->statistics.home_reads++;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return use;
}

/* Whoever writes the slot's memory next waits for what was enqueued in the stream so far. */
static castor_status use_note(slots *s, slots_entry *e, uint64_t stream) {
    slots_mark *mark = NULL;
    for (uint32_t u = 0; u < SLOTS_STREAMS; u++) {
        if (e->used[u].pending && e->used[u].stream == stream)
            return slots_mark_record(s, &e->used[u], stream);
        if (!e->used[u].pending && !mark)
            mark = &e->used[u];
    }
    /* Without a free one, the copy stream waits for the uses in one of the other streams now. */
    return slots_mark_record(s, mark ? mark : &e->used[0], stream);
}

void slot_use_end(slots *s, const slot_use *use) {
    if (use->storage == SLOT_USE_NONE)
        return;
    pthread_mutex_lock(&s->lock);
    slots_storage *st = &s->storages[use->storage];
    slots_entry *e = &s->entries[st->entry];
    if (use_note(s, e, use->stream) != CASTOR_OK && !e->kept) {
        e->kept = true;
        chunk_manager_pin(s->manager, use->storage);
    }
    chunk_manager_release(s->manager, use->storage);
    st->users--;
    if (e->stale || st->forgotten)
        slots_storage_settle(s, use->storage);
    pthread_mutex_unlock(&s->lock);
}

void slots_stale(slots *s, uint32_t number) {
    uint32_t entry = s->storages[number].entry;
    if (entry == SLOTS_NONE)
        return;
    s->statistics.stale += !s->entries[entry].stale;
    s->entries[entry].stale = true;
    slots_storage_settle(s, number);
}

/* Places [first, end). */
typedef struct written_places {
    uint32_t first, end;
} written_places;

/* One writer of all that lies there. */
static void places_written(slots *s, const written_places *places, uint32_t count, uint64_t stream) {
    bool captured = captures(s, stream);
    uint64_t batch = 0;
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = places[n].first; i < places[n].end; i++) {
            slots_storage *st = &s->storages[s->places[i].number];
            st->home_only |= captured;
            if (!captured && st->ordered == s->order)
                st->writer = batch = batch ? batch : slots_batches_add(s, stream);
            slots_stale(s, s->places[i].number);
        }
}

void slots_written(slots *s, uintptr_t address, size_t bytes, uint64_t stream) {
    if (!slots_touched(s, address, bytes ? bytes : 1))
        return;
    written_places places;
    pthread_mutex_lock(&s->lock);
    places.first = slots_places(s, address, bytes, &places.end);
    if (places.end > places.first)
        places_written(s, &places, 1, stream);
    pthread_mutex_unlock(&s->lock);
}

void slots_written_each(slots *s, const uintptr_t *addresses, uint32_t count, uint64_t stream) {
    written_places places[SLOTS_ADDRESSES_MOST];
    uint32_t found = 0;
    uintptr_t home = 0, home_end = 0; /* of the last one that was found */
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (addresses[i] >= home && addresses[i] < home_end)
            continue;
        written_places *p = &places[found];
        p->first = slots_places(s, addresses[i], 0, &p->end);
        if (p->first == p->end)
            continue;
        const slots_storage *st = &s->storages[s->places[p->first].number];
        home = st->home;
        home_end = st->home_end;
        found++;
    }
    if (found)
        places_written(s, places, found, stream);
    pthread_mutex_unlock(&s->lock);
}

void slots_written_all(slots *s, uint64_t stream) {
    pthread_mutex_lock(&s->lock);
    bool captured = captures(s, stream);
    for (uint32_t i = 0; captured && i < s->places_count; i++)
        s->storages[s->places[i].number].home_only = true;
    if (!captured && s->copy_stream) /* something was copied */
        s->batches.all = slots_batches_add(s, stream);
    for (uint32_t i = s->entries_first, next; i != SLOTS_NONE; i = next) {
        next = s->entries[i].next;
        if (s->entries[i].storage != SLOTS_NONE)
            slots_stale(s, s->entries[i].storage);
    }
    pthread_mutex_unlock(&s->lock);
}

void slots_writes_end(slots *s) {
    pthread_mutex_lock(&s->lock);
    slots_batches_close(s);
    pthread_mutex_unlock(&s->lock);
}

void slots_step_end(slots *s) {
    copies_look(s->copies, true);
    pthread_mutex_lock(&s->lock);
    slots_batches_close(s);
    s->region_pause -= s->region_pause != 0;
    if (s->copy_stream) /* there was a region */
        slots_region_make(s);
    chunk_manager_step_end(s->manager);
    plan_again(s);
    pthread_mutex_unlock(&s->lock);
}

uint64_t slots_too_large(slots *s, uintptr_t *address) {
    pthread_mutex_lock(&s->lock);
    uint64_t bytes = s->too_large_bytes;
    *address = s->too_large;
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

void slots_statistics_get(slots *s, slots_statistics *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->statistics;
    pthread_mutex_unlock(&s->lock);
}
