#include "pipeline_passes.h"

#include <inttypes.h>
#include <stdlib.h>

/* At most so many passes (32 bytes each) of all processes are kept. */
#define PASSES_KEPT 2000000u

void report_pass_label(char label[REPORT_PASS_LABEL_MAX], const trace_pass *pass, bool with_virtual) {
    char letter = pass->id == TRACE_PASS_BACKWARD ? 'B' : pass->id == TRACE_PASS_WEIGHT ? 'W' : 'F';
    if (with_virtual && pass->virtual_stages > pass->stages)
        snprintf(label, REPORT_PASS_LABEL_MAX, "%c%" PRIu32 ":%" PRIu32, letter, pass->microbatch,
                 pass->virtual_stage);
    else
        snprintf(label, REPORT_PASS_LABEL_MAX, "%c%" PRIu32, letter, pass->microbatch);
}

/* ---- reading ---- */

static size_t passes_of(const trace_pass *shape, report_batch_kind kind) {
    size_t forwards = (size_t)shape->microbatches * (shape->virtual_stages / shape->stages);
    return kind == REPORT_BATCH_SPLIT ? 3 * forwards : kind == REPORT_BATCH_TRAINS ? 2 * forwards : forwards;
}

static bool is_same_shape(const trace_pass *a, const trace_pass *b) {
    return a->microbatches == b->microbatches && a->virtual_stages == b->virtual_stages &&
           a->stages == b->stages;
}

static bool add_pass(report *report, report_batch *batch, report_pass row) {
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity == 0 ? 16 : 2 * batch->capacity;
        if (report->passes_kept + capacity - batch->capacity > PASSES_KEPT)
            return true;
        report_pass *larger = realloc(batch->rows, capacity * sizeof *larger);
        if (larger == NULL)
            return false;
        report->passes_kept += capacity - batch->capacity;
        batch->rows = larger;
        batch->capacity = capacity;
    }
    batch->rows[batch->count++] = row;
    return true;
}

bool report_pipeline_take(report *report, report_process *process, const trace_record *record) {
    trace_pass pass;
    if (!trace_pass_unpack(record->id, record->a, record->b, record->c, &pass) ||
        record->end_ns < record->begin_ns)
        return true;
    if (process->batches == NULL && (process->batches = calloc(1, sizeof *process->batches)) == NULL)
        return false;
    report_batch_kind kind = pass.id == TRACE_PASS_FORWARD_ONLY ? REPORT_BATCH_FORWARD_ONLY
                             : pass.split                       ? REPORT_BATCH_SPLIT
                                                                : REPORT_BATCH_TRAINS;
    report_batch *batch = &process->batches->kept[kind][pass.batch % REPORT_BATCHES_KEPT];
    if (batch->count > 0 && batch->shape.batch > pass.batch)
        return true; /* segments come in no order of time: a later batch is there already */
    if (batch->count == 0 || batch->shape.batch < pass.batch) {
        batch->count = 0;
        batch->shape = pass;
    }
    if (!is_same_shape(&batch->shape, &pass) || batch->count == passes_of(&pass, kind))
        return true; /* damaged */
    return add_pass(
        report, batch,
        (report_pass){record->begin_ns, record->end_ns, pass.microbatch, pass.virtual_stage, pass.id});
}

/* ---- batches that all ranks have ---- */

static const report_batch *complete_batch(const report_process *process, report_batch_kind kind,
                                          const report_batch *like) {
    const report_batch *batch = &process->batches->kept[kind][like->shape.batch % REPORT_BATCHES_KEPT];
    bool complete = batch->count > 0 && batch->shape.batch == like->shape.batch &&
                    is_same_shape(&batch->shape, &like->shape) &&
                    batch->count == passes_of(&batch->shape, kind);
    return complete ? batch : NULL;
}

static bool is_complete(const report *report, report_batch_kind kind, const report_batch *like) {
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].process->batches != NULL &&
            complete_batch(report->ranks[i].process, kind, like) == NULL)
            return false;
    return true;
}

/* The last one. */
static const report_batch *find_batch(const report *report, const report_process *first,
                                      report_batch_kind kind) {
    const report_batch *last = NULL;
    for (size_t i = 0; i < REPORT_BATCHES_KEPT; i++) {
        const report_batch *batch = &first->batches->kept[kind][i];
        if (batch->count > 0 && (last == NULL || batch->shape.batch > last->shape.batch) &&
            is_complete(report, kind, batch))
            last = batch;
    }
    return last;
}

static int compare_passes(const void *left, const void *right) {
    const report_pass *a = left, *b = right;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return a->end_ns < b->end_ns ? -1 : a->end_ns > b->end_ns;
}

static void sort_passes(report_batches *batches) {
    for (int kind = 0; kind < REPORT_BATCH_KINDS; kind++)
        for (size_t i = 0; i < REPORT_BATCHES_KEPT; i++)
            if (batches->kept[kind][i].count > 0)
                qsort(batches->kept[kind][i].rows, batches->kept[kind][i].count, sizeof(report_pass),
                      compare_passes);
}

/* From the first pass of any rank to the end of the last. */
static uint64_t batch_span(const report *report, report_batch_kind kind, const report_batch *like,
                           uint64_t *begin_job_ns) {
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        const report_batch *batch = process->batches == NULL ? NULL : complete_batch(process, kind, like);
        for (size_t j = 0; batch != NULL && j < batch->count; j++) {
            uint64_t begin = report_job_ns(report, process, batch->rows[j].begin_ns);
            uint64_t end = report_job_ns(report, process, batch->rows[j].end_ns);
            begin_ns = begin < begin_ns ? begin : begin_ns;
            end_ns = end > end_ns ? end : end_ns;
        }
    }
    *begin_job_ns = begin_ns;
    return end_ns > begin_ns ? end_ns - begin_ns : 0;
}

static double busy_ns(const report_batch *batch) {
    double sum = 0;
    for (size_t i = 0; i < batch->count; i++)
        sum += (double)(batch->rows[i].end_ns - batch->rows[i].begin_ns);
    return sum;
}

/* Over all complete batches of the drawn one's shape. */
static void find_idle(report *report, report_batch_kind kind, const report_process *first,
                      const report_batch *drawn) {
    report_pipeline *pipeline = report->pipeline;
    double whole_ns = 0;
    for (size_t i = 0; i < REPORT_BATCHES_KEPT; i++) {
        const report_batch *like = &first->batches->kept[kind][i];
        uint64_t begin_job_ns;
        if (like->count == 0 || !is_same_shape(&like->shape, &drawn->shape) ||
            !is_complete(report, kind, like))
            continue;
        pipeline->counted++;
        whole_ns += (double)batch_span(report, kind, like, &begin_job_ns);
        for (size_t j = 0; j < pipeline->stage_count; j++)
            pipeline->stages[j].idle +=
                busy_ns(complete_batch(pipeline->stages[j].rank->process, kind, like));
    }
    for (size_t j = 0; j < pipeline->stage_count; j++) {
        double idle = whole_ns > 0 ? 1 - pipeline->stages[j].idle / whole_ns : 0;
        pipeline->stages[j].idle = idle > 0 ? idle : 0;
    }
}

static bool find_stages(report *report, report_batch_kind kind, const report_process *first,
                        const report_batch *drawn) {
    report_pipeline *pipeline = report->pipeline = calloc(1, sizeof *pipeline);
    if (pipeline == NULL || (pipeline->stages = calloc(report->rank_count, sizeof *pipeline->stages)) == NULL)
        return false;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        if (rank->process->batches == NULL)
            continue;
        const report_batch *batch = complete_batch(rank->process, kind, drawn);
        pipeline->stages[pipeline->stage_count++] = (report_stage){
            .rank = rank, .batch = batch, .stage = batch->rows[0].virtual_stage % drawn->shape.stages};
    }
    pipeline->ns = batch_span(report, kind, drawn, &pipeline->begin_job_ns);
    double waits = drawn->shape.stages - 1;
    double passes = (double)drawn->shape.microbatches * (drawn->shape.virtual_stages / drawn->shape.stages);
    if (kind ==
        REPORT_BATCH_SPLIT) /* a stage waits for one of a microbatch's three passes less each of the others */
        passes *= 3;
    pipeline->ideal = waits / (passes + waits);
    find_idle(report, kind, first, drawn);
    return true;
}

bool report_pipeline_find(report *report) {
    const report_process *first = NULL;
    const report_batch *drawn = NULL;
    for (size_t i = report->process_count; i-- > 0;)
        if (report->processes[i].batches != NULL)
            sort_passes(report->processes[i].batches);
    for (size_t i = 0; i < report->rank_count && first == NULL; i++)
        if (report->ranks[i].process->batches != NULL)
            first = report->ranks[i].process;
    if (first == NULL)
        return true;
    for (int kind = 0; kind < REPORT_BATCH_KINDS; kind++)
        if ((drawn = find_batch(report, first, (report_batch_kind)kind)) != NULL)
            return find_stages(report, (report_batch_kind)kind, first, drawn);
    return report_add_note(
        report, "no pipeline is drawn: none of the last %d batches has all passes of all ranks in the trace",
        REPORT_BATCHES_KEPT);
}

void report_pipeline_free(report *report) {
    for (size_t i = 0; i < report->process_count; i++) {
        report_batches *batches = report->processes[i].batches;
        for (int kind = 0; batches != NULL && kind < REPORT_BATCH_KINDS; kind++)
            for (size_t j = 0; j < REPORT_BATCHES_KEPT; j++)
                free(batches->kept[kind][j].rows);
        free(batches);
    }
    if (report->pipeline != NULL)
        free(report->pipeline->stages);
    free(report->pipeline);
}
