/* The invariants of slots, looked at from their tables. */
#include "core/error.h"
#include "slots_inside.h"

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
