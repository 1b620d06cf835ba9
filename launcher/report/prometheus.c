/* The report for Prometheus: its text format, as the textfile collector of node_exporter reads it. Figures are those of the counters' tables; the
 * names of metrics come from these. */
#include <stdlib.h>
#include <string.h>
#include "report.h"

static void write_escaped(FILE *out, const char *text, bool quoted) {
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '\\' || (quoted && *text == '"'))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

static void write_label(FILE *out, const char *name, const char *value) {
    fprintf(out, ",%s=\"", name);
    write_escaped(out, value, true);
    fputc('"', out);
}

/* All samples of a metric follow its begin. */
static void begin_metric(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP castor_%s ", name);
    write_escaped(out, help, false);
    fprintf(out, "\n# TYPE castor_%s %s\n", name, type);
}

/* Of the job (`job` is a label of Prometheus's own); of `rank`, unless that is NULL. `label` and `text`: one more label, unless that is NULL. */
static void write_sample(FILE *out, const report *report, const char *name, const report_rank *rank,
                         const char *label, const char *text, double value) {
    fprintf(out, "castor_%s{run=\"", name);
    write_escaped(out, report->job, true);
    fputc('"', out);
    if (rank != NULL) {
        const trace_counters *counters = rank->process->counters;
        write_label(out, "host", counters->host);
        fprintf(out, rank->rank < 0 ? ",rank=\"unknown\",pid=\"%u\"" : ",rank=\"%d\",pid=\"%u\"",
                rank->rank < 0 ? (int)counters->pid : rank->rank, counters->pid);
    }
    if (label != NULL)
        write_label(out, label, text);
    fprintf(out, "} %.16g\n", value);
}

/* ---- ranks ---- */

static const struct gauge_row {
    const char *name, *doc;
} gauges[] = {
#define GAUGE(id, name, doc) {name, doc},
#include "trace/gauge.def"
};

static bool is_memory(int gauge) {
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        if ((int)report_memory_gauge((report_memory_kind)kind) == gauge)
            return report_memory_role_of((report_memory_kind)kind) != REPORT_MEMORY_LINK;
    return false;
}

/* The phase that a process is in says nothing for itself; castor_phase_seconds has the times. */
static bool is_shown(const report *report, int gauge) {
    if (gauge == GAUGE_PHASE || gauge == GAUGE_PHASE_BEGAN_NS || is_memory(gauge))
        return false;
    for (size_t i = 0; i < report->rank_count; i++)
        if (report_gauge(report->ranks[i].process, (trace_gauge)gauge).max > 0)
            return true;
    return false;
}

static void write_gauges(const report *report, FILE *out) {
    for (int gauge = 0; gauge < GAUGE_COUNT; gauge++) {
        if (!is_shown(report, gauge))
            continue;
        begin_metric(out, gauges[gauge].name, "untyped", gauges[gauge].doc);
        for (size_t i = 0; i < report->rank_count; i++) {
            const report_rank *rank = &report->ranks[i];
            write_sample(out, report, gauges[gauge].name, rank, NULL, NULL,
                         (double)report_gauge(rank->process, (trace_gauge)gauge).last);
        }
    }
}

static void write_memory(const report *report, FILE *out, bool peaks) {
    const char *name = peaks ? "memory_peak_bytes" : "memory_bytes";
    begin_metric(out, name, "gauge",
                 peaks ? "the highest that castor_memory_bytes was"
                       : "bytes by kind, as the report's timelines name them (interpose/trace/memory.def)");
    for (size_t i = 0; i < report->rank_count; i++)
        for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
            const report_rank *rank = &report->ranks[i];
            trace_gauge_value value =
                report_gauge(rank->process, report_memory_gauge((report_memory_kind)kind));
            if (report_memory_role_of((report_memory_kind)kind) != REPORT_MEMORY_LINK && value.max > 0)
                write_sample(out, report, name, rank, "kind", report_memory_label((report_memory_kind)kind),
                             (double)(peaks ? value.max : value.last));
        }
}

static void write_times(const report *report, FILE *out) {
    begin_metric(
        out, "step_seconds", "gauge",
        "from one optimizer step to the next: the median, what 90% of the steps did not exceed, the longest");
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        if (rank->step_seconds <= 0)
            continue;
        write_sample(out, report, "step_seconds", rank, "quantile", "0.5", rank->step_seconds);
        write_sample(out, report, "step_seconds", rank, "quantile", "0.9", rank->step_p90_seconds);
        write_sample(out, report, "step_seconds", rank, "quantile", "1", rank->step_max_seconds);
    }
    begin_metric(out, "phase_seconds", "counter",
                 "what the script's thread did: the phases add up to its life");
    for (size_t i = 0; i < report->rank_count; i++)
        for (int phase = 0; phase < TRACE_PHASE_COUNT && report->ranks[i].has_phases; phase++)
            write_sample(out, report, "phase_seconds", &report->ranks[i], "phase",
                         report_phase_key((trace_phase)phase), report->ranks[i].phase_seconds[phase]);
    begin_metric(out, "rank_end", "gauge", "1, for how the rank ended; kind: running, where it has not");
    for (size_t i = 0; i < report->rank_count; i++)
        write_sample(out, report, "rank_end", &report->ranks[i], "kind",
                     job_end_kind_names[report->ranks[i].end.kind], 1);
}

/* ---- the job ---- */

/* count, bytes and seconds by name, of all processes. */
static void write_counters(const report *report, const report_counters *counters, const char *name,
                           const char *label, const char *help, FILE *out) {
    static const char *const parts[] = {"total", "bytes_total", "seconds_total"};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        char metric[64];
        bool begun = false;
        snprintf(metric, sizeof metric, "%s_%s", name, parts[part]);
        for (size_t i = 0; i < counters->count; i++) {
            const report_counter *row = &counters->rows[i];
            double values[] = {(double)row->count, (double)row->bytes, (double)row->ns / 1e9};
            if (values[part] <= 0)
                continue;
            if (!begun)
                begin_metric(out, metric, "counter", help);
            begun = true;
            write_sample(out, report, metric, NULL, label, row->name, values[part]);
        }
    }
}

static void write_job(const report *report, FILE *out) {
    begin_metric(out, "job_start_time_seconds", "gauge", "since the epoch");
    write_sample(out, report, "job_start_time_seconds", NULL, "plugin", report->plugin,
                 (double)report->start_realtime_ns / 1e9);
    begin_metric(out, "job_duration_seconds", "gauge", "from the first sign of life to the last one");
    write_sample(out, report, "job_duration_seconds", NULL, NULL, NULL, report->duration_seconds);
    begin_metric(out, "job_outcome", "gauge", "1, for what the job came to");
    write_sample(out, report, "job_outcome", NULL, "outcome", report->outcome, 1);
}

void report_write_prometheus(const report *report, FILE *out) {
    write_job(report, out);
    write_gauges(report, out);
    write_memory(report, out, false);
    write_memory(report, out, true);
    write_times(report, out);
    write_counters(report, &report->calls, "calls", "function",
                   "calls of intercepted functions, of all ranks", out);
    write_counters(report, &report->collectives, "collectives", "operation", "collectives, of all ranks",
                   out);
    write_counters(report, &report->waits, "waits", "reason", "waits for other ranks, of all ranks", out);
}
