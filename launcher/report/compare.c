#include "compare.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "text.h"

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

static void compare_find_rows(const report *a, const report *b, compare_row rows[COMPARE_ROWS]) {
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

static bool compare_find_names(const report_counters *a, const report_counters *b, compare_name **names,
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

/* The comparison as text and as JSON. */

#define NAMES_SHOWN 15

/* ---- text ---- */

static void add_figure(text_table *table, compare_unit unit, double value) {
    char figure[TEXT_FIGURE_MAX];
    if (value <= 0)
        text_table_add(table, "-");
    else if (unit == COMPARE_SECONDS)
        text_table_add(table, "%s", text_seconds(figure, value));
    else if (unit == COMPARE_BYTES)
        text_table_add(table, "%s", text_bytes(figure, text_whole(value)));
    else if (unit == COMPARE_COUNT)
        text_table_add(table, "%s", text_count(figure, text_whole(value)));
    else
        text_table_add(table, "%.2f", value);
}

static void add_ratio(text_table *table, double a, double b) {
    if (a > 0 && b > 0)
        text_table_add(table, "%.2f", b / a);
    else
        text_table_add(table, "-");
}

static void write_run(char letter, const report *report, FILE *out) {
    char figure[TEXT_FIGURE_MAX];
    fprintf(out, "  %c  %s: plugin %s, %zu ranks, %s, %s\n", letter, report->shown,
            report->plugin[0] != '\0' ? report->plugin : "not known", report->rank_count,
            text_seconds(figure, report->duration_seconds), report->outcome);
}

static void write_names(const report_counters *a, const report_counters *b, const char *title,
                        const char *heading, FILE *out) {
    compare_name *names;
    size_t count;
    if (!compare_find_names(a, b, &names, &count) || count == 0) {
        free(names);
        return;
    }
    text_table table = {.headings = {heading, "count A", "count B", "B/A", "bytes A", "bytes B", "time A",
                                     "time B", "B/A", "mean A", "mean B", "B/A"}};
    static const report_counter nothing;
    char name[256];
    bool estimated = false;
    for (size_t i = 0; i < count && i < NAMES_SHOWN; i++) {
        const report_counter *in_a = names[i].a == NULL ? &nothing : names[i].a,
                             *in_b = names[i].b == NULL ? &nothing : names[i].b;
        double seconds_a = (double)in_a->ns / 1e9, seconds_b = (double)in_b->ns / 1e9;
        double mean_a = in_a->count == 0 ? 0 : seconds_a / (double)in_a->count,
               mean_b = in_b->count == 0 ? 0 : seconds_b / (double)in_b->count;
        bool about = in_a->estimated || in_b->estimated;
        estimated |= about;
        report_shorten_symbol(name, sizeof name, names[i].name);
        text_table_add(&table, "%s%s", name, about ? " ~" : "");
        add_figure(&table, COMPARE_COUNT, (double)in_a->count);
        add_figure(&table, COMPARE_COUNT, (double)in_b->count);
        add_ratio(&table, (double)in_a->count, (double)in_b->count);
        add_figure(&table, COMPARE_BYTES, (double)in_a->bytes);
        add_figure(&table, COMPARE_BYTES, (double)in_b->bytes);
        add_figure(&table, COMPARE_SECONDS, seconds_a);
        add_figure(&table, COMPARE_SECONDS, seconds_b);
        add_ratio(&table, seconds_a, seconds_b);
        add_figure(&table, COMPARE_SECONDS, mean_a);
        add_figure(&table, COMPARE_SECONDS, mean_b);
        add_ratio(&table, mean_a, mean_b);
    }
    fprintf(out, "\n%s\n", title);
    text_table_print(&table, out, 2);
    if (estimated)
        fprintf(out, "  ~ estimated times: short calls are timed by sample\n");
    if (count > NAMES_SHOWN)
        fprintf(out, "  and %zu more (--format json has all)\n", count - NAMES_SHOWN);
    free(names);
}

void report_compare_text(const report *a, const report *b, FILE *out) {
    compare_row rows[COMPARE_ROWS];
    compare_find_rows(a, b, rows);
    fprintf(out, "Castor report: %s beside %s\n\n", b->job, a->job);
    write_run('A', a, out);
    write_run('B', b, out);
    text_table table = {.headings = {"", "A", "B", "B/A"}};
    for (int i = 0; i < COMPARE_ROWS; i++) {
        if (rows[i].a <= 0 && rows[i].b <= 0)
            continue;
        text_table_add(&table, "%s", rows[i].label);
        add_figure(&table, rows[i].unit, rows[i].a);
        add_figure(&table, rows[i].unit, rows[i].b);
        add_ratio(&table, rows[i].a, rows[i].b);
    }
    fputc('\n', out);
    text_table_print(&table, out, 2);
    write_names(&a->collectives, &b->collectives, "Collectives (all ranks)", "operation", out);
    write_names(&a->calls, &b->calls, "Calls (all ranks, by time)", "function", out);
    write_names(&a->waits, &b->waits, "Waits for other ranks (all ranks)", "for", out);
    for (size_t i = 0; i < a->note_count; i++)
        fprintf(out, "%s  A: %s\n", i == 0 ? "\nNotes\n" : "", a->notes[i]);
    for (size_t i = 0; i < b->note_count; i++)
        fprintf(out, "%s  B: %s\n", i == 0 && a->note_count == 0 ? "\nNotes\n" : "", b->notes[i]);
}

/* ---- JSON ---- */

static void write_known(json_writer *json, const char *key, double value) {
    if (value > 0)
        json_number(json, key, value);
    else
        json_null(json, key);
}

static void write_pair(json_writer *json, const char *key, double a, double b) {
    json_object_begin(json, key);
    write_known(json, "a", a);
    write_known(json, "b", b);
    write_known(json, "ratio", a > 0 && b > 0 ? b / a : 0);
    json_object_end(json);
}

static void write_run_json(json_writer *json, const char *key, const report *report, size_t notes_max) {
    json_object_begin(json, key);
    json_string(json, "job", report->job);
    json_string(json, "directory", report->directory);
    json_string(json, "command", report->command);
    json_string(json, "plugin", report->plugin);
    json_string(json, "outcome", report->outcome);
    report_json_about(json, report);
    json_array_begin(json, "notes");
    for (size_t i = 0; i < report->note_count && i < notes_max; i++)
        json_string(json, NULL, report->notes[i]);
    json_array_end(json);
    json_object_end(json);
}

static void write_names_json(json_writer *json, const char *key, const report_counters *a,
                             const report_counters *b, size_t names_max) {
    compare_name *names;
    size_t count;
    json_object_begin(json, key);
    if (compare_find_names(a, b, &names, &count))
        for (size_t i = 0; i < count && i < names_max; i++) {
            static const report_counter nothing;
            const report_counter *in_a = names[i].a == NULL ? &nothing : names[i].a,
                                 *in_b = names[i].b == NULL ? &nothing : names[i].b;
            json_object_begin(json, names[i].name);
            write_pair(json, "count", (double)in_a->count, (double)in_b->count);
            write_pair(json, "bytes", (double)in_a->bytes, (double)in_b->bytes);
            write_pair(json, "seconds", (double)in_a->ns / 1e9, (double)in_b->ns / 1e9);
            if (in_a->estimated || in_b->estimated)
                json_bool(json, "estimated", true);
            json_object_end(json);
        }
    json_object_end(json);
    free(names);
}

void report_compare_object(json_writer *json, const report *a, const report *b, size_t names_max) {
    compare_row rows[COMPARE_ROWS];
    compare_find_rows(a, b, rows);
    json_object_begin(json, NULL);
    json_unsigned(json, "comparison_version", REPORT_FORMAT_VERSION);
    write_run_json(json, "a", a, names_max);
    write_run_json(json, "b", b, names_max);
    json_object_begin(json, "figures");
    for (int i = 0; i < COMPARE_ROWS; i++)
        write_pair(json, rows[i].key, rows[i].a, rows[i].b);
    json_object_end(json);
    write_names_json(json, "collectives", &a->collectives, &b->collectives, names_max);
    write_names_json(json, "calls", &a->calls, &b->calls, names_max);
    write_names_json(json, "waits", &a->waits, &b->waits, names_max);
    json_object_end(json);
}

void report_compare_json(const report *a, const report *b, FILE *out) {
    report_compare_object(&(json_writer){.out = out}, a, b, SIZE_MAX);
}

static void write_count(json_writer *json, const char *key, const report_counters *a,
                        const report_counters *b) {
    compare_name *names;
    size_t count;
    json_unsigned(json, key, compare_find_names(a, b, &names, &count) ? count : 0);
    free(names);
}

void report_compare_describe(json_writer *json, const report *a, const report *b) {
    static const char *const units[] = {"seconds", "bytes", "count", "figure"};
    compare_row rows[COMPARE_ROWS];
    compare_find_rows(a, b, rows);
    json_array_begin(json, "figures");
    for (int i = 0; i < COMPARE_ROWS; i++) {
        json_object_begin(json, NULL);
        json_string(json, "key", rows[i].key);
        json_string(json, "label", rows[i].label);
        json_string(json, "unit", units[rows[i].unit]);
        json_object_end(json);
    }
    json_array_end(json);
    write_count(json, "collectives", &a->collectives, &b->collectives);
    write_count(json, "calls", &a->calls, &b->calls);
    write_count(json, "waits", &a->waits, &b->waits);
}
