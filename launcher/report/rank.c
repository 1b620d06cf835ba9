#include "report.h"

#include <stdlib.h>
#include <string.h>
#include "launcher/common/trace_read.h"
#include "launcher/job/reading.h"

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- what a process did ---- */

static uint32_t busiest_optimizer(const trace_counters *counters) {
    uint32_t busiest = 0;
    for (uint32_t id = 1; id < trace_slot_ids(TRACE_STEP); id++)
        if (counters->counters[trace_slot(TRACE_STEP, id)].count >
            counters->counters[trace_slot(TRACE_STEP, busiest)].count)
            busiest = id;
    return busiest;
}

static uint64_t optimizer_steps(const report_process *process) {
    return larger(report_gauge(process, GAUGE_STEPS).last, trace_read_total(process->counters, TRACE_STEP));
}

static uint64_t micro_steps(const report_process *process) {
    return larger(report_gauge(process, GAUGE_MICRO_STEPS).last,
                  trace_read_total(process->counters, TRACE_BACKWARD));
}

static int compare_ns(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* The times from one step of an optimizer to its next: their median, what 90% do not exceed, and the longest. */
static void find_step_times(report_rank *rank, uint32_t optimizer) {
    const report_steps *steps = &rank->process->steps;
    uint64_t *times = malloc((steps->count + 1) * sizeof *times);
    size_t count = 0;
    if (times == NULL)
        return;
    for (size_t i = 0; i < steps->count; i++)
        if (steps->rows[i].optimizer == optimizer)
            times[count++] = steps->rows[i].begin_ns;
    if (count > 1) {
        for (size_t i = 0; i + 1 < count; i++)
            times[i] = times[i + 1] - times[i];
        count--;
        qsort(times, count, sizeof *times, compare_ns);
        rank->step_seconds = ((double)times[count / 2] + (double)times[(count - 1) / 2]) / 2e9;
        rank->step_p90_seconds = (double)times[(count - 1) * 9 / 10] / 1e9;
        rank->step_max_seconds = (double)times[count - 1] / 1e9;
    }
    free(times);
}

static double kind_seconds(const trace_counters *counters, uint32_t kind) {
    uint64_t total_ns = 0;
    for (uint32_t id = 0; id < trace_slot_ids(kind); id++)
        total_ns += counters->counters[trace_slot(kind, id)].ns;
    return (double)total_ns / 1e9;
}

static const struct {
    const char *key, *label;
} phases[] = {
#define PHASE(id, key, label, doc) {key, label},
#include "trace/phase.def"
};

const char *report_phase_key(trace_phase phase) {
    return phases[phase].key;
}
const char *report_phase_label(trace_phase phase) {
    return phases[phase].label;
}

/* The time since the last event counts for the phase that began with it. */
static void find_phases(report_rank *rank) {
    const report_process *process = rank->process;
    uint64_t phase = report_gauge(process, GAUGE_PHASE).last,
             began_ns = report_gauge(process, GAUGE_PHASE_BEGAN_NS).last;
    if (began_ns == 0 || phase >= TRACE_PHASE_COUNT)
        return;
    for (uint32_t id = 0; id < TRACE_PHASE_COUNT; id++) {
        uint64_t ns = process->counters->counters[trace_slot(TRACE_PHASE, id)].ns;
        if (id == phase && process->last_ns > began_ns)
            ns += process->last_ns - began_ns;
        rank->phase_seconds[id] = (double)ns / 1e9;
        rank->lived_seconds =
            id == 0 ? rank->phase_seconds[0] : rank->lived_seconds + rank->phase_seconds[id];
    }
    rank->has_phases = true;
}

static void find_times(report_rank *rank) {
    const report_process *process = rank->process;
    const trace_counters *counters = process->counters;
    rank->backward_seconds = kind_seconds(counters, TRACE_BACKWARD);
    rank->optimizer_seconds = kind_seconds(counters, TRACE_STEP);
    rank->collective_seconds = kind_seconds(counters, TRACE_COLLECTIVE);
    rank->reduce_seconds = kind_seconds(counters, TRACE_REDUCE);
    rank->wait_seconds = (double)report_gauge(process, GAUGE_WAIT_NS).last / 1e9;
    rank->calls_by_rows = report_gauge(process, GAUGE_CALLS_BY_ROWS).last;
    rank->calls_1f1b = report_gauge(process, GAUGE_CALLS_1F1B).last;
    rank->calls_whole = report_gauge(process, GAUGE_CALLS_WHOLE).last;
    rank->rows_seconds = (double)report_gauge(process, GAUGE_ROWS_NS).last / 1e9;
    if (process->last_ns > counters->start_monotonic_ns)
        rank->lived_seconds = (double)(process->last_ns - counters->start_monotonic_ns) / 1e9;
    find_phases(rank);
}

/* ---- which process was which rank ---- */

static void add_rank(report *report, const report_process *process, int rank) {
    uint32_t busiest = busiest_optimizer(process->counters);
    report_rank added = {.process = process, .rank = rank};
    added.optimizer_steps = optimizer_steps(process);
    added.steps = process->counters->counters[trace_slot(TRACE_STEP, busiest)].count;
    if (added.steps == 0)
        added.steps = added.optimizer_steps;
    added.micro_steps = micro_steps(process);
    added.busiest_optimizer = busiest;
    find_step_times(&added, busiest);
    find_times(&added);
    added.state = process->counters->exit_state == TRACE_PROCESS_EXITED ? REPORT_RANK_EXITED
                  : job_runs_here(process->counters)                    ? REPORT_RANK_RUNNING
                                                                        : REPORT_RANK_DIED;
    report->ranks[report->rank_count++] = added;
}

static int compare_ranks(const void *left, const void *right) {
    const report_rank *a = left, *b = right;
    if (a->rank != b->rank)
        return (unsigned)a->rank < (unsigned)b->rank ? -1 : 1; /* -1, unknown, comes last */
    uint64_t a_start = a->process->counters->start_realtime_ns,
             b_start = b->process->counters->start_realtime_ns;
    return a_start < b_start ? -1 : a_start > b_start;
}

static bool choose_processes(report *report) {
    report->ranks = calloc(report->process_count, sizeof *report->ranks);
    if (report->ranks == NULL)
        return false;
    const report_process *first = report->processes, *end = first + report->process_count;
    bool noted = true;
    for (const report_process *process = first; process < end; process++) {
        int rank = process->counters->rank;
        if (rank < 0)
            continue;
        unsigned trained = 0;
        bool speaks = true;
        for (const report_process *other = first; other < end; other++) {
            if (other->counters->rank != rank)
                continue;
            trained += trace_read_has_trained(other->counters);
            bool tie = other != process && !trace_read_speaks_rather(process->counters, other->counters) &&
                       !trace_read_speaks_rather(other->counters, process->counters);
            speaks &= other == process || trace_read_speaks_rather(process->counters, other->counters) ||
                      (tie && process < other);
        }
        if (!speaks)
            continue;
        if (trained > 1)
            noted &= report_add_note(report, "rank %d ran %u times; its figures are those of the last time",
                                     rank, trained);
        add_rank(report, process, rank);
    }
    bool any_known = report->rank_count > 0;
    bool any_trained = false;
    for (const report_process *process = first; process < end; process++) {
        any_trained |= trace_read_has_trained(process->counters);
        if (process->counters->rank < 0 && trace_read_has_trained(process->counters))
            add_rank(report, process, -1);
    }
    /* Nobody trained, and nobody said which rank it is: those that took part in collectives are the ranks. */
    for (const report_process *process = first; process < end && !any_known; process++)
        if (!any_trained && process->counters->parent_uid == 0 &&
            trace_read_total(process->counters, TRACE_COLLECTIVE) > 0)
            add_rank(report, process, -1);
    if (report->rank_count == 0) {
        /* Nobody trained: the process that speaks for an evaluation, say. */
        const report_process *chosen = first;
        for (const report_process *process = first; process < end; process++)
            if (trace_read_speaks_rather(process->counters, chosen->counters))
                chosen = process;
        add_rank(report, chosen, -1);
    }
    if (!any_trained && !any_known)
        noted &= report_add_note(report, "no process made an optimizer step or a backward pass");
    if (!any_known && report->rank_count == 1)
        report->ranks[0].rank = 0;
    qsort(report->ranks, report->rank_count, sizeof *report->ranks, compare_ranks);
    return noted;
}

/* ---- sums over the ranks ---- */

static bool add_nodes(report *report) {
    report->nodes = calloc(report->rank_count, sizeof *report->nodes);
    if (report->nodes == NULL)
        return false;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        report_node *node = report->nodes;
        while (node < report->nodes + report->node_count && strcmp(node->host, process->counters->host) != 0)
            node++;
        if (node == report->nodes + report->node_count) {
            report->node_count++;
            node->host = process->counters->host;
        }
        /* The store is the node's, and each of its ranks tells the same; private copies are each rank's own. */
        trace_gauge_value param = report_gauge(process, GAUGE_STORE_PARAM_BYTES);
        trace_gauge_value grad = report_gauge(process, GAUGE_STORE_GRAD_BYTES);
        trace_gauge_value optim = report_gauge(process, GAUGE_STORE_OPTIM_BYTES);
        trace_gauge_value copies = report_gauge(process, GAUGE_PRIVATE_BYTES);
        node->numel = larger(node->numel, report_gauge(process, GAUGE_MODEL_NUMEL).last);
        node->param_bytes = larger(node->param_bytes, param.last);
        node->grad_bytes = larger(node->grad_bytes, grad.last);
        node->optim_bytes = larger(node->optim_bytes, optim.last);
        node->store_peak_bytes = larger(node->store_peak_bytes, param.max + grad.max + optim.max);
        node->private_bytes += copies.last;
        node->private_peak_bytes += copies.max;
        node->sent_bytes += report_gauge(process, GAUGE_NODE_BYTES).last;
        node->chunk_count = larger(node->chunk_count, report_gauge(process, GAUGE_CHUNK_COUNT).last);
    }
    return true;
}

const report_node *report_fullest_node(const report *report) {
    const report_node *fullest = NULL;
    double most = 0;
    for (size_t i = 0; i < report->node_count; i++) {
        const report_node *node = &report->nodes[i];
        double per_parameter = node->numel == 0 ? 0 : (double)report_node_bytes(node) / (double)node->numel;
        if (per_parameter > most) {
            fullest = node;
            most = per_parameter;
        }
    }
    return fullest;
}

static void add_totals(report *report) {
    for (size_t i = 0; i < report->node_count; i++)
        report->chunks.count += report->nodes[i].chunk_count;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        report->chunks.size = larger(report->chunks.size, report_gauge(process, GAUGE_CHUNK_SIZE).last);
        report->chunks.wasted = larger(report->chunks.wasted, report_gauge(process, GAUGE_CHUNK_WASTED).last);
        report->chunks.moves += report_gauge(process, GAUGE_CHUNK_MOVES).last;
        report->chunks.bytes_moved += report_gauge(process, GAUGE_CHUNK_BYTES_MOVED).last;
        report->chunks.hits += report_gauge(process, GAUGE_PREFETCH_HITS).last;
        report->chunks.late += report_gauge(process, GAUGE_PREFETCH_LATE).last;
        report->chunks.misses += report_gauge(process, GAUGE_PREFETCH_MISSES).last;
        report->chunks.stall_ns += report_gauge(process, GAUGE_STALL_NS).last;
        report->hooked = larger(report->hooked, report_gauge(process, GAUGE_HOOKS_FOUND).last);
        report->missed = larger(report->missed, report_gauge(process, GAUGE_HOOKS_MISSED).last);
        report->export_tables =
            larger(report->export_tables, report_gauge(process, GAUGE_EXPORT_TABLES).last);
    }
}

bool report_find_ranks(report *report) {
    if (!choose_processes(report) || !add_nodes(report))
        return false;
    add_totals(report);
    return true;
}
