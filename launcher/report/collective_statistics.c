#include "collective_statistics.h"

#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"

#define KEYS_MAX       200000u /* beyond them, sizes are told apart by class only */
#define OPERATIONS_MAX 1000u

report_collectives *report_collectives_new(void) {
    report_collectives *collectives = calloc(1, sizeof *collectives);
    if (collectives != NULL)
        collectives->last_key = REPORT_ENTRY_NONE;
    return collectives;
}

void report_collectives_free(report_collectives *collectives) {
    if (collectives == NULL)
        return;
    for (size_t i = 0; i < collectives->operation_count; i++)
        free(collectives->operations[i]);
    for (size_t i = 0; i < collectives->group_count; i++) {
        free(collectives->groups[i].processes);
        free(collectives->groups[i].label);
    }
    free(collectives->operations);
    free(collectives->groups);
    free(collectives->told);
    free(collectives->sequences);
    free(collectives->matches);
    free(collectives->keys);
    free(collectives->places);
    free(collectives->slots);
    free(collectives->entries);
    free(collectives->classes);
    free(collectives);
}

/* ---- operations: the same number for the same name in every process ---- */

static bool find_operation(report_collectives *collectives, const char *name, uint32_t *out) {
    for (size_t i = 0; i < collectives->operation_count; i++)
        if (strcmp(collectives->operations[i], name) == 0) {
            *out = (uint32_t)i;
            return true;
        }
    if (collectives->operation_count == OPERATIONS_MAX) {
        *out = OPERATIONS_MAX - 1;
        return true;
    }
    if (!array_grow(&collectives->operations, &collectives->operation_capacity, collectives->operation_count,
                    sizeof *collectives->operations))
        return false;
    char *copy = strdup(name);
    if (copy == NULL)
        return false;
    *out = (uint32_t)collectives->operation_count;
    collectives->operations[collectives->operation_count++] = copy;
    return true;
}

static bool operation_of(report_collectives *collectives, report_process *process, uint32_t id,
                         uint32_t *out) {
    uint32_t ids = trace_slot_ids(TRACE_COLLECTIVE), slot = id < ids ? id : ids - 1;
    if (process->operations == NULL &&
        (process->operations = calloc(ids, sizeof *process->operations)) == NULL)
        return false;
    if (process->operations[slot] == 0) {
        char fallback[32];
        if (!find_operation(collectives, report_id_name(process->counters, TRACE_COLLECTIVE, slot, fallback),
                            out))
            return false;
        process->operations[slot] = (uint16_t)(*out + 1);
    }
    *out = process->operations[slot] - 1u;
    return true;
}

/* ---- keys ---- */

static uint64_t hash_key(const report_key *key) {
    uint64_t hash = key->size_bytes;
    const uint32_t parts[] = {key->process, key->operation, key->group_number, key->group_size};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = (hash ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static bool same_key(const report_key *a, const report_key *b) {
    return a->size_bytes == b->size_bytes && a->process == b->process && a->operation == b->operation &&
           a->group_number == b->group_number && a->group_size == b->group_size;
}

static bool grow_keys(report_collectives *collectives) {
    size_t capacity = collectives->key_capacity;
    if (!array_grow(&collectives->keys, &capacity, collectives->key_count, sizeof *collectives->keys))
        return false;
    size_t slot_count = capacity * 2;
    uint32_t *slots = malloc(slot_count * sizeof *slots);
    if (slots == NULL)
        return false;
    memset(slots, 0xff, slot_count * sizeof *slots);
    for (size_t i = 0; i < collectives->key_count; i++) {
        size_t slot = hash_key(&collectives->keys[i]) % slot_count;
        while (slots[slot] != REPORT_ENTRY_NONE)
            slot = (slot + 1) % slot_count;
        slots[slot] = (uint32_t)i;
    }
    free(collectives->slots);
    collectives->slots = slots;
    collectives->slot_count = slot_count;
    collectives->key_capacity = capacity;
    return true;
}

report_key *report_collectives_find(report_collectives *collectives, const report_key *wanted) {
    if (collectives->slot_count == 0)
        return NULL;
    for (size_t slot = hash_key(wanted) % collectives->slot_count;
         collectives->slots[slot] != REPORT_ENTRY_NONE; slot = (slot + 1) % collectives->slot_count)
        if (same_key(&collectives->keys[collectives->slots[slot]], wanted))
            return &collectives->keys[collectives->slots[slot]];
    return NULL;
}

/* The key with these properties, a new one if there is none. NULL when memory is out. */
static report_key *find_key(report_collectives *collectives, report_key *wanted) {
    if (collectives->last_key != REPORT_ENTRY_NONE &&
        same_key(&collectives->keys[collectives->last_key], wanted))
        return &collectives->keys[collectives->last_key];
    report_key *found = report_collectives_find(collectives, wanted);
    if (found == NULL && collectives->key_count >= KEYS_MAX) {
        wanted->size_bytes = UINT64_MAX - wanted->size_class;
        found = report_collectives_find(collectives, wanted);
    }
    if (found == NULL) {
        if (collectives->key_count == collectives->key_capacity && !grow_keys(collectives))
            return NULL;
        size_t slot = hash_key(wanted) % collectives->slot_count;
        while (collectives->slots[slot] != REPORT_ENTRY_NONE)
            slot = (slot + 1) % collectives->slot_count;
        wanted->min_ns = UINT64_MAX;
        found = &collectives->keys[collectives->key_count];
        *found = *wanted;
        collectives->slots[slot] = (uint32_t)collectives->key_count++;
    }
    collectives->last_key = (uint32_t)(found - collectives->keys);
    return found;
}

static bool add_entry(report_collectives *collectives, uint32_t key, uint64_t begin_ns, uint64_t ns) {
    if (collectives->entry_count == REPORT_ENTRIES_MAX) {
        collectives->entries_left_out++;
        return true;
    }
    if (!array_grow(&collectives->entries, &collectives->entry_capacity, collectives->entry_count,
                    sizeof *collectives->entries))
        return false;
    collectives->entries[collectives->entry_count++] =
        (report_entry){.begin_job_ns = begin_ns, .ns = ns, .key = key};
    return true;
}

bool report_collectives_add(report_collectives *collectives, report_process *process, uint32_t process_index,
                            const trace_record *record, uint64_t ns) {
    report_key wanted = {.process = process_index,
                         .group_number = (uint32_t)record->b,
                         .group_size = (uint32_t)(record->b >> 32),
                         .size_bytes = record->bytes,
                         .size_class = report_size_class(record->bytes)};
    report_key *key = operation_of(collectives, process, record->id, &wanted.operation)
                          ? find_key(collectives, &wanted)
                          : NULL;
    if (key == NULL)
        return false;
    key->count++;
    key->bytes += record->bytes;
    key->ns += ns;
    key->min_ns = ns < key->min_ns ? ns : key->min_ns;
    key->max_ns = ns > key->max_ns ? ns : key->max_ns;
    return add_entry(collectives, collectives->last_key, record->begin_ns, ns);
}

/* ---- order ---- */

static int compare_by_key(const void *left, const void *right) {
    const report_entry *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->begin_job_ns < b->begin_job_ns ? -1 : a->begin_job_ns > b->begin_job_ns;
}

void report_collectives_sort(report_collectives *collectives) {
    if (collectives->entry_count == 0)
        return;
    qsort(collectives->entries, collectives->entry_count, sizeof *collectives->entries, compare_by_key);
    for (size_t i = 0; i < collectives->entry_count; i++) {
        report_key *key = &collectives->keys[collectives->entries[i].key];
        if (key->entries++ == 0)
            key->first_entry = i;
    }
}
