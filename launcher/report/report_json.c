#include "report_json.h"

#include <time.h>

static void write_counters(json_writer *json, const char *key, const report_counters *counters,
                           const report_limits *limits) {
    json_object_begin(json, key);
    for (size_t i = 0; i < counters->count && i < limits->rows; i++) {
        json_object_begin(json, counters->rows[i].name);
        json_unsigned(json, "count", counters->rows[i].count);
        json_unsigned(json, "bytes", counters->rows[i].bytes);
        json_number(json, "seconds", (double)counters->rows[i].ns / 1e9);
        if (counters->rows[i].max_ns > 0)
            json_number(json, "max_seconds", (double)counters->rows[i].max_ns / 1e9);
        if (counters->rows[i].estimated)
            json_bool(json, "estimated", true);
        json_object_end(json);
    }
    json_object_end(json);
}

static void write_seconds(json_writer *json, const char *key, double seconds) {
    if (seconds > 0)
        json_number(json, key, seconds);
    else
        json_null(json, key);
}

static void write_phases(json_writer *json, const report_rank *rank) {
    if (!rank->has_phases) {
        json_null(json, "phases");
        return;
    }
    json_object_begin(json, "phases");
    for (int phase = 0; phase < TRACE_PHASE_COUNT; phase++)
        json_number(json, report_phase_key((trace_phase)phase), rank->phase_seconds[phase]);
    json_object_end(json);
}

static void write_end(json_writer *json, const report *report, const job_end *end) {
    char text[JOB_END_TEXT_MAX], fallback[24];
    json_object_begin(json, "end");
    json_string(json, "kind", job_end_kind_names[end->kind]);
    job_end_sentence(end, text);
    json_string(json, "text", text);
    json_signed_or_null(json, "status", end->status);
    json_string(json, "signal", end->signal > 0 ? job_signal_name(end->signal, fallback) : NULL);
    json_string(json, "killed_by",
                end->kind != JOB_END_MEMORY ? NULL
                : end->by_group             ? "control group"
                                            : "kernel");
    json_signed_or_null(json, "by_rank", end->by_rank);
    if (end->exception != NULL) {
        json_object_begin(json, "exception");
        json_string(json, "type", end->exception->type);
        json_string(json, "message", end->exception->message);
        json_string(json, "place", end->exception->place[0] != '\0' ? end->exception->place : NULL);
        json_object_end(json);
    } else
        json_null(json, "exception");
    if (end->realtime_ns == 0)
        json_null(json, "at_seconds");
    else
        json_number(json, "at_seconds",
                    end->realtime_ns > report->start_realtime_ns
                        ? (double)(end->realtime_ns - report->start_realtime_ns) / 1e9
                        : 0);
    json_object_end(json);
}

static void write_first_failure(json_writer *json, const report *report) {
    if (report->first_failure == JOB_NO_FAILURE) {
        json_null(json, "first_failure");
        return;
    }
    const report_rank *rank = &report->ranks[report->first_failure];
    json_object_begin(json, "first_failure");
    json_signed_or_null(json, "rank", rank->rank);
    json_unsigned(json, "pid", rank->process->counters->pid);
    json_string(json, "kind", job_end_kind_names[rank->end.kind]);
    json_object_end(json);
}

static void write_rank(json_writer *json, const report *report, const report_rank *rank,
                       const report_limits *limits) {
    static const char *const states[] = {"running", "exited", "died"};
    const report_process *process = rank->process;
    json_object_begin(json, NULL);
    json_signed_or_null(json, "rank", rank->rank);
    json_string(json, "host", process->counters->host);
    json_unsigned(json, "pid", process->counters->pid);
    json_string(json, "state", states[rank->state]);
    json_string(json, "outcome", process->counters->outcome);
    write_end(json, report, &rank->end);
    json_unsigned(json, "steps", rank->steps);
    json_unsigned(json, "optimizer_steps", rank->optimizer_steps);
    json_unsigned(json, "micro_steps", rank->micro_steps);
    write_seconds(json, "step_seconds", rank->step_seconds);
    write_seconds(json, "step_p90_seconds", rank->step_p90_seconds);
    write_seconds(json, "step_max_seconds", rank->step_max_seconds);
    json_object_begin(json, "peak_bytes");
    json_unsigned(json, "param", report_gauge(process, GAUGE_PARAM_BYTES).max);
    json_unsigned(json, "grad", report_gauge(process, GAUGE_GRAD_BYTES).max);
    json_unsigned(json, "optim", report_gauge(process, GAUGE_OPTIM_BYTES).max);
    json_unsigned(json, "other", report_gauge(process, GAUGE_OTHER_BYTES).max);
    json_object_end(json);
    uint64_t pss_bytes = report_gauge(process, GAUGE_PSS_BYTES).max;
    json_unsigned_or_null(json, "pss_peak_bytes", pss_bytes);
    json_unsigned_or_null(json, "import_bytes", report_gauge(process, GAUGE_IMPORT_BYTES).last);
    json_unsigned_or_null(json, "rest_peak_bytes", report_gauge(process, GAUGE_REST_BYTES).max);
    json_unsigned(json, "private_bytes", report_gauge(process, GAUGE_PRIVATE_BYTES).last);
    json_number(json, "wait_seconds", rank->wait_seconds);
    if (rank->calls_by_rows + rank->calls_whole > 0) {
        json_unsigned(json, "calls_by_rows", rank->calls_by_rows);
        json_unsigned(json, "calls_whole", rank->calls_whole);
        json_number(json, "rows_seconds", rank->rows_seconds);
    }
    json_number(json, "backward_seconds", rank->backward_seconds);
    json_number(json, "optimizer_seconds", rank->optimizer_seconds);
    json_number(json, "collective_seconds", rank->collective_seconds);
    json_number(json, "reduce_seconds", rank->reduce_seconds);
    json_number(json, "lived_seconds", rank->lived_seconds);
    write_phases(json, rank);
    json_unsigned(json, "records", process->records);
    report_json_steps(json, rank, report, limits);
    report_json_memory(json, &rank->memory, limits);
    report_json_tiers(json, rank);
    report_json_device(json, rank);
    json_object_end(json);
}

static void write_node_figures(json_writer *json, const report_node *node) {
    static const report_node nothing;
    if (node == NULL)
        node = &nothing;
    json_unsigned(json, "numel", node->numel);
    json_unsigned(json, "bytes", report_node_bytes(node));
    if (node->numel > 0)
        json_number(json, "bytes_per_param", (double)report_node_bytes(node) / (double)node->numel);
    else
        json_null(json, "bytes_per_param");
    json_unsigned(json, "param", node->param_bytes);
    json_unsigned(json, "grad", node->grad_bytes);
    json_unsigned(json, "optim", node->optim_bytes);
    json_unsigned(json, "private", node->private_bytes);
    json_unsigned(json, "peak_bytes", report_node_peak_bytes(node));
    json_unsigned(json, "sent_bytes", node->sent_bytes);
}

/* The figures of the fullest node, then each node's. */
static void write_model_data(json_writer *json, const report *report) {
    json_object_begin(json, "model_data");
    write_node_figures(json, report_fullest_node(report));
    json_array_begin(json, "nodes");
    for (size_t i = 0; i < report->node_count; i++) {
        json_object_begin(json, NULL);
        json_string(json, "host", report->nodes[i].host);
        write_node_figures(json, &report->nodes[i]);
        json_object_end(json);
    }
    json_array_end(json);
    json_object_end(json);
}

static void write_lines(json_writer *json, const char *key, char *const *lines, size_t count,
                        const report_limits *limits) {
    json_array_begin(json, key);
    for (size_t i = 0; i < count && i < limits->rows; i++)
        json_string(json, NULL, lines[i]);
    json_array_end(json);
}

static void write_start(json_writer *json, const report *report) {
    char text[32] = "";
    time_t seconds = (time_t)(report->start_realtime_ns / 1000000000u);
    struct tm broken_down;
    if (gmtime_r(&seconds, &broken_down) != NULL)
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &broken_down);
    json_string(json, "started", text);
}

void report_json_object(json_writer *json, const report *report, const report_limits *limits) {
    json_object_begin(json, NULL);
    json_unsigned(json, "report_version", REPORT_FORMAT_VERSION);
    json_string(json, "job", report->job);
    json_string(json, "directory", report->directory);
    json_string(json, "command", report->command);
    json_string(json, "plugin", report->plugin);
    json_string(json, "outcome", report->outcome);
    write_first_failure(json, report);
    write_start(json, report);
    report_json_about(json, report);
    json_number(json, "duration_seconds", report->duration_seconds);
    report_json_budgets(json, report, limits);
    json_array_begin(json, "ranks");
    for (size_t i = 0; i < report->rank_count && i < limits->rows; i++)
        write_rank(json, report, &report->ranks[i], limits);
    json_array_end(json);
    report_json_pipeline(json, report, limits);
    write_model_data(json, report);
    write_counters(json, "collectives", &report->collectives, limits);
    report_json_classes(json, report, limits);
    write_counters(json, "calls", &report->calls, limits);
    report_json_slowest(json, report);
    write_counters(json, "waits", &report->waits, limits);
    write_counters(json, "events", &report->events, limits);
    json_object_begin(json, "chunks");
    json_unsigned(json, "size", report->chunks.size);
    json_unsigned(json, "count", report->chunks.count);
    json_unsigned(json, "wasted", report->chunks.wasted);
    json_unsigned(json, "moves", report->chunks.moves);
    json_unsigned(json, "bytes_moved", report->chunks.bytes_moved);
    json_object_begin(json, "prefetch");
    json_unsigned(json, "hits", report->chunks.hits);
    json_unsigned(json, "late", report->chunks.late);
    json_unsigned(json, "misses", report->chunks.misses);
    json_object_end(json);
    json_number(json, "stall_seconds", (double)report->chunks.stall_ns * 1e-9);
    write_counters(json, "events", &report->chunk_events, limits);
    json_object_end(json);
    json_object_begin(json, "coverage");
    json_unsigned(json, "hooked", report->hooked);
    json_unsigned(json, "missed", report->missed);
    json_unsigned(json, "export_tables", report->export_tables);
    json_object_begin(json, "also");
    for (size_t i = 0; i < report->also_count; i++) {
        const char *missed = report_also_missed(&report->also[i]);
        json_object_begin(json, report->also[i].name);
        json_unsigned(json, "places", report->also[i].places);
        json_string(json, "missed", missed);
        json_object_end(json);
    }
    json_object_end(json);
    json_object_end(json);
    json_object_begin(json, "trace");
    json_unsigned(json, "processes", report->process_count);
    json_unsigned(json, "bytes", report->trace_bytes);
    json_unsigned(json, "records", report->records);
    json_unsigned(json, "dropped", report->dropped);
    json_bool(json, "truncated", report->truncated);
    json_object_end(json);
    write_lines(json, "notes", report->notes, report->note_count, limits);
    write_lines(json, "problems", report->problems, report->problem_count, limits);
    json_object_end(json);
}

void report_write_json(const report *report, FILE *out) {
    static const report_limits limits = {
        .memory_points = 256, .step_points = 256, .rows = SIZE_MAX, .passes = SIZE_MAX};
    json_writer json = {.out = out};
    report_json_object(&json, report, &limits);
}
