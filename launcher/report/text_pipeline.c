/* A batch of a pipeline as a chart, a line for each rank, and how long the stages idle. */
#include <inttypes.h>
#include <string.h>
#include "pipeline_passes.h"
#include "text.h"

#define RANKS_SHOWN 16
#define WIDTH       96  /* columns of the batch's time */
#define WIDTH_MOST  160 /* with the room that labels of short passes need */

static size_t column_of(const report *report, const report_stage *stage, uint64_t time_ns) {
    const report_pipeline *pipeline = report->pipeline;
    uint64_t at_ns = report_job_ns(report, stage->rank->process, time_ns) - pipeline->begin_job_ns;
    return pipeline->ns == 0 ? 0 : (size_t)((double)at_ns / (double)pipeline->ns * WIDTH);
}

/* Each pass has its label, also where its time is shorter: then what follows is moved to the right. */
/* False: not all of them have room. */
static bool draw_line(char line[WIDTH_MOST + 2], const report *report, const report_stage *stage) {
    size_t used = 0;
    bool complete = true;
    for (size_t i = 0; i < stage->batch->count && complete; i++) {
        const report_pass *row = &stage->batch->rows[i];
        trace_pass pass = report_pass_of(stage->batch, row);
        char label[REPORT_PASS_LABEL_MAX];
        report_pass_label(label, &pass, true);
        size_t begin = column_of(report, stage, row->begin_ns), end = column_of(report, stage, row->end_ns);
        begin = begin > used ? begin : used;
        end = end > begin + strlen(label) ? end : begin + strlen(label);
        if (!(complete = end <= WIDTH_MOST)) {
            line[used++] = '>';
            continue;
        }
        memset(line + used, '.', begin - used);
        memset(line + begin, '=', end - begin);
        memcpy(line + begin, label, strlen(label));
        used = end;
    }
    if (used < WIDTH) {
        memset(line + used, '.', WIDTH - used);
        used = WIDTH;
    }
    line[used] = '\0';
    return complete;
}

static void write_idle(const report_pipeline *pipeline, FILE *out) {
    text_table table = {.headings = {"rank", "stage", "idle", "ideal"}};
    for (size_t i = 0; i < pipeline->stage_count && i < RANKS_SHOWN; i++) {
        const report_stage *stage = &pipeline->stages[i];
        if (stage->rank->rank >= 0)
            text_table_add(&table, "%d", stage->rank->rank);
        else
            text_table_add(&table, "?");
        text_table_add(&table, "%" PRIu32, stage->stage);
        text_table_add(&table, "%.1f%%", 100 * stage->idle);
        text_table_add(&table, "%.1f%%", 100 * pipeline->ideal);
    }
    text_table_print(&table, out, 2);
}

void report_text_pipeline(const report *report, FILE *out) {
    const report_pipeline *pipeline = report->pipeline;
    if (pipeline == NULL)
        return;
    const trace_pass *shape = &pipeline->stages[0].batch->shape;
    char figure[TEXT_FIGURE_MAX], line[WIDTH_MOST + 2];
    fprintf(out, "\nPipeline (%" PRIu32 " stage%s", shape->stages, shape->stages == 1 ? "" : "s");
    if (shape->parts > shape->stages)
        fprintf(out, ", %" PRIu32 " parts", shape->parts);
    fprintf(out,
            ", %" PRIu32 " microbatch%s; batch %" PRIu64 ", %s; idle: of the last %" PRIu32 " batch%s)\n",
            shape->microbatches, shape->microbatches == 1 ? "" : "es", (uint64_t)shape->batch + 1,
            text_seconds(figure, (double)pipeline->ns / 1e9), pipeline->counted,
            pipeline->counted == 1 ? "" : "es");
    bool complete = true;
    for (size_t i = 0; i < pipeline->stage_count && i < RANKS_SHOWN; i++) {
        complete &= draw_line(line, report, &pipeline->stages[i]);
        if (pipeline->stages[i].rank->rank >= 0)
            fprintf(out, "  rank %-4d %s\n", pipeline->stages[i].rank->rank, line);
        else
            fprintf(out, "  rank ?    %s\n", line);
    }
    if (!complete)
        fprintf(out, "  > more passes follow (--format html has them, at their times)\n");
    write_idle(pipeline, out);
    if (pipeline->stage_count > RANKS_SHOWN)
        fprintf(out, "  and %zu more ranks (--format json has all)\n", pipeline->stage_count - RANKS_SHOWN);
    if (shape->on_device)
        fprintf(out, "  these are the host's times: when the device runs what a pass puts on its stream is "
                     "not seen\n");
}
