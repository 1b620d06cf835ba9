/* Which ranks' groups are one group. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "report_collectives.h"

#define ONE_CLOCK_SLACK_NS UINT64_C(1000000)

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

/* Keys of one group number. */
typedef struct number_keys {
    uint32_t number;
    const uint32_t *keys;
    size_t count;
} number_keys;

/* The processes that used a group of this number, by rank. */
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

static bool append_ranks(char *label, size_t size, const member *members, size_t count, uint32_t cluster) {
    size_t length = strlen(label);
    int begin = -2, end = -2;
    bool first = true;
    for (size_t i = 0; i <= count && length + 32 < size; i++) {
        if (i < count && members[i].cluster != cluster)
            continue;
        if (i < count && end < INT_MAX && members[i].rank == end + 1) {
            end++;
            continue;
        }
        if (end >= 0)
            length += (size_t)snprintf(label + length, size - length, end > begin ? "%s%d-%d" : "%s%d",
                                       first ? "" : ",", begin, end);
        first &= end < 0;
        begin = end = i < count ? members[i].rank : -2;
    }
    return !first;
}

static bool add_group(report *report, uint32_t number, const member *members, size_t count, uint32_t cluster,
                      bool several) {
    report_collectives *collectives = report->matched;
    report_group *larger =
        realloc(collectives->groups, (collectives->group_count + 1) * sizeof *collectives->groups);
    if (larger == NULL)
        return false;
    collectives->groups = larger;
    report_group *group = &larger[collectives->group_count];
    *group = (report_group){.number = number, .processes = malloc(count * sizeof *group->processes)};
    char label[160];
    snprintf(label, sizeof label, several ? "%u: ranks " : "%u", number);
    if (several && !append_ranks(label, sizeof label, members, count, cluster))
        snprintf(label, sizeof label, "%u", number);
    group->label = strdup(label);
    if (group->processes == NULL || group->label == NULL) {
        free(group->processes);
        free(group->label);
        return false;
    }
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
        if (key->group_size > collectives->groups[key->group].size)
            collectives->groups[key->group].size = key->group_size;
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
    uint32_t clusters = find_clusters(report, numbered, members, count);
    for (uint32_t cluster = 0; cluster < clusters; cluster++)
        if (!add_group(report, numbered->number, members, count, cluster, clusters > 1))
            return false;
    assign_groups(report->matched, numbered, members, count, cluster_of, first_group);
    return true;
}

static const report_key *sorted_keys; /* qsort passes no context */

static int compare_numbers(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
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
    for (size_t i = 0; i < collectives->key_count; i++)
        order[i] = (uint32_t)i;
    sorted_keys = collectives->keys;
    if (collectives->key_count > 0)
        qsort(order, collectives->key_count, sizeof *order, compare_numbers);
    for (size_t begin = 0, end; complete && begin < collectives->key_count; begin = end) {
        uint32_t number = collectives->keys[order[begin]].group_number;
        for (end = begin;
             end < collectives->key_count && collectives->keys[order[end]].group_number == number; end++)
            ;
        number_keys numbered = {number, order + begin, end - begin};
        size_t count = find_members(report, &numbered, members);
        complete = split_number(report, &numbered, members, count, cluster_of);
    }
out:
    free(members);
    free(cluster_of);
    free(order);
    return complete;
}
