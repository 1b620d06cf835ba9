/* Which ranks' groups are one group. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"
#include "collective_statistics.h"

#define ONE_CLOCK_SLACK_NS UINT64_C(1000000)
#define TOLD_MAX           1000000u /* a process tells 256 at most */

typedef struct member {
    uint32_t process;
    int rank;
    uint32_t cluster;
} member;

static int compare_members(const void *left, const void *right) {
    const member *a = left, *b = right;
    if (a->rank != b->rank)
        return (unsigned)a->rank < (unsigned)b->rank ? -1 : 1; /* unknown ranks last */
    return a->process < b->process ? -1 : a->process > b->process;
}

/* ---- what the processes told ---- */

bool report_collectives_add_group(report_collectives *collectives, uint32_t process_index,
                                  const trace_record *record) {
    if (collectives->told_count >= TOLD_MAX)
        return true;
    if (!array_grow(&collectives->told, &collectives->told_capacity, collectives->told_count,
                    sizeof *collectives->told))
        return false;
    collectives->told[collectives->told_count++] =
        (report_told_group){process_index, (uint32_t)record->a, (uint32_t)(record->c >> 32), record->b};
    return true;
}

static int compare_told(const void *left, const void *right) {
    const report_told_group *a = left, *b = right;
    if (a->process != b->process)
        return a->process < b->process ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void apply_told(report_collectives *collectives) {
    if (collectives->told_count == 0)
        return;
    qsort(collectives->told, collectives->told_count, sizeof *collectives->told, compare_told);
    for (size_t i = 0; i < collectives->key_count; i++) {
        report_key *key = &collectives->keys[i];
        report_told_group wanted = {.process = key->process, .number = key->group_number};
        const report_told_group *told = bsearch(&wanted, collectives->told, collectives->told_count,
                                                sizeof *collectives->told, compare_told);
        key->identity = told != NULL ? told->identity : 0;
        key->told_size = told != NULL ? told->size : 0;
    }
}

/* ---- members and clusters ---- */

/* Keys of one identity; or without one, of one group number. */
typedef struct number_keys {
    uint32_t number; /* that of the first member, by rank */
    bool identified;
    const uint32_t *keys;
    size_t count;
} number_keys;

/* The processes that have one of these keys, by rank. */
static size_t find_members(const report *report, const number_keys *numbered, member *members) {
    size_t count = 0;
    for (size_t i = 0; i < report->process_count; i++)
        members[i].cluster = 0;
    for (size_t i = 0; i < numbered->count; i++)
        members[report->matched->keys[numbered->keys[i]].process].cluster = 1;
    for (size_t i = 0; i < report->process_count; i++)
        if (members[i].cluster == 1)
            members[count++] = (member){(uint32_t)i, report->processes[i].counters->rank, 0};
    qsort(members, count, sizeof *members, compare_members);
    return count;
}

/* Counts collectives of two processes that would be the same one, and those that cannot be: of a synchronous operation none
 * ends before all have begun. */
static void compare_keys(const report_collectives *collectives, const report_key *a, const report_key *b,
                         uint64_t *compared, uint64_t *impossible) {
    size_t count = a->entries < b->entries ? a->entries : b->entries;
    bool synchronous = report_is_synchronous(collectives->operations[a->operation]);
    *compared += count;
    for (size_t i = 0; i < count && synchronous; i++) {
        const report_entry *left = &collectives->entries[a->first_entry + i],
                           *right = &collectives->entries[b->first_entry + i];
        *impossible += left->begin_job_ns > right->begin_job_ns + right->ns + ONE_CLOCK_SLACK_NS ||
                       right->begin_job_ns > left->begin_job_ns + left->ns + ONE_CLOCK_SLACK_NS;
    }
}

static bool may_be_one_group(const report *report, const number_keys *numbered, uint32_t a, uint32_t b) {
    report_collectives *collectives = report->matched;
    uint64_t compared = 0, impossible = 0;
    bool one_clock = report->processes[a].clock_offset_ns == report->processes[b].clock_offset_ns;
    for (size_t i = 0; i < numbered->count; i++) {
        const report_key *key = &collectives->keys[numbered->keys[i]];
        if (key->process != a)
            continue;
        report_key wanted = *key;
        wanted.process = b;
        const report_key *other = report_collectives_find(collectives, &wanted);
        if (other != NULL)
            compare_keys(collectives, key, other, &compared, &impossible);
    }
    /* A few may be out of order where several threads work for a group. */
    return compared > 0 && (!one_clock || impossible * 10 <= compared);
}

/* "0-3,7" of the group's ranks. False: none of them is known. */
static bool append_ranks(const report *report, const report_group *group, char *label, size_t size) {
    size_t length = strlen(label);
    int begin = -2, end = -2;
    bool first = true;
    for (size_t i = 0; i <= group->process_count && length + 32 < size; i++) {
        int rank = i < group->process_count ? report->processes[group->processes[i]].counters->rank : -2;
        if (i < group->process_count && rank == end)
            continue; /* started again */
        if (i < group->process_count && end < INT_MAX && rank == end + 1) {
            end++;
            continue;
        }
        if (end >= 0)
            length += (size_t)snprintf(label + length, size - length, end > begin ? "%s%d-%d" : "%s%d",
                                       first ? "" : ",", begin, end);
        first &= end < 0;
        begin = end = rank;
    }
    return !first;
}

static bool add_group(report_collectives *collectives, uint32_t number, const member *members, size_t count,
                      uint32_t cluster) {
    if (!array_grow(&collectives->groups, &collectives->group_capacity, collectives->group_count,
                    sizeof *collectives->groups))
        return false;
    report_group *group = &collectives->groups[collectives->group_count];
    *group = (report_group){.number = number, .processes = malloc((count + 1) * sizeof *group->processes)};
    if (group->processes == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        if (members[i].cluster == cluster)
            group->processes[group->process_count++] = members[i].process;
    group->size = (uint32_t)group->process_count;
    collectives->group_count++;
    return true;
}

/* Gives the keys of a number their groups, of which the first is `first_group`. */
static void assign_groups(report_collectives *collectives, const number_keys *numbered, const member *members,
                          size_t count, uint32_t *cluster_of, size_t first_group) {
    for (size_t i = 0; i < count; i++)
        cluster_of[members[i].process] = members[i].cluster;
    for (size_t i = 0; i < numbered->count; i++) {
        report_key *key = &collectives->keys[numbered->keys[i]];
        key->group = (uint32_t)first_group + cluster_of[key->process];
        uint32_t size = key->group_size > key->told_size ? key->group_size : key->told_size;
        if (size > collectives->groups[key->group].size)
            collectives->groups[key->group].size = size;
    }
}

/* A process joins the first cluster whose first member it may share a group with. */
static uint32_t find_clusters(const report *report, const number_keys *numbered, member *members,
                              size_t count) {
    uint32_t clusters = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t seen = 0;
        members[i].cluster = clusters;
        for (size_t j = 0; j < i && members[i].cluster == clusters; j++) {
            bool leads = members[j].cluster == seen;
            seen += leads;
            if (leads && may_be_one_group(report, numbered, members[j].process, members[i].process))
                members[i].cluster = members[j].cluster;
        }
        clusters += members[i].cluster == clusters;
    }
    return clusters;
}

static bool split_number(report *report, const number_keys *numbered, member *members, size_t count,
                         uint32_t *cluster_of) {
    size_t first_group = report->matched->group_count;
    uint32_t clusters = numbered->identified ? 1 : find_clusters(report, numbered, members, count);
    for (uint32_t cluster = 0; cluster < clusters; cluster++)
        if (!add_group(report->matched, numbered->number, members, count, cluster))
            return false;
    assign_groups(report->matched, numbered, members, count, cluster_of, first_group);
    return true;
}

static const report_key *sorted_keys; /* qsort passes no context */

static int compare_numbers(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    uint64_t identity_a = sorted_keys[a].identity, identity_b = sorted_keys[b].identity;
    if (identity_a != identity_b)
        return identity_a < identity_b ? -1 : 1;
    uint32_t number_a = sorted_keys[a].group_number, number_b = sorted_keys[b].group_number;
    if (number_a != number_b)
        return number_a < number_b ? -1 : 1;
    return a < b ? -1 : a > b;
}

static void find_places(const report *report, member *members) {
    for (size_t i = 0; i < report->process_count; i++)
        members[i] = (member){(uint32_t)i, report->processes[i].counters->rank, 0};
    if (report->process_count > 0)
        qsort(members, report->process_count, sizeof *members, compare_members);
    for (size_t i = 0; i < report->process_count; i++)
        report->matched->places[members[i].process] = (uint32_t)i;
}

static bool belong_together(const report_key *a, const report_key *b) {
    return a->identity == b->identity && (a->identity != 0 || a->group_number == b->group_number);
}

/* What the first of a group's members calls it. */
static uint32_t number_at(const report_collectives *collectives, const number_keys *numbered,
                          const member *first) {
    uint32_t number = UINT32_MAX;
    for (size_t i = 0; i < numbered->count; i++) {
        const report_key *key = &collectives->keys[numbered->keys[i]];
        if (key->process == first->process && key->group_number < number)
            number = key->group_number;
    }
    return number;
}

/* ---- order and labels ---- */

static const report_collectives *sorted_groups;

static int compare_groups(const void *left, const void *right) {
    const report_group *a = &sorted_groups->groups[*(const uint32_t *)left],
                       *b = &sorted_groups->groups[*(const uint32_t *)right];
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    uint32_t place_a = sorted_groups->places[a->processes[0]],
             place_b = sorted_groups->places[b->processes[0]];
    return place_a < place_b ? -1 : place_a > place_b;
}

/* By number, and of one number by the first rank. */
static bool order_groups(report_collectives *collectives) {
    size_t count = collectives->group_count;
    uint32_t *order = calloc(count + 1, sizeof *order), *place = calloc(count + 1, sizeof *place);
    report_group *groups = calloc(count + 1, sizeof *groups);
    bool complete = order != NULL && place != NULL && groups != NULL;
    for (size_t i = 0; complete && i < count; i++)
        order[i] = (uint32_t)i;
    sorted_groups = collectives;
    if (complete && count > 1)
        qsort(order, count, sizeof *order, compare_groups);
    for (size_t i = 0; complete && i < count; i++) {
        groups[i] = collectives->groups[order[i]];
        place[order[i]] = (uint32_t)i;
    }
    for (size_t i = 0; complete && i < collectives->key_count; i++)
        collectives->keys[i].group = place[collectives->keys[i].group];
    if (complete && count > 0)
        memcpy(collectives->groups, groups, count * sizeof *groups);
    free(order);
    free(place);
    free(groups);
    return complete;
}

static bool label_groups(const report *report) {
    report_collectives *collectives = report->matched;
    for (size_t i = 0; i < collectives->group_count; i++) {
        report_group *group = &collectives->groups[i];
        bool several = (i > 0 && group[-1].number == group->number) ||
                       (i + 1 < collectives->group_count && group[1].number == group->number);
        char label[160];
        snprintf(label, sizeof label, several ? "%u: ranks " : "%u", group->number);
        if (several && !append_ranks(report, group, label, sizeof label))
            snprintf(label, sizeof label, "%u", group->number);
        group->label = strdup(label);
        if (group->label == NULL)
            return false;
    }
    return true;
}

bool report_find_groups(report *report) {
    report_collectives *collectives = report->matched;
    member *members = calloc(report->process_count + 1, sizeof *members);
    uint32_t *cluster_of = calloc(report->process_count + 1, sizeof *cluster_of);
    uint32_t *order = calloc(collectives->key_count + 1, sizeof *order);
    collectives->places = calloc(report->process_count + 1, sizeof *collectives->places);
    bool complete = members != NULL && cluster_of != NULL && order != NULL && collectives->places != NULL;
    if (!complete)
        goto out;
    find_places(report, members);
    apply_told(collectives);
    for (size_t i = 0; i < collectives->key_count; i++)
        order[i] = (uint32_t)i;
    sorted_keys = collectives->keys;
    if (collectives->key_count > 0)
        qsort(order, collectives->key_count, sizeof *order, compare_numbers);
    for (size_t begin = 0, end; complete && begin < collectives->key_count; begin = end) {
        const report_key *first = &collectives->keys[order[begin]];
        for (end = begin;
             end < collectives->key_count && belong_together(first, &collectives->keys[order[end]]); end++)
            ;
        number_keys numbered = {first->group_number, first->identity != 0, order + begin, end - begin};
        size_t count = find_members(report, &numbered, members);
        numbered.number = number_at(collectives, &numbered, &members[0]);
        complete = split_number(report, &numbered, members, count, cluster_of);
    }
    complete = complete && order_groups(collectives) && label_groups(report);
out:
    free(members);
    free(cluster_of);
    free(order);
    return complete;
}
