#include "report.h"

#include <stdlib.h>
#include <string.h>
#include "collective_statistics.h"
#include "pipeline_passes.h"

/* What is kept of a trace of any size: at most so many steps and backward passes (16 bytes each) of all processes. */
#define STEPS_KEPT   4000000u
#define ONE_CLOCK_NS UINT64_C(1000000000)

/* Processes of one host share CLOCK_MONOTONIC: they get one offset, so that their times compare exactly. A difference of
 * more than a second means another boot of a host with this name. */
void report_align_clocks(report *report) {
    for (size_t i = 0; i < report->process_count; i++) {
        report_process *process = &report->processes[i];
        const trace_counters *counters = process->counters;
        process->clock_offset_ns = counters->start_realtime_ns - counters->start_monotonic_ns;
        for (size_t j = 0; j < i; j++) {
            const report_process *other = &report->processes[j];
            if (process->clock_offset_ns - other->clock_offset_ns + ONE_CLOCK_NS <= 2 * ONE_CLOCK_NS &&
                strcmp(other->counters->host, counters->host) == 0) {
                process->clock_offset_ns = other->clock_offset_ns;
                break;
            }
        }
    }
}

static bool take_step(report *report, report_steps *steps, const trace_record *record, uint32_t optimizer) {
    size_t kept = 0;
    if (steps->count == steps->capacity) {
        for (size_t i = 0; i < report->process_count; i++)
            kept += report->processes[i].steps.capacity + report->processes[i].backwards.capacity;
        size_t wanted = steps->capacity == 0 ? 64 : steps->capacity * 2;
        if (kept - steps->capacity + wanted > STEPS_KEPT) {
            report->steps_left_out++;
            return true;
        }
        report_step *larger = realloc(steps->rows, wanted * sizeof *larger);
        if (larger == NULL)
            return false;
        steps->rows = larger;
        steps->capacity = wanted;
    }
    uint64_t us = record->end_ns > record->begin_ns ? (record->end_ns - record->begin_ns) / 1000 : 0;
    steps->rows[steps->count++] =
        (report_step){record->begin_ns, optimizer, us < UINT32_MAX ? (uint32_t)us : UINT32_MAX};
    return true;
}

static bool take_memory(report_process *process, const trace_record *record) {
    static int8_t kind_of_gauge[GAUGE_COUNT];
    if (kind_of_gauge[GAUGE_PSS_BYTES] == 0)
        for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
            kind_of_gauge[report_memory_gauge((report_memory_kind)kind)] = (int8_t)(kind + 1);
    int kind = record->id < GAUGE_COUNT ? kind_of_gauge[record->id] - 1 : -1;
    if (kind < 0)
        return true;
    report_series **series = &process->memory[kind];
    if (*series == NULL) {
        if ((*series = malloc(sizeof **series)) == NULL)
            return false;
        report_series_begin(*series, process->counters->start_monotonic_ns);
    }
    report_series_add(*series, record->begin_ns, record->bytes);
    return true;
}

/* ---- the slowest calls: a heap whose first row is the shortest ---- */

static void sift_down(report_slow *rows, size_t count, size_t at) {
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && rows[child + 1].ns < rows[child].ns;
        if (rows[at].ns <= rows[child].ns)
            return;
        report_slow held = rows[at];
        rows[at] = rows[child];
        rows[child] = held;
    }
}

static int compare_slow(const void *left, const void *right) {
    const report_slow *a = left, *b = right;
    if (a->ns != b->ns)
        return a->ns < b->ns ? 1 : -1;
    return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

static void take_slow(report *report, const report_process *process, const trace_record *record,
                      uint64_t ns) {
    bool full = report->slow_count == REPORT_SLOW_MAX;
    if (ns < REPORT_SLOW_NS)
        return;
    if (full && ns <= report->slow[0].ns)
        return;
    report_slow row = {process,          record->kind, record->id,   record->thread,
                       record->begin_ns, ns,           record->bytes};
    if (full) {
        report->slow[0] = row;
        sift_down(report->slow, REPORT_SLOW_MAX, 0);
        return;
    }
    report->slow[report->slow_count++] = row;
    if (report->slow_count == REPORT_SLOW_MAX)
        for (size_t at = REPORT_SLOW_MAX / 2; at-- > 0;)
            sift_down(report->slow, REPORT_SLOW_MAX, at);
}

static bool take_call(report *report, report_process *process, const trace_record *record) {
    uint32_t ids = trace_slot_ids(record->kind);
    uint64_t ns = record->end_ns > record->begin_ns ? record->end_ns - record->begin_ns : 0;
    if (process->call_max_ns == NULL &&
        (process->call_max_ns = calloc(ids, sizeof *process->call_max_ns)) == NULL)
        return false;
    uint64_t *max_ns = &process->call_max_ns[record->id < ids ? record->id : ids - 1];
    if (ns > *max_ns)
        *max_ns = ns;
    take_slow(report, process, record, ns);
    return record->kind != TRACE_COLLECTIVE ||
           report_collectives_add(report->matched, process, (uint32_t)(process - report->processes), record,
                                  ns);
}

bool report_take_record(report *report, report_process *process, const trace_record *record) {
    switch (record->kind) {
    case TRACE_STEP:
        return take_step(report, &process->steps, record,
                         trace_counted_id(record->kind, record->id, record->a));
    case TRACE_BACKWARD:
        return take_step(report, &process->backwards, record, 0);
    case TRACE_MEMORY:
        return take_memory(process, record);
    case TRACE_CALL:
    case TRACE_COLLECTIVE:
        return take_call(report, process, record);
    case TRACE_PROCESS_GROUP:
        return report_collectives_add_process_group(report->matched, (uint32_t)(process - report->processes),
                                                    record);
    case TRACE_PASS:
        return report_pipeline_take(report, process, record);
    default:
        return true;
    }
}

static int compare_steps(const void *left, const void *right) {
    const report_step *a = left, *b = right;
    return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

static void sort_steps(report_steps *steps) {
    if (steps->count > 0)
        qsort(steps->rows, steps->count, sizeof *steps->rows, compare_steps);
}

void report_finish_records(report *report) {
    if (report->slow_count > 0)
        qsort(report->slow, report->slow_count, sizeof *report->slow, compare_slow);
    for (size_t i = 0; i < report->process_count; i++) {
        sort_steps(&report->processes[i].steps);
        sort_steps(&report->processes[i].backwards);
    }
}

void report_free_records(report_process *process) {
    free(process->steps.rows);
    free(process->backwards.rows);
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        free(process->memory[kind]);
    free(process->call_max_ns);
    free(process->operations);
}
