#include "compare.h"

#include <stdlib.h>
#include <string.h>

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* The highest peak of a gauge over the ranks. */
static double highest_gauge(const report *report, trace_gauge gauge) {
    double highest = 0;
    for (size_t i = 0; i < report->rank_count; i++)
        highest = larger(highest, (double)report_gauge(report->ranks[i].process, gauge).max);
    return highest;
}

static double counters_seconds(const report_counters *counters) {
    double seconds = 0;
    for (size_t i = 0; i < counters->count; i++)
        seconds += (double)counters->rows[i].ns / 1e9;
    return seconds;
}

static void fill(const report *report, double values[COMPARE_ROWS]) {
    double step = 0, p90 = 0, steps = 0, tensors = 0, pss = 0, backward = 0, optimizer = 0, wait = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        step = larger(step, rank->step_seconds);
        p90 = larger(p90, rank->step_p90_seconds);
        steps = larger(steps, (double)rank->steps);
        tensors = larger(tensors, (double)rank->memory.peak_bytes);
        pss += (double)report_gauge(rank->process, GAUGE_PSS_BYTES).max;
        backward += rank->backward_seconds;
        optimizer += rank->optimizer_seconds;
        wait += rank->wait_seconds;
    }
    const report_node *node = report_fullest_node(report);
    const double found[COMPARE_ROWS] = {
        step,
        p90,
        steps,
        report->duration_seconds,
        backward,
        optimizer,
        wait,
        counters_seconds(&report->collectives),
        tensors,
        highest_gauge(report, GAUGE_PARAM_BYTES),
        highest_gauge(report, GAUGE_GRAD_BYTES),
        highest_gauge(report, GAUGE_OPTIM_BYTES),
        highest_gauge(report, GAUGE_OTHER_BYTES),
        pss,
        node == NULL || node->numel == 0 ? 0 : (double)report_node_bytes(node) / (double)node->numel,
        (double)report->chunks.bytes_moved,
        (double)report->rank_count,
    };
    memcpy(values, found, sizeof found);
}

void compare_find_rows(const report *a, const report *b, compare_row rows[COMPARE_ROWS]) {
    static const compare_row described[COMPARE_ROWS] = {
        {"step_seconds", "step time, median (slowest rank)", COMPARE_SECONDS, 0, 0},
        {"step_p90_seconds", "step time, 90% within", COMPARE_SECONDS, 0, 0},
        {"steps", "steps", COMPARE_COUNT, 0, 0},
        {"duration_seconds", "duration", COMPARE_SECONDS, 0, 0},
        {"backward_seconds", "backward passes, all ranks", COMPARE_SECONDS, 0, 0},
        {"optimizer_seconds", "optimizer steps, all ranks", COMPARE_SECONDS, 0, 0},
        {"wait_seconds", "waits for ranks, all ranks", COMPARE_SECONDS, 0, 0},
        {"collective_seconds", "collectives, all ranks", COMPARE_SECONDS, 0, 0},
        {"tensor_peak_bytes", "tensors at the peak (fullest rank)", COMPARE_BYTES, 0, 0},
        {"param_peak_bytes", "  param", COMPARE_BYTES, 0, 0},
        {"grad_peak_bytes", "  grad", COMPARE_BYTES, 0, 0},
        {"optim_peak_bytes", "  optim", COMPARE_BYTES, 0, 0},
        {"other_peak_bytes", "  other", COMPARE_BYTES, 0, 0},
        {"pss_peak_bytes", "PSS, sum of the ranks' peaks", COMPARE_BYTES, 0, 0},
        {"bytes_per_param", "model data, bytes per parameter", COMPARE_FIGURE, 0, 0},
        {"chunk_bytes_moved", "moved between tiers", COMPARE_BYTES, 0, 0},
        {"ranks", "ranks", COMPARE_COUNT, 0, 0},
    };
    double values_a[COMPARE_ROWS], values_b[COMPARE_ROWS];
    fill(a, values_a);
    fill(b, values_b);
    for (int i = 0; i < COMPARE_ROWS; i++) {
        rows[i] = described[i];
        rows[i].a = values_a[i];
        rows[i].b = values_b[i];
    }
}

static uint64_t longer_ns(const compare_name *name) {
    uint64_t a = name->a == NULL ? 0 : name->a->ns, b = name->b == NULL ? 0 : name->b->ns;
    return a > b ? a : b;
}

static int compare_names(const void *left, const void *right) {
    uint64_t a = longer_ns(left), b = longer_ns(right);
    if (a != b)
        return a < b ? 1 : -1;
    return strcmp(((const compare_name *)left)->name, ((const compare_name *)right)->name);
}

bool compare_find_names(const report_counters *a, const report_counters *b, compare_name **names,
                        size_t *count) {
    *count = 0;
    *names = calloc(a->count + b->count + 1, sizeof **names);
    if (*names == NULL)
        return false;
    for (size_t i = 0; i < a->count; i++)
        (*names)[(*count)++] = (compare_name){a->rows[i].name, &a->rows[i], NULL};
    for (size_t i = 0; i < b->count; i++) {
        size_t at = 0;
        while (at < a->count && strcmp((*names)[at].name, b->rows[i].name) != 0)
            at++;
        if (at == a->count) {
            at = (*count)++;
            (*names)[at].name = b->rows[i].name;
        }
        (*names)[at].b = &b->rows[i];
    }
    qsort(*names, *count, sizeof **names, compare_names);
    return true;
}
