/* `castor report`: what a job did, from the files of its log directory.
 *
 * collect.c reads the directory. records.c takes the report's part of each record, in bounded memory. rank.c finds the process of
 * each rank and sums up its work, memory.c its memory over time. pipeline_passes.c finds a batch to draw. collective_statistics.c matches the collectives of different ranks. Each
 * format has a file of its own, of the same name. report_command.c takes the command line, and makes the page.
 *
 * Times: a process's own are CLOCK_MONOTONIC; those named *_job_ns are nanoseconds since the job's first process began, on
 * a clock that the processes of one host share exactly, and hosts as exactly as their clocks agree. */
#ifndef CASTOR_LAUNCHER_REPORT_H
#define CASTOR_LAUNCHER_REPORT_H

#include <stdbool.h>
#include <stdio.h>
#include "launcher/common/about_read.h"
#include "launcher/common/tiers.h"
#include "launcher/common/trace_read.h"
#include "launcher/job/first_failure.h"
#include "trace/phases.h"
#include "memory.h"

#define REPORT_FORMAT_VERSION 1

/* `castor report DIR ...`; argv[0] is "report". 0: the report was made; 1: it was made, but not all of the
 * trace could be read; 2: no report. */
int report_main(int argc, char **argv);

/* ---- the data of a report ---- */

typedef struct report_counter {
    char *name;
    uint64_t count, bytes, ns;
    uint64_t max_ns; /* of the records kept; 0: unknown */
    bool estimated;  /* some calls were timed by sample: ns is an estimate, and max_ns that of the others */
} report_counter;

typedef struct report_counters {
    report_counter *rows;
    size_t count, capacity;
} report_counters;

/* A function of CASTOR_TRACE_ALSO, in all processes. */
typedef struct report_also {
    char *name;
    uint64_t places; /* entries and look-ups that lead to Castor */
    trace_also_state state;
} report_also;

/* An optimizer step, or a backward pass. */
typedef struct report_step {
    uint64_t begin_ns;
    uint32_t optimizer; /* its number; 0 for a backward pass */
    uint32_t us;
} report_step;

typedef struct report_steps {
    report_step *rows; /* by begin, once all is read */
    size_t count, capacity;
} report_steps;

typedef enum report_memory_kind {
#define MEMORY(gauge, label, role, doc) REPORT_MEMORY_##gauge,
#include "trace/memory.def"
    REPORT_MEMORY_COUNT
} report_memory_kind;

typedef enum report_memory_role {
    REPORT_MEMORY_STACKED,
    REPORT_MEMORY_WHOLE,
    REPORT_MEMORY_NODE,
    REPORT_MEMORY_TIER,
    REPORT_MEMORY_BUDGET,
    REPORT_MEMORY_LINK
} report_memory_role;

/* One process of the job. */
typedef struct report_process {
    trace_counters *counters;
    uint64_t records, last_ns; /* last_ns: CLOCK_MONOTONIC of its last sign of life */
    uint64_t clock_offset_ns;  /* CLOCK_MONOTONIC + this (wrapping) = the job's clock since the epoch */
    report_steps steps, backwards;
    report_series *memory[REPORT_MEMORY_COUNT]; /* NULL: never sampled */
    uint64_t *call_max_ns;                      /* by hook id; NULL: no call */
    struct report_batches *batches;             /* pipeline_passes.h; NULL: no pipeline */
    uint16_t *operations; /* by hook id: report_collectives' operation + 1; NULL: none */
} report_process;

typedef enum report_rank_state {
    REPORT_RANK_RUNNING,
    REPORT_RANK_EXITED,
    REPORT_RANK_DIED
} report_rank_state;

/* A rank's memory over time, on one grid of buckets. */
typedef struct report_memory {
    uint64_t begin_job_ns, width_ns;
    uint32_t buckets;                      /* 0: not sampled */
    uint64_t *values[REPORT_MEMORY_COUNT]; /* NULL: never sampled */
    uint64_t *loaded
        [REPORT_MEMORY_COUNT]; /* of a kind that is on disk in part: what of it is in memory; else NULL */
    uint64_t peak_bytes;       /* of the sum of the STACKED kinds, without what is on disk */
    uint64_t peak_job_ns;
    uint32_t peak_bucket;
    uint64_t peak_step;     /* the step that the peak was in, counted from 1; 0: before the first one */
    const char *peak_phase; /* "backward", "optimizer step", "" */
} report_memory;

typedef struct report_rank {
    const report_process *process;
    int rank; /* -1: unknown */
    report_rank_state state;
    job_end end;
    uint64_t steps;           /* those of the optimizer that made most */
    uint64_t optimizer_steps; /* those of all */
    uint64_t micro_steps;
    uint32_t busiest_optimizer;
    double step_seconds; /* median time from one step of the busiest optimizer to its next; 0: unknown */
    double step_p90_seconds, step_max_seconds;  /* 90% of the steps took no longer; the longest */
    double backward_seconds, optimizer_seconds; /* in all */
    double collective_seconds, reduce_seconds;  /* on worker threads: beside the others, not part of them */
    double wait_seconds;
    uint64_t calls_by_rows, calls_1f1b, calls_whole; /* of models (CASTOR_BATCH=model) */
    double rows_seconds;
    double lived_seconds; /* of the process, if its phases are known; else since its first record */
    bool has_phases;      /* false: the recorder did not know of phases, or the agent was not there */
    double phase_seconds[TRACE_PHASE_COUNT]; /* of the script's thread: they add up to lived_seconds */
    report_memory memory;
    device_figures device;
} report_rank;

/* One long call or collective. */
typedef struct report_slow {
    const report_process *process;
    uint32_t kind, id, thread;
    uint64_t begin_ns, ns, bytes;
} report_slow;

#define REPORT_SLOW_MAX 25
#define REPORT_SLOW_NS  100000 /* what took less is not slow */

struct report_collectives;

/* What the chunks and other blocks of a node's ranks took, over time; without a budget and without disk nothing is counted. */
typedef struct report_node_memory {
    uint64_t begin_job_ns, width_ns;
    uint32_t buckets; /* 0: not sampled */
    uint64_t *in_memory, *on_disk;
    uint64_t in_memory_peak_bytes;
    uint64_t on_disk_then_bytes, on_disk_peak_bytes; /* at that peak; its own peak */
} report_node_memory;

/* Bytes of model data of one node: chunks once, private copies of all its ranks. */
typedef struct report_node {
    const char *host;
    uint64_t numel;
    uint64_t param_bytes, grad_bytes, optim_bytes, private_bytes; /* at the end: the steady state */
    uint64_t store_peak_bytes, private_peak_bytes;                /* sums of each part's own peak */
    uint64_t chunk_count;
    uint64_t sent_bytes;   /* to other nodes, by all of its ranks */
    uint64_t budget_bytes; /* CASTOR_MEMORY_BUDGET; 0: none */
    report_node_memory memory;
} report_node;

typedef struct report_chunks {
    uint64_t size, count, wasted, moves, bytes_moved;
    uint64_t hits, late, misses; /* of chunks that had been away when they were needed */
    uint64_t stall_ns;
} report_chunks;

typedef struct report {
    char *directory; /* absolute */
    char *shown;     /* the same, safe to print */
    const char *job; /* the last part of what is shown */

    report_process *processes;
    size_t process_count, process_capacity;
    report_rank *ranks; /* by rank, unknown ones last */
    size_t rank_count;
    job_notes ends;
    size_t first_failure; /* index of a rank, or JOB_NO_FAILURE */
    report_node *nodes;
    size_t node_count;

    report_counters calls, collectives, waits, events, chunk_events;
    report_chunks chunks;
    struct report_collectives *matched; /* collective_statistics.h */
    struct report_pipeline *pipeline;   /* pipeline_passes.h; NULL: there is none to draw */
    size_t passes_kept;                 /* room for them, in all processes */
    report_slow slow[REPORT_SLOW_MAX];  /* the longest first, once all is read */
    size_t slow_count;
    uint64_t steps_left_out; /* step and backward records beyond what is kept */
    uint64_t hooked, missed, export_tables;
    report_also *also;
    size_t also_count, also_capacity;

    uint64_t records, dropped, trace_bytes, trace_max_bytes; /* records: of all segments */
    bool truncated;     /* CASTOR_TRACE_MAX was reached, or a segment could not be made */
    bool counters_only; /* as asked */

    double duration_seconds;
    uint64_t start_realtime_ns;
    const char *plugin, *command; /* never NULL */
    char *outcome;
    about about; /* what castor and the job's processes wrote about the run */

    char **notes;    /* remarks for the reader about these figures */
    char **problems; /* files that could not be read */
    size_t note_count, problem_count;
} report;

/* Reads a log directory. False: there is nothing to report, and the reason is on standard error. Free it in
 * any case. */
bool report_read(report *report, const char *directory);
/* The same of the counters alone, and without a word: what a run was and what it came to (NULL: it left nothing that says so). False:
 * it cannot be read. */
bool report_read_brief(report *report, const char *directory);
void report_free(report *report);

void report_write_text(const report *report, FILE *out);
void report_write_json(const report *report, FILE *out);
void report_write_perfetto(const report *report, FILE *out);
void report_write_html(const report *report, FILE *out);
void report_write_prometheus(const report *report, FILE *out);
/* FOLDER/JOB/rankN: a run of TensorBoard for each rank. False with errno. */
bool report_write_tensorboard(const report *report, const char *folder);
/* What pages share: the style, and texts without characters that HTML has a meaning for. */
extern const char report_page_style[] __attribute__((visibility("hidden")));
void report_write_escaped(const char *text, FILE *out);
/* The readable part of a mangled C++ name: `_ZN4c10d16ProcessGroupGloo9allreduceE...` is
 * c10d::ProcessGroupGloo::allreduce. Any other name stays as it is. */
void report_shorten_symbol(char *out, size_t out_size, const char *symbol);

/* Reads all records once more, segment after segment, in no order of time. False when memory or the directory is gone. */
typedef void (*report_visitor)(void *context, const report_process *process, const trace_segment *segment,
                               const trace_record *record);
bool report_visit_records(const report *report, report_visitor visit, void *context);

/* The parts of report_read. False when memory is out. */
void report_align_clocks(report *report);
bool report_take_record(report *report, report_process *process, const trace_record *record);
void report_finish_records(report *report);
bool report_find_ranks(report *report);
bool report_find_memory(report *report);
bool report_find_budgets(report *report);
void report_free_records(report_process *process);
void report_free_memory(report_memory *memory);
void report_free_budgets(report *report);
/* The lines that processes wrote to the file `name` of format.h, `process PID: REASON`. */
bool report_add_note(report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool report_add_problem(report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Why none of the calls of a function of CASTOR_TRACE_ALSO is seen; NULL: they are. */
const char *report_also_missed(const report_also *also);

static inline uint64_t report_node_bytes(const report_node *node) {
    return node->param_bytes + node->grad_bytes + node->optim_bytes + node->private_bytes;
}
static inline uint64_t report_node_peak_bytes(const report_node *node) {
    return node->store_peak_bytes + node->private_peak_bytes;
}
/* What is in memory of a kind, in each bucket; NULL: never sampled. */
static inline const uint64_t *report_loaded(const report_memory *memory, report_memory_kind kind) {
    return memory->loaded[kind] != NULL ? memory->loaded[kind] : memory->values[kind];
}
/* The node with the most model data per parameter, NULL when none has any. */
const report_node *report_fullest_node(const report *report);

/* The name of an id: the one that the process gave it, else made from kind and number (in `fallback`). */
const char *report_id_name(const trace_counters *counters, uint32_t kind, uint32_t id, char fallback[32]);
/* The names of phases: `key` in JSON, the label for people. */
const char *report_phase_key(trace_phase phase);
const char *report_phase_label(trace_phase phase);
const char *report_memory_label(report_memory_kind kind);
report_memory_role report_memory_role_of(report_memory_kind kind);
trace_gauge report_memory_gauge(report_memory_kind kind);

/* Nanoseconds since the job began; a time before that, from a damaged clock, is 0. */
static inline uint64_t report_job_ns(const report *report, const report_process *process, uint64_t time_ns) {
    uint64_t since = time_ns + process->clock_offset_ns - report->start_realtime_ns;
    return since > UINT64_MAX / 2 ? 0 : since;
}

static inline trace_gauge_value report_gauge(const report_process *process, trace_gauge gauge) {
    return process->counters->gauges[gauge];
}

/* Peaks of model data, which a rank need not have had at one time. */
static inline uint64_t report_model_bytes(const report_process *process) {
    static const trace_gauge kinds[] = {GAUGE_PARAM_BYTES, GAUGE_GRAD_BYTES, GAUGE_OPTIM_BYTES,
                                        GAUGE_PRIVATE_BYTES};
    uint64_t bytes = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        bytes += report_gauge(process, kinds[kind]).max;
    return bytes;
}

#endif
