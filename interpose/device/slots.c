/* Uses and writers. */
#include "slots.h"

#include "base/error.h"
#include "base/log.h"
#include "slots_inside.h"

static castor_status slots_manager_make(slots *s);

static castor_status slots_batches_wait(slots *s, uint64_t batch);

static void slots_batches_close(slots *s);

/* ---- The order on the device: marks, and copies into slots. */

/* Records the mark in a stream. An error: what it stood for before it still does. */
static castor_status slots_mark_record(slots *s, slots_mark *mark, uint64_t stream) {
    const device_driver *d = &s->driver;
    castor_status status = CASTOR_OK;
    /* A later record covers those before it in the same stream only, and another thread's stream may have the same name. */
    if (mark->pending && (mark->stream != stream || stream == DEVICE_STREAM_PER_THREAD))
        status = slots_mark_wait(s, mark);
    if (status == CASTOR_OK && !mark->made) {
        status = d->event_make(d->context, s->device, &mark->event);
        mark->made = status == CASTOR_OK;
    }
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, mark->event, stream);
    if (status == CASTOR_OK) {
        mark->stream = stream;
        mark->pending = true;
    }
    return status;
}

static void slots_mark_end(slots *s, slots_mark *mark) {
    if (mark->made)
        s->driver.event_end(s->driver.context, mark->event);
}

/* Whether a copy may be made now, as far as the storage goes. */
static bool slots_copy_may(const slots *s, uint32_t number) {
    const slots_storage *st = &s->storages[number];
    return s->region && !s->region_pause && st->bytes && !st->home_only &&
           (st->ordered == s->order || number == s->user) && home_is_on_host(s->homes, st->address);
}

/* What the copy must come after has been enqueued before it: the writers. Readers of the memory were waited for when it was taken. */
static castor_status writers_wait(slots *s, slots_storage *st) {
    if (st->ordered == s->order)
        return slots_batches_wait(s, st->writer > s->batches.all ? st->writer : s->batches.all);
    castor_status status = slots_mark_record(s, &s->join, s->user_stream);
    return status == CASTOR_OK ? slots_mark_wait(s, &s->join) : status;
}

/* Into the storage's slot. */
static castor_status slots_copy(slots *s, uint32_t number) {
    slots_storage *st = &s->storages[number];
    slots_entry *e = &s->entries[st->entry];
    const device_driver *d = &s->driver;
    slots_storage_copied(s, st);
    castor_status status = writers_wait(s, st);
    if (status == CASTOR_OK && !e->ready_made) {
        status = d->event_make(d->context, s->device, &e->ready);
        e->ready_made = status == CASTOR_OK;
    }
    if (status == CASTOR_OK)
        status = d->copy_enqueue(d->context, s->device, s->region + e->first + st->address % SLOTS_ALIGNMENT,
                                 st->address, st->bytes, s->copy_stream);
    /* A copy without this event is in nobody's way: all that is written to the region goes through the one stream. */
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, e->ready, s->copy_stream);
    if (status != CASTOR_OK)
        return status;
    copies_note(s->copies, COPY_SLOT, st->bytes, s->copy_stream);
    bool used = s->user == number;
    e->ahead = !used;
    s->used_copy |= used;
    st->ordered = s->order;
    s->statistics.copies++;
    s->statistics.copied_bytes += st->bytes;
    return CASTOR_OK;
}

/* ---- Whom a copy must wait for. Events of launches cost more than launches, so one event stands for many writers: it is recorded when a use
 * begins, since none begins a copy before, and when it could not be recorded later. */

#define EVENT(b, batch) (&(b)->events[(batch) % SLOTS_BATCHES])

/* A writer was enqueued in the stream: the batch that it is in. */
static uint64_t slots_batches_add(slots *s, uint64_t stream) {
    slots_batches *b = &s->batches;
    if (b->open && b->stream != stream)
        slots_batches_close(s);
    b->open = true;
    b->stream = stream;
    uint64_t batch = b->last;
    /* Another thread's stream has the same name, and a capture may come to this one. */
    if (stream == DEVICE_STREAM_PER_THREAD || s->driver.captures_run(s->driver.context))
        slots_batches_close(s);
    return batch;
}

/* The event of the open batch is recorded. */
static void slots_batches_close(slots *s) {
    slots_batches *b = &s->batches;
    const device_driver *d = &s->driver;
    if (!b->open)
        return;
    b->open = false;
    uint64_t *event = EVENT(b, b->last);
    castor_status status = CASTOR_OK;
    if (b->last - b->waited > SLOTS_BATCHES) /* the event stands for an older one */
        status = slots_batches_wait(s, b->last - SLOTS_BATCHES);
    if (status == CASTOR_OK && !*event)
        status = d->event_make(d->context, s->device, event);
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, *event, b->stream);
    if (status == CASTOR_OK)
        b->last++;
    else
        s->order++; /* the next copies are made by uses, and wait for all that these come after */
}

/* The copy stream waits for all batches up to that one. None is open. */
static castor_status slots_batches_wait(slots *s, uint64_t batch) {
    slots_batches *b = &s->batches;
    const device_driver *d = &s->driver;
    castor_status status = CASTOR_OK;
    /* The last one is empty: what was noted there before an error is not ordered by it. */
    while (b->waited < batch && b->waited + 1 < b->last && status == CASTOR_OK) {
        status = d->event_wait(d->context, s->device, s->copy_stream, *EVENT(b, b->waited + 1));
        b->waited += status == CASTOR_OK;
    }
    return status;
}

static void slots_batches_end(slots *s) {
    for (uint32_t i = 0; i < SLOTS_BATCHES; i++)
        if (s->batches.events[i])
            s->driver.event_end(s->driver.context, s->batches.events[i]);
}

/* ---- */

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
        if (s->passed)
            d->event_end(d->context, s->passed);
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

castor_status slots_copies_join(slots *s, uint64_t stream) {
    const device_driver *d = &s->driver;
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&s->lock);
    if (s->copy_stream) {
        if (!s->passed)
            status = d->event_make(d->context, s->device, &s->passed);
        if (status == CASTOR_OK)
            status = d->event_record(d->context, s->device, s->passed, s->copy_stream);
        if (status == CASTOR_OK)
            status = d->event_wait(d->context, s->device, stream, s->passed);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void slots_step_end(slots *s) {
    copies_look(s->copies, true);
    pthread_mutex_lock(&s->lock);
    slots_batches_close(s);
    s->region_pause -= s->region_pause != 0;
    s->unused_steps = s->statistics.uses == s->uses_before ? s->unused_steps + 1 : 0;
    s->uses_before = s->statistics.uses;
    if (s->copy_stream && s->unused_steps < SLOTS_UNUSED_STEPS) /* there was a region */
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

void slots_next_uses(slots *s, const uint64_t *addresses, uint32_t count, uint64_t *order) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = slots_find(s, addresses[i]);
        order[i] = number == SLOTS_NONE ? MOMENT_NEVER : chunk_manager_next_use(s->manager, number);
    }
    pthread_mutex_unlock(&s->lock);
}

void slots_statistics_get(slots *s, slots_statistics *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->statistics;
    pthread_mutex_unlock(&s->lock);
}

/* ---- The chunk manager's backend: tier 0 is the region, tier 1 are the homes.
 *
 * A move is over when it is begun. It says nothing of how long the copy takes: the host is ahead of the device, so its clock does not
 * tell when a copy must begin, and one begins as soon as there is room (prefetch.h). Only what is needed later gives room for it, and
 * not while what is used before that will give it better (chunk_room.c). So hardly more is copied than must be where each step goes forward
 * and back again, as training does, or in the same order. An evaluation without optimizer steps has no sequence that begins again: all of
 * it is copied each time. */

/* So many operands of one step; a longer one is not recorded, and its copies are not made ahead. */
#define USES_MAX      65536
#define USES_SLACK    4
#define MOVES_AT_ONCE 8

static uint64_t now_ns(void *context) {
    slots *s = context;
    return s->driver.now_ns(s->driver.context);
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    const slots *s = context;
    return tier == 0 ? s->region_bytes : UINT64_MAX;
}

static uint64_t non_model_bytes(void *context) {
    (void)context;
    return 0;
}

/* A copy that must not be made fails after it has begun: the manager then leaves the storage alone until the step is over, and what
 * comes after it is not held up. */
static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    slots *s = context;
    (void)bytes;
    if (tier != 0 || !slots_copy_may(s, chunk))
        return CASTOR_OK;
    castor_status status = slots_range_take(s, chunk);
    if (status == CASTOR_ERR_MEMORY)
        s->wanted = chunk;
    return status;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    slots *s = context;
    (void)bytes;
    if (tier == 0 && s->storages[chunk].entry != SLOTS_NONE)
        slots_range_leave(s, chunk);
}

static castor_status move_start(void *context, const chunk_move *move, uint64_t *handle) {
    slots *s = context;
    *handle = move->chunk;
    return move->to == 0 && s->storages[move->chunk].entry != SLOTS_NONE ? slots_copy(s, move->chunk)
                                                                         : CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    const slots *s = context;
    if (s->storages[handle].entry == SLOTS_NONE)
        return error_set(CASTOR_ERR_UNSUPPORTED, "storage %u can only be read in its home", (unsigned)handle);
    *end = MOVE_DONE;
    *finished_ns = 0;
    return CASTOR_OK;
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    (void)timeout_ns;
    return move_poll(context, handle, end, finished_ns);
}

static void *allocate(void *context, size_t bytes) {
    (void)context;
    return slots_map(bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context;
    slots_unmap(memory, bytes);
}

/* ---- the backend of the chunk manager ---- */
static castor_status slots_manager_make(slots *s) {
    chunk_backend backend = {.context = s,
                             .tiers = 2,
                             .tier_names = {"slots", "homes"},
                             .now_ns = now_ns,
                             .capacity_bytes = capacity_bytes,
                             .non_model_bytes = non_model_bytes,
                             .room_take = room_take,
                             .room_give = room_give,
                             .move_start = move_start,
                             .move_poll = move_poll,
                             .move_wait = move_wait,
                             .allocate = allocate,
                             .deallocate = deallocate};
    /* The region is the chunks' alone. */
    chunk_manager_settings settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.placement.warmup_non_model_data_ratio = 0;
    settings.placement.steady_cap_ratio = 1;
    settings.moments = (moments_settings){USES_MAX, USES_MAX, USES_SLACK};
    settings.moves_at_a_time = MOVES_AT_ONCE;
    return chunk_manager_create(&s->manager, &backend, &settings);
}

/* ---- The invariants of slots, looked at from their tables. */

static castor_status wrong(uint32_t number, const char *what) {
    return error_set(CASTOR_ERR_MISMATCH, "slots, %u: %s", number, what);
}

static castor_status places_check(const slots *s) {
    uint64_t bytes = 0, touches = 0, counted = 0, copies = 0, counted_copies = 0;
    uintptr_t at = 0;
    for (uint32_t i = 0; i < s->places_count; i++) {
        const slots_storage *st = &s->storages[s->places[i].number];
        if (st->address != s->places[i].address || st->bytes == 0 || st->forgotten)
            return wrong(i, "a place has another storage");
        if (st->address < at || st->address < st->home || st->bytes > st->home_end - st->address)
            return wrong(i, "storages are not in order, or not in their homes");
        at = st->address + st->bytes;
        bytes += st->bytes;
        touches += (st->home_end - st->home) >> s->unit_bits;
        copies += st->copied ? (st->home_end - st->home) >> s->unit_bits : 0;
        if (!st->copied && (st->entry != SLOTS_NONE || st->ordered == s->order))
            return wrong(i, "it was copied, and nobody asks for its writers");
        if (!slots_touched(s, st->address, 1) || !slots_touched(s, at - 1, 1))
            return wrong(i, "a unit does not know its storage");
    }
    for (uint32_t unit = 0; unit < homes_units(s->homes); unit++) {
        counted += __atomic_load_n(&s->units[unit], __ATOMIC_RELAXED) & ~SLOTS_KEPT;
        counted_copies += __atomic_load_n(&s->copied[unit], __ATOMIC_RELAXED);
    }
    if (touches != counted || copies != counted_copies)
        return wrong(s->places_count, "units count storages that are none");
    return bytes == s->statistics.storage_bytes && s->places_count == s->statistics.storages
               ? CASTOR_OK
               : wrong(s->places_count, "the statistics have other storages");
}

/* `held`: bytes of slots. */
static castor_status region_check(slots *s, uint64_t *held) {
    uint64_t at = 0;
    uint32_t previous = SLOTS_NONE;
    for (uint32_t i = s->entries_first; i != SLOTS_NONE; previous = i, i = s->entries[i].next) {
        const slots_entry *e = &s->entries[i];
        if (e->previous != previous || e->bytes == 0 || e->bytes > s->region_bytes ||
            e->first > s->region_bytes - e->bytes)
            return wrong(i, "an entry is not in the region");
        if (e->first < at)
            return wrong(i, "entries overlap");
        at = e->first + e->bytes;
        if (e->storage == SLOTS_NONE)
            continue;
        *held += e->bytes;
        if (s->storages[e->storage].entry != i || s->storages[e->storage].room != e->bytes)
            return wrong(i, "a slot has another storage");
    }
    return CASTOR_OK;
}

static castor_status storages_check(slots *s) {
    uint32_t lives = 0, frees = 0;
    for (uint32_t i = 0; i < s->storages_count; i++) {
        const slots_storage *st = &s->storages[i];
        const slots_entry *e = st->entry == SLOTS_NONE ? NULL : &s->entries[st->entry];
        lives += st->bytes && !st->forgotten;
        frees += st->bytes == 0;
        if (st->bytes && e && e->storage != i)
            return wrong(i, "its slot is another storage's");
        if (st->bytes == 0 || !e) {
            if (chunk_manager_tier(s->manager, i) == 0)
                return wrong(i, "it is on the device, and has no slot");
            if (st->bytes && st->users)
                return wrong(i, "it is in use, and has no slot");
        } else if (st->users == 0 && !e->kept && (e->stale || st->forgotten || st->home_only)) {
            return wrong(i, "nobody needs its slot");
        }
    }
    for (uint32_t i = s->storages_free; i != SLOTS_NONE; i = s->storages[i].next_free, frees--)
        if (frees == 0 || s->storages[i].bytes)
            return wrong(i, "a free number is not free");
    return lives == s->places_count && frees == 0 ? CASTOR_OK : wrong(lives, "numbers are lost");
}

castor_status slots_check(slots *s) {
    uint64_t held = 0;
    chunk_statistics managed;
    pthread_mutex_lock(&s->lock);
    castor_status status = places_check(s);
    if (status == CASTOR_OK)
        status = region_check(s, &held);
    if (status == CASTOR_OK)
        status = storages_check(s);
    chunk_manager_statistics(s->manager, &managed);
    /* A move that fails because it must not be is the manager's only until it looks again. */
    if (status == CASTOR_OK && managed.tier_bytes[0] < held)
        status = wrong(0, "slots have more bytes than the chunk manager knows");
    if (status == CASTOR_OK)
        status = chunk_manager_check(s->manager);
    pthread_mutex_unlock(&s->lock);
    return status;
}
