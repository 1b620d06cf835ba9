/* Which collectives of different ranks are the same one, and what the classes come to. */
#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"
#include "collective_statistics.h"

/* ---- sequences and matches ---- */

static const report_collectives *sorting; /* qsort passes no context */

/* By group, operation, size and rank. */
static int compare_keys(const void *left, const void *right) {
    const report_key *a = &sorting->keys[*(const uint32_t *)left],
                     *b = &sorting->keys[*(const uint32_t *)right];
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->operation != b->operation)
        return a->operation < b->operation ? -1 : 1;
    if (a->size_bytes != b->size_bytes)
        return a->size_bytes < b->size_bytes ? -1 : 1;
    uint32_t place_a = sorting->places[a->process], place_b = sorting->places[b->process];
    return place_a < place_b ? -1 : place_a > place_b;
}

/* Whether every process of the group has one key of each size: then sizes are matched each on its own. */
static bool sizes_agree(const report_collectives *collectives, const uint32_t *order, size_t begin,
                        size_t end) {
    const report_key *keys = collectives->keys;
    size_t members = collectives->groups[keys[order[begin]].group].process_count;
    for (size_t from = begin, to; from < end; from = to) {
        for (to = from; to < end && keys[order[to]].size_bytes == keys[order[from]].size_bytes; to++)
            /* By rank: two keys of one process, which tells two sizes of the group, stand side by side. */
            if (to > from && keys[order[to]].process == keys[order[to - 1]].process)
                return false;
        if (to - from != members)
            return false;
    }
    return true;
}

static int compare_places(const void *left, const void *right) {
    uint32_t a = sorting->places[sorting->keys[*(const uint32_t *)left].process],
             b = sorting->places[sorting->keys[*(const uint32_t *)right].process];
    return a < b ? -1 : a > b;
}

/* One match of keys order[begin..end), one sequence for each process. */
static void add_match(report_collectives *collectives, uint32_t *order, size_t begin, size_t end) {
    const report_key *first = &collectives->keys[order[begin]];
    report_match *match = &collectives->matches[collectives->match_count++];
    *match = (report_match){first->operation, first->group, collectives->sequence_count, 0, 0};
    qsort(order + begin, end - begin, sizeof *order, compare_places);
    for (size_t i = begin; i < end; i++) {
        report_key *key = &collectives->keys[order[i]];
        report_sequence *last = &collectives->sequences[collectives->sequence_count];
        if (i > begin && last[-1].process == key->process)
            last--;
        else
            collectives->sequences[collectives->sequence_count++] = (report_sequence){
                key->process, (uint32_t)(match - collectives->matches), key->first_entry, 0};
        last->entries += key->entries;
        key->sequence = (uint32_t)(last - collectives->sequences);
    }
    match->sequences = collectives->sequence_count - match->first_sequence;
}

static int compare_by_sequence(const void *left, const void *right) {
    const report_entry *a = left, *b = right;
    uint32_t sequence_a = sorting->keys[a->key].sequence, sequence_b = sorting->keys[b->key].sequence;
    if (sequence_a != sequence_b)
        return sequence_a < sequence_b ? -1 : 1;
    return a->begin_job_ns < b->begin_job_ns ? -1 : a->begin_job_ns > b->begin_job_ns;
}

static void place_sequences(report_collectives *collectives, bool merged) {
    if (merged && collectives->entry_count > 0) {
        for (size_t i = 0; i < collectives->sequence_count; i++)
            collectives->sequences[i].entries = 0;
        qsort(collectives->entries, collectives->entry_count, sizeof *collectives->entries,
              compare_by_sequence);
        for (size_t i = 0; i < collectives->entry_count; i++) {
            report_sequence *sequence =
                &collectives->sequences[collectives->keys[collectives->entries[i].key].sequence];
            if (sequence->entries++ == 0)
                sequence->first_entry = i;
        }
    }
    for (size_t i = 0; i < collectives->match_count; i++) {
        report_match *match = &collectives->matches[i];
        match->instances = SIZE_MAX;
        for (size_t j = 0; j < match->sequences; j++)
            if (collectives->sequences[match->first_sequence + j].entries < match->instances)
                match->instances = collectives->sequences[match->first_sequence + j].entries;
        if (match->sequences < 2)
            match->instances = 0;
    }
}

static bool find_matches(report_collectives *collectives) {
    size_t count = collectives->key_count;
    uint32_t *order = calloc(count + 1, sizeof *order);
    collectives->sequences = calloc(count + 1, sizeof *collectives->sequences);
    collectives->matches = calloc(count + 1, sizeof *collectives->matches);
    bool complete = order != NULL && collectives->sequences != NULL && collectives->matches != NULL;
    bool merged = false;
    for (size_t i = 0; complete && i < count; i++)
        order[i] = (uint32_t)i;
    sorting = collectives;
    if (complete && count > 0)
        qsort(order, count, sizeof *order, compare_keys);
    for (size_t begin = 0, end; complete && begin < count; begin = end) {
        const report_key *first = &collectives->keys[order[begin]];
        for (end = begin; end < count && collectives->keys[order[end]].group == first->group &&
                          collectives->keys[order[end]].operation == first->operation;
             end++)
            ;
        if (!sizes_agree(collectives, order, begin, end)) {
            merged = true;
            add_match(collectives, order, begin, end);
            continue;
        }
        size_t members = collectives->groups[first->group].process_count;
        for (size_t from = begin; from < end; from += members)
            add_match(collectives, order, from, from + members);
    }
    if (complete)
        place_sequences(collectives, merged);
    free(order);
    return complete;
}

/* ---- classes ---- */

static bool find_class(report_collectives *collectives, report_key *key) {
    for (size_t i = 0; i < collectives->class_count; i++) {
        const report_class *class = &collectives->classes[i];
        key->line = (uint32_t)i;
        if (class->operation == key->operation && class->group == key->group &&
            class->size_class == key->size_class)
            return true;
    }
    if (!array_grow(&collectives->classes, &collectives->class_capacity, collectives->class_count,
                    sizeof *collectives->classes))
        return false;
    key->line = (uint32_t)collectives->class_count++;
    collectives->classes[key->line] = (report_class){.operation = key->operation,
                                                     .group = key->group,
                                                     .size_class = key->size_class,
                                                     .min_ns = UINT64_MAX};
    return true;
}

/* Time spent in matched collectives, and the part of it that went by before the last rank began: the rank that began last
 * took the time that the others would have taken. */
static void add_lateness(report_collectives *collectives, const report_match *match) {
    const report_group *group = &collectives->groups[match->group];
    if (match->sequences < group->process_count || group->process_count < group->size ||
        !report_is_synchronous(collectives->operations[match->operation]))
        return;
    const report_sequence *sequences = &collectives->sequences[match->first_sequence];
    for (size_t i = 0; i < match->instances; i++) {
        uint64_t least_ns = UINT64_MAX;
        for (size_t j = 0; j < match->sequences; j++) {
            const report_entry *entry = &collectives->entries[sequences[j].first_entry + i];
            least_ns = entry->ns < least_ns ? entry->ns : least_ns;
        }
        for (size_t j = 0; j < match->sequences; j++) {
            const report_entry *entry = &collectives->entries[sequences[j].first_entry + i];
            report_class *class = &collectives->classes[collectives->keys[entry->key].line];
            class->matched++;
            class->matched_ns += entry->ns;
            class->late_ns += entry->ns - least_ns;
        }
    }
}

static int compare_classes(const void *left, const void *right) {
    const report_class *a = left, *b = right;
    if (a->ns != b->ns)
        return a->ns < b->ns ? 1 : -1;
    if (a->count != b->count)
        return a->count < b->count ? 1 : -1;
    if (a->operation != b->operation)
        return a->operation < b->operation ? -1 : 1;
    return a->size_class < b->size_class ? -1 : a->size_class > b->size_class;
}

static bool find_classes(report_collectives *collectives) {
    for (size_t i = 0; i < collectives->key_count; i++) {
        report_key *key = &collectives->keys[i];
        if (!find_class(collectives, key))
            return false;
        report_class *class = &collectives->classes[key->line];
        class->count += key->count;
        class->bytes += key->bytes;
        class->ns += key->ns;
        class->min_ns = key->min_ns < class->min_ns ? key->min_ns : class->min_ns;
        class->max_ns = key->max_ns > class->max_ns ? key->max_ns : class->max_ns;
    }
    for (size_t i = 0; i < collectives->match_count; i++)
        add_lateness(collectives, &collectives->matches[i]);
    for (size_t i = 0; i < collectives->class_count; i++) {
        report_class *class = &collectives->classes[i];
        double factor = report_bus_factor(collectives->operations[class->operation],
                                          collectives->groups[class->group].size);
        if (class->ns > 0)
            class->bus_bandwidth = (double)class->bytes * factor / ((double)class->ns / 1e9);
        uint64_t transfer_ns = class->matched_ns - class->late_ns;
        if (class->matched > 0 && transfer_ns > 0)
            class->transfer_bus_bandwidth = (double)class->bytes / (double)class->count *
                                            (double)class->matched * factor / ((double)transfer_ns / 1e9);
    }
    if (collectives->class_count > 0)
        qsort(collectives->classes, collectives->class_count, sizeof *collectives->classes, compare_classes);
    return true;
}

bool report_collectives_finish(report *report) {
    report_collectives *collectives = report->matched;
    for (size_t i = 0; i < collectives->entry_count; i++) {
        report_entry *entry = &collectives->entries[i];
        const report_process *process = &report->processes[collectives->keys[entry->key].process];
        entry->begin_job_ns = report_job_ns(report, process, entry->begin_job_ns);
    }
    report_collectives_sort(collectives);
    return report_find_groups(report) && find_matches(collectives) && find_classes(collectives);
}
