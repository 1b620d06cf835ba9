#include "report_json.h"
#include <stdlib.h>
#include <time.h>
#include "collective_statistics.h"
#include "launcher/common/device_peaks.h"
#include "pipeline_passes.h"

/* What the report's JSON says of single records: timelines, classes of collectives, the slowest calls. */

static void write_positive(json_writer *json, const char *key, double value) {
    if (value > 0)
        json_number(json, key, value);
    else
        json_null(json, key);
}

/* Steps of the busiest optimizer: when each ended, and how long after the one before. */
static void report_json_steps(json_writer *json, const report_rank *rank, const report *report,
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

static void report_json_memory(json_writer *json, const report_memory *memory, const report_limits *limits) {
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
        const report_process_group *group = &collectives->groups[i];
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

static void report_json_classes(json_writer *json, const report *report, const report_limits *limits) {
    const report_collectives *collectives = report->matched;
    write_groups(json, report, limits);
    json_array_begin(json, "collective_classes");
    for (size_t i = 0; i < collectives->class_count && i < limits->rows; i++) {
        const report_class *class = &collectives->classes[i];
        const report_process_group *group = &collectives->groups[class->group];
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

static void report_json_slowest(json_writer *json, const report *report) {
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

/* What the report's JSON says of tiers, homes, slots and the link. */

/* Of a rank: its bytes by tier; its device, null without one. */
static void report_json_tiers(json_writer *json, const report_rank *rank) {
    tier_bytes held = {0};
    tier_bytes_add(&held, rank->process->counters);
    json_object_begin(json, "tiers");
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        json_object_begin(json, tier_names[tier]);
        for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
            json_unsigned(json, tier_kind_names[kind], held.bytes[tier][kind]);
        json_object_end(json);
    }
    json_object_end(json);
}

static void write_flips(json_writer *json, const device_figures *device) {
    static const char *const ends[2] = {"to_device", "to_host"};
    json_object_begin(json, "flips");
    for (int to = 0; to < 2; to++) {
        json_object_begin(json, ends[to]);
        json_unsigned(json, "count", device->flips[to]);
        json_unsigned(json, "bytes", device->flipped_bytes[to]);
        json_object_end(json);
    }
    json_number(json, "seconds", (double)device->flip_ns / 1e9);
    json_unsigned(json, "rescues", device->rescues);
    json_object_end(json);
}

static void write_slots(json_writer *json, const device_figures *device) {
    json_object_begin(json, "slots");
    json_unsigned(json, "bytes", device->slots_bytes);
    json_unsigned(json, "uses", device->uses);
    json_unsigned(json, "hits", device->hits);
    json_unsigned(json, "prefetched", device->prefetched);
    json_unsigned(json, "in_time", device->in_time);
    uint64_t copy_reads = device_figures_copy_reads(device);
    json_unsigned(json, "waits", copy_reads > device->in_time ? copy_reads - device->in_time : 0);
    json_unsigned(json, "home_reads", device->home_reads);
    json_unsigned(json, "copies", device->copies);
    json_unsigned(json, "copied_bytes", device->copied_bytes);
    json_unsigned(json, "stale", device->stale);
    json_object_end(json);
}

static void write_steps(json_writer *json, const device_figures *device) {
    json_object_begin(json, "host_steps");
    json_unsigned(json, "parameters", device->host_steps);
    json_unsigned(json, "bytes", device->host_step_bytes);
    json_unsigned(json, "waits", device->host_step_waits);
    json_object_end(json);
}

static void write_link(json_writer *json, const device_figures *device) {
    static const char *const ends[2] = {"to_device", "to_host"};
    json_object_begin(json, "link");
    for (int to = 0; to < 2; to++) {
        json_object_begin(json, ends[to]);
        json_unsigned(json, "bytes", device->link_bytes[to]);
        if (device->link_rates[to] > 0)
            json_number(json, "max_bytes_per_second", device->link_rates[to]);
        else
            json_null(json, "max_bytes_per_second");
        json_object_end(json);
    }
    json_object_end(json);
}

static void write_overflow(json_writer *json, const device_figures *device) {
    json_object_begin(json, "overflow");
    json_unsigned(json, "bytes", device->overflow_bytes);
    json_unsigned(json, "peak_bytes", device->overflow_peak_bytes);
    json_unsigned(json, "segments", device->overflow_segments);
    json_object_end(json);
}

static void write_device_peaks(json_writer *json, const report_rank *rank) {
    device_peak peaks[DEVICE_PARTS_DEVICES];
    size_t count = device_peaks_read(rank->process->counters, peaks);
    json_array_begin(json, "device_peaks");
    for (size_t i = 0; i < count; i++) {
        json_object_begin(json, NULL);
        json_signed(json, "device", peaks[i].device);
        json_unsigned(json, "peak", peaks[i].bytes);
        for (int part = 0; part < DEVICE_PART_COUNT; part++)
            json_unsigned(json, device_part_keys[part], peaks[i].parts[part]);
        json_object_end(json);
    }
    json_array_end(json);
}

static void report_json_device(json_writer *json, const report_rank *rank) {
    static const struct {
        const char *name;
        trace_gauge gauge;
    } kinds[] = {{"param", GAUGE_DEVICE_PARAM_BYTES},
                 {"grad", GAUGE_DEVICE_GRAD_BYTES},
                 {"optim", GAUGE_DEVICE_OPTIM_BYTES},
                 {"slots", GAUGE_DEVICE_SLOTS_BYTES},
                 {"other", GAUGE_DEVICE_OTHER_BYTES}};
    const device_figures *device = &rank->device;
    uint64_t any = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        any |= report_gauge(rank->process, kinds[i].gauge).max;
    if (any == 0 && !device_figures_any(device)) {
        json_null(json, "device");
        return;
    }
    json_object_begin(json, "device");
    json_unsigned_or_null(json, "budget_bytes", device->budget_bytes);
    json_object_begin(json, "peak_bytes");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        json_unsigned(json, kinds[i].name, report_gauge(rank->process, kinds[i].gauge).max);
    json_object_end(json);
    json_unsigned(json, "outside_bytes", device->outside_bytes);
    json_unsigned(json, "refused", device->refused);
    write_flips(json, device);
    write_slots(json, device);
    write_steps(json, device);
    write_link(json, device);
    write_overflow(json, device);
    json_object_end(json);
}

/* What the report's JSON says of pipelines. */

static void write_passes(json_writer *json, const report *report, const report_stage *stage) {
    const report_batch *batch = stage->batch;
    json_array_begin(json, "passes");
    for (size_t i = 0; i < batch->count; i++) {
        const report_pass *row = &batch->rows[i];
        trace_pass pass = report_pass_of(batch, row);
        char label[REPORT_PASS_LABEL_MAX];
        report_pass_label(label, &pass, true);
        uint64_t at_ns = report_job_ns(report, stage->rank->process, row->begin_ns);
        json_object_begin(json, NULL);
        json_string(json, "label", label);
        json_unsigned(json, "part", pass.virtual_stage);
        json_number(json, "at_seconds", (double)(at_ns - report->pipeline->begin_job_ns) / 1e9);
        json_number(json, "seconds", (double)(row->end_ns - row->begin_ns) / 1e9);
        json_object_end(json);
    }
    json_array_end(json);
}

/* The batch of a pipeline that is drawn, null without one. */
static void report_json_pipeline(json_writer *json, const report *report, const report_limits *limits) {
    const report_pipeline *pipeline = report->pipeline;
    if (pipeline == NULL) {
        json_null(json, "pipeline");
        return;
    }
    const trace_pass *shape = &pipeline->stages[0].batch->shape;
    json_object_begin(json, "pipeline");
    json_unsigned(json, "stages", shape->stages);
    json_unsigned(json, "parts", shape->virtual_stages);
    json_unsigned(json, "microbatches", shape->microbatches);
    json_unsigned(json, "batch", (uint64_t)shape->batch + 1);
    json_number(json, "begin_seconds", (double)pipeline->begin_job_ns / 1e9);
    json_number(json, "seconds", (double)pipeline->ns / 1e9);
    json_unsigned(json, "idle_of_batches", pipeline->counted);
    json_number(json, "ideal_idle", pipeline->ideal);
    json_bool(json, "on_device", shape->on_device);
    json_array_begin(json, "ranks");
    size_t passes = 0;
    for (size_t i = 0; i < pipeline->stage_count && i < limits->rows; i++) {
        const report_stage *stage = &pipeline->stages[i];
        if ((passes += stage->batch->count) > limits->passes)
            break;
        json_object_begin(json, NULL);
        json_signed_or_null(json, "rank", stage->rank->rank);
        json_unsigned(json, "stage", stage->stage);
        json_number(json, "idle", stage->idle);
        write_passes(json, report, stage);
        json_object_end(json);
    }
    json_array_end(json);
    json_object_end(json);
}

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
                : end->by_cgroup            ? "control group"
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
    json_unsigned(json, "blocks", report_gauge(process, GAUGE_BLOCKS_BYTES).max);
    json_unsigned(json, "blocks_start", report_gauge(process, GAUGE_BLOCKS_START_BYTES).max);
    json_unsigned(json, "blocks_beside", report_gauge(process, GAUGE_BLOCKS_BESIDE_BYTES).max);
    json_object_end(json);
    uint64_t pss_bytes = report_gauge(process, GAUGE_PSS_BYTES).max;
    json_unsigned_or_null(json, "pss_peak_bytes", pss_bytes);
    json_unsigned_or_null(json, "import_bytes", report_gauge(process, GAUGE_IMPORT_BYTES).last);
    json_unsigned_or_null(json, "rest_peak_bytes", report_gauge(process, GAUGE_REST_BYTES).max);
    json_unsigned(json, "private_bytes", report_gauge(process, GAUGE_PRIVATE_BYTES).last);
    json_number(json, "wait_seconds", rank->wait_seconds);
    if (rank->calls_by_rows + rank->calls_whole > 0) {
        json_unsigned(json, "calls_by_rows", rank->calls_by_rows);
        json_unsigned(json, "calls_1f1b", rank->calls_1f1b);
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
    write_device_peaks(json, rank);
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
