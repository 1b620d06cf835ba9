/* Where each collective is drawn. */
#include <stdlib.h>
#include <string.h>
#include "collective_statistics.h"

enum { LANES = 32 };

static const report_collectives *sorting; /* qsort passes no context */

static int compare_by_group(const void *left, const void *right) {
    const report_entry *a = left, *b = right;
    const report_key *key_a = &sorting->keys[a->key], *key_b = &sorting->keys[b->key];
    if (key_a->process != key_b->process)
        return sorting->places[key_a->process] < sorting->places[key_b->process] ? -1 : 1;
    if (key_a->group != key_b->group)
        return key_a->group < key_b->group ? -1 : 1;
    return a->begin_job_ns < b->begin_job_ns ? -1 : a->begin_job_ns > b->begin_job_ns;
}

static void give_turns(report_collectives *collectives, const report_match *match) {
    const report_sequence *sequences = &collectives->sequences[match->first_sequence];
    for (size_t j = 0; j < match->sequences; j++)
        for (size_t i = 0; i < sequences[j].entries; i++)
            collectives->entries[sequences[j].first_entry + i].instance = i & 0x1ffffff;
    for (size_t i = 0; i < match->instances; i++) {
        report_entry *first = &collectives->entries[sequences[0].first_entry + i], *last = first;
        for (size_t j = 0; j < match->sequences; j++) {
            report_entry *entry = &collectives->entries[sequences[j].first_entry + i];
            entry->turn = REPORT_TURN_MIDDLE;
            if (entry->begin_job_ns < first->begin_job_ns)
                first = entry;
            if (entry->begin_job_ns >= last->begin_job_ns)
                last = entry;
        }
        first->turn = REPORT_TURN_FIRST;
        last->turn = REPORT_TURN_LAST;
    }
}

void report_collectives_lanes(report_collectives *collectives) {
    uint64_t end_ns[LANES] = {0};
    const report_key *before = NULL;
    if (collectives->entry_count == 0)
        return;
    for (size_t i = 0; i < collectives->match_count; i++)
        give_turns(collectives, &collectives->matches[i]);
    sorting = collectives;
    qsort(collectives->entries, collectives->entry_count, sizeof *collectives->entries, compare_by_group);
    for (size_t i = 0; i < collectives->entry_count; i++) {
        report_entry *entry = &collectives->entries[i];
        const report_key *key = &collectives->keys[entry->key];
        if (before == NULL || before->process != key->process || before->group != key->group)
            memset(end_ns, 0, sizeof end_ns);
        before = key;
        unsigned lane = 0;
        while (lane + 1 < LANES && end_ns[lane] > entry->begin_job_ns)
            lane++;
        entry->lane = lane & (LANES - 1);
        end_ns[lane] = entry->begin_job_ns + entry->ns;
    }
}
