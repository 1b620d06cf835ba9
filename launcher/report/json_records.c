/* What the report's JSON says of single records: timelines, classes of collectives, the slowest calls. */
#include <stdlib.h>
#include "collective_statistics.h"
#include "report_json.h"

static void write_positive(json_writer *json, const char *key, double value) {
    if (value > 0)
        json_number(json, key, value);
    else
        json_null(json, key);
}

/* Steps of the busiest optimizer: when each ended, and how long after the one before. */
void report_json_steps(json_writer *json, const report_rank *rank, const report *report,
                       const report_limits *limits) {
    const report_steps *steps = &rank->process->steps;
    size_t count = 0;
    for (size_t i = 0; i < steps->count; i++)
        count += steps->rows[i].optimizer == rank->busiest_optimizer;
    size_t together = limits->step_points == 0 ? 1 : (count + limits->step_points - 1) / limits->step_points;
    json_object_begin(json, "step_times");
    for (int part = 0; part < 2; part++) {
        uint64_t before_ns = 0, longest_ns = 0, seen = 0;
        json_figures_begin(json, part == 0 ? "at_seconds" : "seconds");
        for (size_t i = 0; i < steps->count; i++) {
            if (steps->rows[i].optimizer != rank->busiest_optimizer)
                continue;
            uint64_t begin_ns = steps->rows[i].begin_ns;
            if (seen > 0 && begin_ns - before_ns > longest_ns)
                longest_ns = begin_ns - before_ns;
            before_ns = begin_ns;
            if (seen > 0 && (seen % together == 0 || seen + 1 == count)) {
                uint64_t at_ns = report_job_ns(report, rank->process, begin_ns);
                json_number(json, NULL, (double)(part == 0 ? at_ns : longest_ns) / 1e9);
                longest_ns = 0;
            }
            seen++;
        }
        json_figures_end(json);
    }
    json_object_end(json);
}

void report_json_highest(json_writer *json, const char *key, const uint64_t *values, uint32_t buckets,
                         uint32_t together) {
    json_figures_begin(json, key);
    for (uint32_t from = 0; from < buckets; from += together) {
        uint64_t most = 0;
        for (uint32_t i = from; i < from + together && i < buckets; i++)
            most = values[i] > most ? values[i] : most;
        json_unsigned(json, NULL, most);
    }
    json_figures_end(json);
}

static void write_peak(json_writer *json, const report_memory *memory) {
    json_object_begin(json, "peak");
    json_unsigned(json, "bytes", memory->peak_bytes);
    json_number(json, "at_seconds", (double)memory->peak_job_ns / 1e9);
    json_unsigned(json, "step", memory->peak_step);
    json_string(json, "phase", memory->peak_phase);
    json_object_begin(json, "held");
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        if (memory->values[kind] != NULL && report_memory_role_of(kind) != REPORT_MEMORY_LINK &&
            report_memory_role_of(kind) != REPORT_MEMORY_BUDGET)
            json_unsigned(json, report_memory_label(kind),
                          report_loaded(memory, (report_memory_kind)kind)[memory->peak_bucket]);
    json_object_end(json);
    json_object_end(json);
}

static void write_timeline(json_writer *json, int kind, const uint64_t *values, uint32_t buckets,
                           uint32_t together) {
    if (values != NULL)
        report_json_highest(json, report_memory_label((report_memory_kind)kind), values, buckets, together);
}

void report_json_memory(json_writer *json, const report_memory *memory, const report_limits *limits) {
    if (memory->buckets == 0) {
        json_null(json, "memory");
        return;
    }
    uint32_t together = (memory->buckets + limits->memory_points - 1) / limits->memory_points;
    json_object_begin(json, "memory");
    json_number(json, "begin_seconds", (double)memory->begin_job_ns / 1e9);
    json_number(json, "interval_seconds", (double)(memory->width_ns * together) / 1e9);
    write_peak(json, memory);
    json_object_begin(json, "bytes");
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        write_timeline(json, kind, memory->values[kind], memory->buckets, together);
    json_object_end(json);
    json_object_begin(json, "in_memory");
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        write_timeline(json, kind, memory->loaded[kind], memory->buckets, together);
    json_object_end(json);
    json_object_end(json);
}

static void write_groups(json_writer *json, const report *report, const report_limits *limits) {
    const report_collectives *collectives = report->matched;
    json_array_begin(json, "groups");
    for (size_t i = 0; i < collectives->group_count && i < limits->rows; i++) {
        const report_group *group = &collectives->groups[i];
        json_object_begin(json, NULL);
        json_string(json, "label", group->label);
        json_unsigned(json, "number", group->number);
        json_unsigned(json, "size", group->size);
        json_figures_begin(json, "ranks");
        for (size_t j = 0; j < group->process_count && j < limits->rows; j++) {
            int rank = report->processes[group->processes[j]].counters->rank;
            json_signed_or_null(json, NULL, rank);
        }
        json_figures_end(json);
        json_object_end(json);
    }
    json_array_end(json);
}

void report_json_classes(json_writer *json, const report *report, const report_limits *limits) {
    const report_collectives *collectives = report->matched;
    write_groups(json, report, limits);
    json_array_begin(json, "collective_classes");
    for (size_t i = 0; i < collectives->class_count && i < limits->rows; i++) {
        const report_class *class = &collectives->classes[i];
        const report_group *group = &collectives->groups[class->group];
        json_object_begin(json, NULL);
        json_string(json, "operation", collectives->operations[class->operation]);
        json_string(json, "group", group->label);
        json_unsigned(json, "ranks", group->size);
        json_string(json, "size", report_size_class_label(class->size_class));
        json_unsigned(json, "size_begin_bytes", report_size_class_begin(class->size_class));
        json_unsigned(json, "count", class->count);
        json_unsigned(json, "bytes", class->bytes);
        json_number(json, "seconds", (double)class->ns / 1e9);
        json_number(json, "min_seconds", (double)class->min_ns / 1e9);
        json_number(json, "max_seconds", (double)class->max_ns / 1e9);
        write_positive(json, "bus_bytes_per_second", class->bus_bandwidth);
        json_unsigned(json, "matched", class->matched);
        if (class->matched > 0)
            json_number(json, "late_seconds", (double)class->late_ns / 1e9);
        else
            json_null(json, "late_seconds");
        write_positive(json, "transfer_bus_bytes_per_second", class->transfer_bus_bandwidth);
        json_object_end(json);
    }
    json_array_end(json);
}

void report_json_slowest(json_writer *json, const report *report) {
    json_array_begin(json, "slowest_calls");
    for (size_t i = 0; i < report->slow_count; i++) {
        const report_slow *slow = &report->slow[i];
        const trace_counters *counters = slow->process->counters;
        char fallback[32];
        json_object_begin(json, NULL);
        json_string(json, "name", report_id_name(counters, slow->kind, slow->id, fallback));
        json_bool(json, "collective", slow->kind == TRACE_COLLECTIVE);
        json_signed_or_null(json, "rank", counters->rank);
        json_unsigned(json, "pid", counters->pid);
        json_unsigned(json, "thread", slow->thread);
        json_number(json, "at_seconds", (double)report_job_ns(report, slow->process, slow->begin_ns) / 1e9);
        json_number(json, "seconds", (double)slow->ns / 1e9);
        json_unsigned(json, "bytes", slow->bytes);
        json_object_end(json);
    }
    json_array_end(json);
}
