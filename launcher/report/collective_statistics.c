#include "collective_statistics.h"
#include <limits.h>
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

/* The key with these properties, or NULL. */
static report_key *report_collectives_find(report_collectives *collectives, const report_key *wanted) {
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

static void report_collectives_sort(report_collectives *collectives) {
    if (collectives->entry_count == 0)
        return;
    qsort(collectives->entries, collectives->entry_count, sizeof *collectives->entries, compare_by_key);
    for (size_t i = 0; i < collectives->entry_count; i++) {
        report_key *key = &collectives->keys[collectives->entries[i].key];
        if (key->entries++ == 0)
            key->first_entry = i;
    }
}

/* Which ranks' groups are one group. */

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

bool report_collectives_add_process_group(report_collectives *collectives, uint32_t process_index,
                                          const trace_record *record) {
    if (collectives->told_count >= TOLD_MAX)
        return true;
    if (!array_grow(&collectives->told, &collectives->told_capacity, collectives->told_count,
                    sizeof *collectives->told))
        return false;
    collectives->told[collectives->told_count++] = (report_told_process_group){
        process_index, (uint32_t)record->a, (uint32_t)(record->c >> 32), record->b};
    return true;
}

static int compare_told(const void *left, const void *right) {
    const report_told_process_group *a = left, *b = right;
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
        report_told_process_group wanted = {.process = key->process, .number = key->group_number};
        const report_told_process_group *told = bsearch(&wanted, collectives->told, collectives->told_count,
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
static bool append_ranks(const report *report, const report_process_group *group, char *label, size_t size) {
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
    report_process_group *group = &collectives->groups[collectives->group_count];
    *group =
        (report_process_group){.number = number, .processes = malloc((count + 1) * sizeof *group->processes)};
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
    const report_process_group *a = &sorted_groups->groups[*(const uint32_t *)left],
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
    report_process_group *groups = calloc(count + 1, sizeof *groups);
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
        report_process_group *group = &collectives->groups[i];
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

/* The parts of report_collectives_finish. */
static bool report_find_process_groups(report *report) {
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

/* Which collectives of different ranks are the same one, and what the classes come to. */

/* ---- sequences and matches ---- */

static const report_collectives *sorting; /* qsort passes no context */

/* By group, operation, size and rank. */
static int compare_key_rows(const void *left, const void *right) {
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
        qsort(order, count, sizeof *order, compare_key_rows);
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
    const report_process_group *group = &collectives->groups[match->group];
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
    return report_find_process_groups(report) && find_matches(collectives) && find_classes(collectives);
}
