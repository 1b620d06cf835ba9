/* What the report's JSON says of pipelines. */
#include "report_json.h"
#include "pipeline_passes.h"

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
        json_unsigned(json, "part", pass.part);
        json_number(json, "at_seconds", (double)(at_ns - report->pipeline->begin_job_ns) / 1e9);
        json_number(json, "seconds", (double)(row->end_ns - row->begin_ns) / 1e9);
        json_object_end(json);
    }
    json_array_end(json);
}

void report_json_pipeline(json_writer *json, const report *report, const report_limits *limits) {
    const report_pipeline *pipeline = report->pipeline;
    if (pipeline == NULL) {
        json_null(json, "pipeline");
        return;
    }
    const trace_pass *shape = &pipeline->stages[0].batch->shape;
    json_object_begin(json, "pipeline");
    json_unsigned(json, "stages", shape->stages);
    json_unsigned(json, "parts", shape->parts);
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
