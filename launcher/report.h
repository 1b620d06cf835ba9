/* `castor report`: what a job did, from the files of its log directory.
 *
 * report_data.c reads the directory, report_rank.c says which process was which rank and what it did,
 * report_text.c and report_json.c show it, report.c takes the command line. */
#ifndef CASTOR_LAUNCHER_REPORT_H
#define CASTOR_LAUNCHER_REPORT_H

#include <stdbool.h>
#include <stdio.h>
#include "trace_read.h"

#define REPORT_FORMAT_VERSION 1

/* `castor report DIR ...`; argv[0] is "report". 0: the report was made; 1: it was made, but not all of the
 * trace could be read; 2: no report. */
int report_main(int argc, char **argv);

/* ---- the data of a report ---- */

typedef struct report_counter {
    char *name;
    uint64_t count, bytes, ns;
} report_counter;

typedef struct report_counters {
    report_counter *rows;
    size_t count, capacity;
} report_counters;

typedef struct report_step {
    uint64_t begin_ns;
    uint32_t optimizer; /* as steps are counted */
} report_step;

/* One process of the job. */
typedef struct report_process {
    trace_counters *counters;
    uint64_t records, trace_bytes, last_ns; /* last_ns: CLOCK_MONOTONIC of its last sign of life */
    report_step *steps;
    size_t step_count, step_capacity;
} report_process;

typedef enum report_rank_state {
    REPORT_RANK_RUNNING,
    REPORT_RANK_EXITED,
    REPORT_RANK_DIED
} report_rank_state;

typedef struct report_rank {
    const report_process *process;
    int rank; /* -1: unknown */
    report_rank_state state;
    uint64_t steps;           /* those of the optimizer that made most */
    uint64_t optimizer_steps; /* those of all */
    uint64_t micro_steps;
    double step_seconds; /* median time from one step of the busiest optimizer to its next; 0: unknown */
} report_rank;

/* Bytes of model data of one node: chunks once, private copies of all its ranks. */
typedef struct report_node {
    const char *host;
    uint64_t numel;
    uint64_t param_bytes, grad_bytes, optim_bytes, private_bytes; /* at the end: the steady state */
    uint64_t store_peak_bytes, private_peak_bytes;                /* sums of each part's own peak */
    uint64_t chunk_count;
} report_node;

typedef struct report_chunks {
    uint64_t size, count, moves, bytes_moved;
} report_chunks;

typedef struct report {
    char *directory; /* absolute */
    const char *job; /* its last part */

    report_process *processes;
    size_t process_count, process_capacity;
    report_rank *ranks; /* by rank, unknown ones last */
    size_t rank_count;
    report_node *nodes;
    size_t node_count;

    report_counters calls, collectives, waits, events;
    report_chunks chunks;
    uint64_t hooked, missed;

    uint64_t records, dropped, trace_bytes, trace_max_bytes;
    bool truncated;     /* CASTOR_TRACE_MAX was reached, or a segment could not be made */
    bool counters_only; /* as asked */

    double duration_seconds;
    uint64_t start_realtime_ns;
    const char *plugin, *command; /* never NULL */
    char *outcome;

    char **notes;    /* what the reader should know about these figures */
    char **problems; /* files that could not be read */
    size_t note_count, problem_count;
} report;

/* Reads a log directory. False: there is nothing to report, and why is on standard error. Free it in any
 * case. */
bool report_read(report *report, const char *directory);
void report_free(report *report);

void report_write_text(const report *report, FILE *out);
void report_write_json(const report *report, FILE *out);

/* The parts of report_read. False when memory is out. */
bool report_find_ranks(report *report);
bool report_find_outcome(report *report);
bool report_read_unreached(report *report, int fd);
bool report_add_counter(report_counters *counters, const char *name, const trace_counter *value);
bool report_add_note(report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t report_node_bytes(const report_node *node) {
    return node->param_bytes + node->grad_bytes + node->optim_bytes + node->private_bytes;
}
static inline uint64_t report_node_peak_bytes(const report_node *node) {
    return node->store_peak_bytes + node->private_peak_bytes;
}
/* The node with the most model data per parameter, NULL when none has any. */
const report_node *report_fullest_node(const report *report);

static inline trace_gauge_value report_gauge(const report_process *process, trace_gauge gauge) {
    return process->counters->gauges[gauge];
}

#endif
