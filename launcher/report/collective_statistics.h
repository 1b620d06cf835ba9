/* Collectives by operation, group and size, and the matching of collectives of different ranks.
 *
 * Vocabulary
 *   operation  "allreduce": the hook's name for it
 *   group      a process group or communicator. A rank numbers its groups in the order of their first use, so equal numbers
 *              on two ranks need not be one group. If the trace has the groups' identities, equal ones are one group;
 *              else a number is split where ranks finished collectives that others had not begun
 *   key        one process's collectives of one operation, group number and size
 *   sequence   a process's collectives of one operation and group, one after another: of one size, if all ranks of the group
 *              have equally many of each size, else of all sizes
 *   match      the sequences of a group's processes: the n-th of one is the n-th of the others
 *   class      operation, group and size class: a line of the report
 *
 * Counts are of all records; entries (single collectives, for matches) are of the first REPORT_ENTRIES_MAX. */
#ifndef CASTOR_LAUNCHER_REPORT_COLLECTIVE_STATISTICS_H
#define CASTOR_LAUNCHER_REPORT_COLLECTIVE_STATISTICS_H

#include "report.h"

#define REPORT_ENTRIES_MAX 4000000u
#define REPORT_ENTRY_NONE  UINT32_MAX

/* An entry's position among those of its match, by begin. */
typedef enum report_turn {
    REPORT_TURN_ALONE,
    REPORT_TURN_FIRST,
    REPORT_TURN_MIDDLE,
    REPORT_TURN_LAST
} report_turn;

typedef struct report_entry {
    uint64_t begin_job_ns, ns;
    uint32_t key;
    /* Set by report_collectives_tracks. `track`: of its process and group; entries of one track do not overlap. `instance`: the
     * n-th of its sequence. */
    uint32_t track : 5, turn : 2, instance : 25;
} report_entry;

typedef struct report_key {
    uint32_t process, operation, group_number;
    uint32_t group_size; /* as the record tells it; 0: it does not */
    uint32_t told_size;  /* as the group's own record tells it; 0: it does not */
    uint64_t identity;   /* of the group; 0: unknown. Set by report_find_process_groups, as told_size */
    uint64_t size_bytes; /* of each; beyond 200000 keys: a mark of the size class */
    uint64_t count, bytes, ns, min_ns, max_ns;
    uint32_t size_class;
    /* Set by report_collectives_finish. `line`: its class, until classes are sorted. */
    uint32_t group, sequence, line;
    size_t first_entry, entries; /* by begin; until matches are found, which sort entries anew */
} report_key;

/* A group, as one process recorded it. */
typedef struct report_told_process_group {
    uint32_t process, number, size;
    uint64_t identity;
} report_told_process_group;

typedef struct report_sequence {
    uint32_t process, match;
    size_t first_entry, entries;
} report_sequence;

typedef struct report_process_group {
    uint32_t number, size; /* size: ranks; if no record tells it, those that left a trace */
    uint32_t *processes;
    size_t process_count;
    char *label; /* "0", or "1: ranks 0-3" where a number stands for several groups */
} report_process_group;

typedef struct report_match {
    uint32_t operation, group;
    size_t first_sequence, sequences; /* one of each process, by rank */
    size_t instances;                 /* that every one of them has */
} report_match;

typedef struct report_class {
    uint32_t operation, group, size_class;
    uint64_t count, bytes, ns, min_ns, max_ns;
    uint64_t matched;              /* collectives that were matched over all ranks of the group */
    uint64_t matched_ns;           /* their time */
    uint64_t late_ns;              /* of which: waiting for the last rank to begin */
    double bus_bandwidth;          /* bytes per second, as NCCL's tests count it; 0: not known */
    double transfer_bus_bandwidth; /* the same, without the time spent waiting for the last rank */
} report_class;

typedef struct report_collectives {
    char **operations;
    size_t operation_count, operation_capacity;
    report_key *keys;
    size_t key_count, key_capacity;
    uint32_t *slots; /* a hash table of keys */
    size_t slot_count;
    uint32_t last_key;
    uint32_t *places; /* of processes: by rank */
    report_entry *entries;
    size_t entry_count, entry_capacity;
    uint64_t entries_left_out;
    report_told_process_group *told;
    size_t told_count, told_capacity;
    report_process_group *groups;
    size_t group_count, group_capacity;
    report_sequence *sequences;
    size_t sequence_count;
    report_match *matches;
    size_t match_count;
    report_class *classes; /* the longest first */
    size_t class_count, class_capacity;
} report_collectives;

report_collectives *report_collectives_new(void);
void report_collectives_free(report_collectives *collectives);
bool report_collectives_add(report_collectives *collectives, report_process *process, uint32_t process_index,
                            const trace_record *record, uint64_t ns);
/* A GROUP record. */
bool report_collectives_add_process_group(report_collectives *collectives, uint32_t process_index,
                                          const trace_record *record);
/* Groups, matches and classes, when all records have been added and the processes' clocks are aligned. */
bool report_collectives_finish(report *report);
/* Orders the entries by rank, group and begin, and gives them turns and tracks; their order by key is lost. */
void report_collectives_tracks(report_collectives *collectives);

/* Bytes on the bus for each byte of the payload that the hooks count (a rank's contribution), by the conventions of NCCL's
 * tests: all-reduce 2(n-1)/n of the buffer. 0: no bandwidth (a barrier, one rank, an unknown operation). */
double report_bus_factor(const char *operation, uint32_t ranks);
/* Whether no rank can finish before every rank has begun. */
bool report_is_synchronous(const char *operation);

/* Size classes: "1 KiB to 64 KiB". */
uint32_t report_size_class(uint64_t bytes);
const char *report_size_class_label(uint32_t size_class);
uint64_t report_size_class_begin(uint32_t size_class);
#define REPORT_SIZE_CLASSES 8

#endif
