/* Pipelines: which passes each stage ran in a batch, and how long it idled.
 *
 * Kept are the passes of the last batches of each process, those that train apart from those that only go forward. A batch is
 * complete when all ranks of the job that run passes have all of its passes. */
#ifndef CASTOR_LAUNCHER_REPORT_PIPELINE_PASSES_H
#define CASTOR_LAUNCHER_REPORT_PIPELINE_PASSES_H

#include "report.h"
#include "trace/pass.h"

#define REPORT_BATCHES_KEPT 16

typedef struct report_pass {
    uint64_t begin_ns, end_ns;
    uint32_t microbatch, virtual_stage;
    uint32_t id; /* TRACE_PASS_ */
} report_pass;

typedef struct report_batch {
    trace_pass shape;  /* of its first record: all but microbatch and virtual stage hold for all passes */
    report_pass *rows; /* by begin, once all is read */
    size_t count, capacity;
} report_batch;

typedef enum report_batch_kind {
    REPORT_BATCH_TRAINS,
    REPORT_BATCH_SPLIT, /* its backwards have two halves */
    REPORT_BATCH_FORWARD_ONLY,
    REPORT_BATCH_KINDS
} report_batch_kind;

/* Of a process; a batch is at its number modulo REPORT_BATCHES_KEPT. */
typedef struct report_batches {
    report_batch kept[REPORT_BATCH_KINDS][REPORT_BATCHES_KEPT];
} report_batches;

/* One rank of the chart. */
typedef struct report_stage {
    const report_rank *rank;
    const report_batch *batch; /* the one that is drawn */
    uint32_t stage;
    double idle; /* the share of the counted batches' time that it ran no pass */
} report_stage;

typedef struct report_pipeline {
    report_stage *stages; /* by rank; at least one */
    size_t stage_count;
    uint64_t begin_job_ns,
        ns;           /* of the batch that is drawn: from the first pass of any rank to the end of the last */
    uint32_t counted; /* batches that `idle` is about */
    double ideal; /* the same share of a pipeline whose passes all take equally long, and messages no time */
} report_pipeline;

/* False when memory is out. */
bool report_pipeline_take(report *report, report_process *process, const trace_record *record);
/* After the ranks are found. */
bool report_pipeline_find(report *report);
void report_pipeline_free(report *report);

/* The label of a pass: F0, B0, and W0 for the second half of a backward. with_virtual: where a stage has several virtual stages, F0:2 on number 2. */
#define REPORT_PASS_LABEL_MAX 32
void report_pass_label(char label[REPORT_PASS_LABEL_MAX], const trace_pass *pass, bool with_virtual);
static inline trace_pass report_pass_of(const report_batch *batch, const report_pass *row) {
    trace_pass pass = batch->shape;
    pass.id = row->id;
    pass.microbatch = row->microbatch;
    pass.virtual_stage = row->virtual_stage;
    return pass;
}

#endif
