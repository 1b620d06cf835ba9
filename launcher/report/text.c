#include "text.h"
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "launcher/common/device_peaks.h"
#include "launcher/common/text_table.h"
#include "collective_statistics.h"
#include "pipeline_passes.h"

static void report_text_bytes_cell(text_table *table, uint64_t bytes);
static void add_number(text_table *table, const report_rank *rank);
static void report_text_counters(const report_counters *counters, const char *title, const char *heading,
                                 size_t shown, FILE *out);
static void report_text_seconds_cell(text_table *table, double seconds);

/* Memory over time, collectives, calls: the tables of the text report that come from many records. */

#define SPARK_COLUMNS 48
#define SPARK_BYTES   (3 * SPARK_COLUMNS + 1)

/* ---- memory ---- */

static const report_rank *fullest_rank(const report *report) {
    const report_rank *fullest = NULL;
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].memory.peak_bytes > (fullest == NULL ? 0 : fullest->memory.peak_bytes))
            fullest = &report->ranks[i];
    return fullest;
}

static void write_peak(const report_rank *rank, FILE *out) {
    const report_memory *memory = &rank->memory;
    char bytes[TEXT_FIGURE_MAX], seconds[TEXT_FIGURE_MAX];
    fprintf(out, "peak %s at %s", text_bytes(bytes, memory->peak_bytes),
            text_seconds(seconds, (double)memory->peak_job_ns / 1e9));
    if (memory->peak_step > 0)
        fprintf(out, ", step %" PRIu64 "%s%s", memory->peak_step, memory->peak_phase[0] != '\0' ? ", " : "",
                memory->peak_phase);
}

static uint64_t highest_value(const uint64_t *values, uint32_t count) {
    uint64_t highest = 0;
    for (uint32_t i = 0; i < count; i++)
        highest = values[i] > highest ? values[i] : highest;
    return highest;
}

static void report_text_memory(const report *report, FILE *out) {
    const report_rank *rank = fullest_rank(report);
    if (rank == NULL)
        return;
    const report_memory *memory = &rank->memory;
    char figure[TEXT_FIGURE_MAX], line[SPARK_BYTES];
    snprintf(figure, sizeof figure, rank->rank >= 0 ? "rank %d" : "a process", rank->rank);
    fprintf(out, "\nMemory over time (%s, the fullest: ", figure);
    write_peak(rank, out);
    fprintf(out, ")\n");
    char seconds[TEXT_FIGURE_MAX], heading[TEXT_FIGURE_MAX + 16];
    uint64_t span_ns = memory->width_ns * memory->buckets;
    snprintf(heading, sizeof heading, "%s", text_seconds(seconds, (double)span_ns / 1e9));
    text_table table = {.headings = {"kind", "at the peak", "share", "highest", heading}};
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        const uint64_t *values = memory->values[kind];
        uint64_t highest = values == NULL ? 0 : highest_value(values, memory->buckets);
        if (highest == 0 || report_memory_role_of(kind) == REPORT_MEMORY_NODE ||
            report_memory_role_of(kind) == REPORT_MEMORY_BUDGET ||
            report_memory_role_of(kind) == REPORT_MEMORY_LINK)
            continue;
        /* Of what is on disk in part, the part in memory. */
        values = report_loaded(memory, (report_memory_kind)kind);
        highest = highest_value(values, memory->buckets);
        uint64_t held = values[memory->peak_bucket];
        text_table_add(&table, "%s", report_memory_label(kind));
        report_text_bytes_cell(&table, held);
        if (report_memory_role_of(kind) == REPORT_MEMORY_STACKED)
            text_table_add(&table, "%.0f%%", 100 * (double)held / (double)memory->peak_bytes);
        else
            text_table_add(&table, "-");
        report_text_bytes_cell(&table, highest);
        text_sparkline(line, SPARK_COLUMNS, values, memory->buckets, highest);
        text_table_add(&table, "%s", line);
    }
    text_table_print(&table, out, 2);
    for (size_t i = 0; i < report->rank_count && report->rank_count <= 8; i++) {
        if (&report->ranks[i] == rank || report->ranks[i].memory.peak_bytes == 0)
            continue;
        fprintf(out, "  rank %d: ", report->ranks[i].rank);
        write_peak(&report->ranks[i], out);
        fprintf(out, "\n");
    }
}

/* ---- collectives ---- */

static void add_class(text_table *table, const report_collectives *collectives, const report_class *class) {
    const report_process_group *group = &collectives->groups[class->group];
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s", collectives->operations[class->operation]);
    text_table_add(table, "%s", group->label);
    text_table_add(table, "%u", group->size);
    text_table_add(table, "%s", report_size_class_label(class->size_class));
    text_table_add(table, "%s", text_count(figure, class->count));
    report_text_bytes_cell(table, class->bytes);
    report_text_seconds_cell(table, (double)class->ns / 1e9);
    report_text_seconds_cell(table, (double)class->ns / 1e9 / (double)class->count);
    text_table_add(table, "%s", class->bus_bandwidth > 0 ? text_rate(figure, class->bus_bandwidth) : "-");
    if (class->matched > 0 && class->matched_ns > 0)
        text_table_add(table, "%.0f%%", 100 * (double)class->late_ns / (double)class->matched_ns);
    else
        text_table_add(table, "-");
    text_table_add(table, "%s",
                   class->transfer_bus_bandwidth > 0 ? text_rate(figure, class->transfer_bus_bandwidth)
                                                     : "-");
}

static void report_text_collectives(const report *report, FILE *out) {
    const report_collectives *collectives = report->matched;
    if (collectives->class_count == 0) {
        report_text_counters(&report->collectives, "Collectives (all ranks)", "operation", SIZE_MAX, out);
        return;
    }
    text_table table = {.headings = {"operation", "group", "ranks", "size", "count", "bytes", "time", "mean",
                                     "bus bandwidth", "late ranks", "without them"}};
    size_t shown =
        collectives->class_count < REPORT_TEXT_CLASSES ? collectives->class_count : REPORT_TEXT_CLASSES;
    for (size_t i = 0; i < shown; i++)
        add_class(&table, collectives, &collectives->classes[i]);
    fprintf(out, "\nCollectives (all ranks; late ranks: share of the time before the last one began)\n");
    text_table_print(&table, out, 2);
    if (collectives->class_count > shown)
        fprintf(out, "  and %zu more (--format json has all)\n", collectives->class_count - shown);
}

/* ---- calls ---- */

static void add_time(text_table *table, double seconds, bool estimated) {
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s%s", estimated && seconds > 0 ? "~" : "",
                   seconds > 0 ? text_seconds(figure, seconds) : "-");
}

static void report_text_counters(const report_counters *counters, const char *title, const char *heading,
                                 size_t shown, FILE *out) {
    if (counters->count == 0)
        return;
    bool longest = false, estimated = false;
    for (size_t i = 0; i < counters->count; i++)
        longest |= counters->rows[i].max_ns > 0;
    text_table table = {.headings = {heading, "count", "bytes", "time", "mean", longest ? "longest" : NULL}};
    char figure[TEXT_FIGURE_MAX], name[256];
    for (size_t i = 0; i < counters->count && i < shown; i++) {
        const report_counter *row = &counters->rows[i];
        report_shorten_symbol(name, sizeof name, row->name);
        text_table_add(&table, "%s", name);
        text_table_add(&table, "%s", text_count(figure, row->count));
        report_text_bytes_cell(&table, row->bytes);
        double seconds = (double)row->ns / 1e9;
        estimated |= row->estimated;
        add_time(&table, seconds, row->estimated);
        add_time(&table, seconds / (double)row->count, row->estimated);
        if (longest)
            add_time(&table, (double)row->max_ns / 1e9, row->estimated);
    }
    fprintf(out, "\n%s\n", title);
    text_table_print(&table, out, 2);
    if (estimated)
        fprintf(out, "  ~ estimated: short calls are timed by sample\n");
    if (counters->count > shown)
        fprintf(out, "  and %zu more (--format json has all)\n", counters->count - shown);
}

static void report_text_slowest(const report *report, FILE *out) {
    if (report->slow_count == 0)
        return;
    text_table table = {.headings = {"call", "rank", "thread", "at", "bytes", "took"}};
    char fallback[32], name[256];
    for (size_t i = 0; i < report->slow_count && i < REPORT_TEXT_SLOWEST; i++) {
        const report_slow *slow = &report->slow[i];
        const trace_counters *counters = slow->process->counters;
        report_shorten_symbol(name, sizeof name, report_id_name(counters, slow->kind, slow->id, fallback));
        text_table_add(&table, "%s", name);
        if (counters->rank >= 0)
            text_table_add(&table, "%d", counters->rank);
        else
            text_table_add(&table, "?");
        text_table_add(&table, "%u", slow->thread);
        report_text_seconds_cell(&table, (double)report_job_ns(report, slow->process, slow->begin_ns) / 1e9);
        report_text_bytes_cell(&table, slow->bytes);
        report_text_seconds_cell(&table, (double)slow->ns / 1e9);
    }
    fprintf(out, "\nSlowest calls\n");
    text_table_print(&table, out, 2);
}

/* Which tier holds the ranks' data, and what homes, slots and the link have done for it. */

#define PASS_RANKS_SHOWN 8

/* Where everything is on the host, the ranks' table says it. */
static void write_tiers(const report *report, FILE *out) {
    tier_bytes sum = {0};
    for (size_t i = 0; i < report->rank_count; i++)
        tier_bytes_add(&sum, report->ranks[i].process->counters);
    if (!tier_bytes_elsewhere(&sum))
        return;
    text_table table = {.headings = {"tier"}};
    for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
        table.headings[kind + 1] = tier_kind_names[kind];
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        if (tier_bytes_of(&sum, tier) == 0)
            continue;
        text_table_add(&table, "%s", tier_names[tier]);
        for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
            report_text_bytes_cell(&table, sum.bytes[tier][kind]);
    }
    fprintf(out, "\nMemory by tier (all ranks, at the end)\n");
    text_table_print(&table, out, 2);
}

static void write_rank(const report_rank *rank, FILE *out) {
    char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX];
    size_t count = device_figures_lines(&rank->device, "up to", lines);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            fprintf(out, "            ");
        else if (rank->rank >= 0)
            fprintf(out, "  rank %-5d", rank->rank);
        else
            fprintf(out, "  rank ?    ");
        fprintf(out, "%s\n", lines[i]);
    }
}

/* What each device's memory held when PyTorch's blocks had most bytes of it. */
static void write_device_peaks(const report *report, FILE *out) {
    text_table table = {
        .headings = {"rank", "device", "param", "grad", "optim", "other", "peak", "reserved"}};
    size_t rows = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        device_peak peaks[DEVICE_PARTS_DEVICES];
        size_t count = device_peaks_read(report->ranks[i].process->counters, peaks);
        for (size_t at = 0; at < count; at++, rows++) {
            add_number(&table, &report->ranks[i]);
            text_table_add(&table, "%d", peaks[at].device);
            for (int part = 0; part < DEVICE_PARTS_OF_PEAK; part++)
                report_text_bytes_cell(&table, peaks[at].parts[part]);
            report_text_bytes_cell(&table, peaks[at].bytes);
            report_text_bytes_cell(&table, peaks[at].parts[DEVICE_PART_RESERVED]);
        }
    }
    if (rows == 0)
        return;
    fprintf(out, "\nMemory of the devices at their peak (PyTorch's blocks; reserved: unused ones too)\n");
    text_table_print(&table, out, 2);
}

static void report_text_devices(const report *report, FILE *out) {
    write_tiers(report, out);
    write_device_peaks(report, out);
    size_t with_homes = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        if (!device_figures_any(&report->ranks[i].device))
            continue;
        if (with_homes++ == 0)
            fprintf(out, "\nDevices\n");
        if (with_homes <= PASS_RANKS_SHOWN)
            write_rank(&report->ranks[i], out);
    }
    if (with_homes > PASS_RANKS_SHOWN)
        fprintf(out, "  and %zu more ranks (--format json has all)\n", with_homes - PASS_RANKS_SHOWN);
}

/* A batch of a pipeline as a chart, a line for each rank, and how long the stages idle. */

#define RANKS_SHOWN 16
#define WIDTH       96  /* columns of the batch's time */
#define WIDTH_MOST  160 /* with the room that labels of short passes need */

static size_t column_of(const report *report, const report_stage *stage, uint64_t time_ns) {
    const report_pipeline *pipeline = report->pipeline;
    uint64_t at_ns = report_job_ns(report, stage->rank->process, time_ns) - pipeline->begin_job_ns;
    return pipeline->ns == 0 ? 0 : (size_t)((double)at_ns / (double)pipeline->ns * WIDTH);
}

/* Each pass has its label, also where its time is shorter: then what follows is moved to the right. False: not all of them have room. */
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

static void report_text_pipeline(const report *report, FILE *out) {
    const report_pipeline *pipeline = report->pipeline;
    if (pipeline == NULL)
        return;
    const trace_pass *shape = &pipeline->stages[0].batch->shape;
    char figure[TEXT_FIGURE_MAX], line[WIDTH_MOST + 2];
    fprintf(out, "\nPipeline (%" PRIu32 " stage%s", shape->stages, shape->stages == 1 ? "" : "s");
    if (shape->virtual_stages > shape->stages)
        fprintf(out, ", %" PRIu32 " parts", shape->virtual_stages);
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

/* What CASTOR_AUDIT compared. */
static void write_audit(const report *report, FILE *out) {
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        uint64_t audited = report_gauge(process, GAUGE_AUDITED).last;
        if (audited > 0)
            fprintf(out,
                    "  audit     loss and gradients of %" PRIu64
                    " backward pass%s are the whole batch's (they differ by %.1e)\n",
                    audited, audited == 1 ? "" : "es",
                    (double)report_gauge(process, GAUGE_AUDIT_DIFFERENCE).max / 1e9);
    }
}

/* How models were computed (CASTOR_BATCH=model, or plugin hybrid): the same on all ranks but for the time. */
static void write_calls(const report *report, FILE *out) {
    const report_rank *most = NULL;
    char time[TEXT_FIGURE_MAX];
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].calls_by_rows + report->ranks[i].calls_whole > 0 &&
            (most == NULL || report->ranks[i].rows_seconds > most->rows_seconds))
            most = &report->ranks[i];
    if (most == NULL)
        return;
    fprintf(out, "  models    %" PRIu64 " call%s divided", most->calls_by_rows,
            most->calls_by_rows == 1 ? "" : "s");
    if (most->calls_1f1b > 0)
        fprintf(out, " (%" PRIu64 " in 1F1B)", most->calls_1f1b);
    fprintf(out, ", %" PRIu64 " whole on every rank", most->calls_whole);
    if (most->rows_seconds > 0)
        fprintf(out, "; gathering rows took rank %d %s, with its waits (%.1f%%)", most->rank,
                text_seconds(time, most->rows_seconds),
                most->lived_seconds > 0 ? 100 * most->rows_seconds / most->lived_seconds : 0);
    fputc('\n', out);
}

#define ENDS_SHOWN 16

/* How each rank ended, where one failed. */
static void write_ends(const report *report, FILE *out) {
    size_t shown = 0;
    for (size_t i = 0; i < report->rank_count && report->first_failure != JOB_NO_FAILURE; i++) {
        const report_rank *rank = &report->ranks[i];
        char how[JOB_END_TEXT_MAX], who[32];
        if (shown == ENDS_SHOWN && i != report->first_failure)
            continue;
        shown += shown < ENDS_SHOWN;
        job_ended_name(rank->rank, rank->process->counters->pid, who);
        job_end_sentence(&rank->end, how);
        fprintf(out, "  %-9s %s %s%s\n", i == 0 ? "ends" : "", who, how,
                i == report->first_failure && report->rank_count > 1 ? "; the first failure" : "");
    }
    if (shown == ENDS_SHOWN && report->rank_count > ENDS_SHOWN)
        fprintf(out, "            ... of %zu ranks; the JSON report has all\n", report->rank_count);
}

static void write_header(const report *report, FILE *out) {
    char figure[TEXT_FIGURE_MAX], started[64] = "";
    time_t seconds = (time_t)(report->start_realtime_ns / 1000000000u);
    struct tm broken_down;
    if (localtime_r(&seconds, &broken_down) != NULL)
        strftime(started, sizeof started, "%Y-%m-%d %H:%M:%S", &broken_down);
    fprintf(out, "Castor report: %s\n\n", report->job);
    fprintf(out, "  command   %s\n", report->command);
    fprintf(out, "  plugin    %s\n", report->plugin[0] != '\0' ? report->plugin : "not known");
    const char *how = about_find(&report->about, TRACE_ABOUT_RANKS);
    fprintf(out, "  ranks     %zu on %zu node%s%s%s\n", report->rank_count, report->node_count,
            report->node_count == 1 ? "" : "s", how != NULL ? ", " : "", how != NULL ? how : "");
    fprintf(out, "  started   %s, %s\n", started, text_seconds(figure, report->duration_seconds));
    fprintf(out, "  outcome   %s\n", report->outcome);
    write_ends(report, out);
    report_text_budgets(report, out);
    write_audit(report, out);
    write_calls(report, out);
    report_text_about(report, out);
}

static void report_text_bytes_cell(text_table *table, uint64_t bytes) {
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s", bytes == 0 ? "-" : text_bytes(figure, bytes));
}

/* Zero is unknown, and shown as a dash. */
static void report_text_seconds_cell(text_table *table, double seconds) {
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s", seconds > 0 ? text_seconds(figure, seconds) : "-");
}

/* Whether a rank did, or held, anything that the ranks' table shows. */
static bool has_steps_or_memory(const report *report) {
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        static const trace_gauge kinds[] = {GAUGE_PARAM_BYTES, GAUGE_GRAD_BYTES, GAUGE_OPTIM_BYTES,
                                            GAUGE_OTHER_BYTES, GAUGE_PSS_BYTES,  GAUGE_WAIT_NS};
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
            if (report_gauge(rank->process, kinds[kind]).max > 0)
                return true;
        if (rank->optimizer_steps > 0 || rank->micro_steps > 0)
            return true;
    }
    return false;
}

static void add_number(text_table *table, const report_rank *rank) {
    if (rank->rank >= 0)
        text_table_add(table, "%d", rank->rank);
    else
        text_table_add(table, "?");
}

/* Its number, if that is known, and its process. */
static void add_rank(text_table *table, const report_rank *rank) {
    add_number(table, rank);
    text_table_add(table, "%u", rank->process->counters->pid);
}

static void add_end(text_table *table, const report_rank *rank) {
    char word[JOB_END_TEXT_MAX];
    job_end_word(&rank->end, word);
    text_table_add(table, "%s", word);
}

/* Of a job that only communicated. */
static void write_plain_ranks(const report *report, FILE *out) {
    text_table table = {.headings = {"rank", "pid", "lived", "records", "end"}};
    char figure[TEXT_FIGURE_MAX];
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        add_rank(&table, rank);
        report_text_seconds_cell(&table, rank->lived_seconds);
        text_table_add(&table, "%s", text_count(figure, rank->process->records));
        add_end(&table, rank);
    }
    fprintf(out, "\nRanks (without steps, and without memory that was sampled)\n");
    text_table_print(&table, out, 2);
}

static void write_ranks(const report *report, FILE *out) {
    text_table table = {.headings = {"rank", "pid", "steps", "step time", "micro-steps", "param", "grad",
                                     "optim", "activations", "waits", "end"}};
    static const trace_gauge kinds[] = {GAUGE_PARAM_BYTES, GAUGE_GRAD_BYTES, GAUGE_OPTIM_BYTES,
                                        GAUGE_OTHER_BYTES};
    char figure[TEXT_FIGURE_MAX];
    bool several_optimizers = false;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        add_rank(&table, rank);
        bool several = rank->optimizer_steps != rank->steps;
        several_optimizers |= several;
        text_table_add(&table, several ? "%" PRIu64 " (%" PRIu64 ")" : "%" PRIu64, rank->steps,
                       rank->optimizer_steps);
        text_table_add(&table, "%s", rank->step_seconds > 0 ? text_seconds(figure, rank->step_seconds) : "-");
        text_table_add(&table, "%" PRIu64, rank->micro_steps);
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
            report_text_bytes_cell(&table, report_gauge(rank->process, kinds[kind]).max);
        uint64_t wait_ns = report_gauge(rank->process, GAUGE_WAIT_NS).last;
        text_table_add(&table, "%s", wait_ns > 0 ? text_seconds(figure, (double)wait_ns / 1e9) : "-");
        add_end(&table, rank);
    }
    fprintf(out, "\nRanks (memory: peaks; step time: median%s)\n",
            several_optimizers ? "; steps: of the busiest optimizer, in parentheses of all" : "");
    text_table_print(&table, out, 2);
}

/* What the memory of each process is made of. */
static void write_processes(const report *report, FILE *out) {
    text_table table = {.headings = {"rank", "import", "model data", "activations", "rest", "PSS"}};
    char figure[TEXT_FIGURE_MAX];
    uint64_t pss_bytes = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        add_number(&table, &report->ranks[i]);
        report_text_bytes_cell(&table, report_gauge(process, GAUGE_IMPORT_BYTES).last);
        report_text_bytes_cell(&table, report_model_bytes(process));
        report_text_bytes_cell(&table, report_gauge(process, GAUGE_OTHER_BYTES).max);
        report_text_bytes_cell(&table, report_gauge(process, GAUGE_REST_BYTES).max);
        report_text_bytes_cell(&table, report_gauge(process, GAUGE_PSS_BYTES).max);
        pss_bytes += report_gauge(process, GAUGE_PSS_BYTES).max;
    }
    if (pss_bytes == 0)
        return;
    fprintf(out, "\nMemory of the ranks' processes (peaks; import: at the end)\n");
    text_table_print(&table, out, 2);
    if (report->rank_count > 1)
        fprintf(out, "  sum of the PSS peaks: %s\n", text_bytes(figure, pss_bytes));
}

#define SHARE_SHOWN 0.0005 /* a smaller share of a rank's life is no figure of its own */

static void write_share_cell(text_table *table, double seconds, double whole) {
    char figure[TEXT_FIGURE_MAX];
    if (seconds > SHARE_SHOWN * whole && whole > 0)
        text_table_add(table, "%s %3.0f%%", text_seconds(figure, seconds), 100 * seconds / whole);
    else
        text_table_add(table, "-");
}

/* What the life of each rank went to. False: that is not known of all ranks. */
static bool write_phases(const report *report, FILE *out) {
    text_table table = {.headings = {"rank"}};
    bool used[TRACE_PHASE_COUNT] = {false}, any = false, all = true, trained = false;
    size_t columns = 1;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        any |= rank->has_phases;
        all &= rank->has_phases;
        trained |= rank->backward_seconds > 0 || rank->optimizer_seconds > 0;
        for (int phase = 0; phase < TRACE_PHASE_COUNT; phase++)
            used[phase] |= rank->phase_seconds[phase] > SHARE_SHOWN * rank->lived_seconds;
    }
    if (!any && trained)
        fprintf(out, "\nWhere the time went: not known (this trace has no phases)\n");
    if (!any)
        return false;
    for (int phase = 0; phase < TRACE_PHASE_COUNT; phase++)
        if (used[phase])
            table.headings[columns++] = report_phase_label((trace_phase)phase);
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        add_number(&table, rank);
        for (int phase = 0; phase < TRACE_PHASE_COUNT; phase++)
            if (used[phase])
                write_share_cell(&table, rank->phase_seconds[phase], rank->lived_seconds);
    }
    fprintf(out, "\nWhere the time went (of the script's thread%s)\n", all ? "" : "; all -: not known");
    text_table_print(&table, out, 2);
    return all;
}

static void write_times(const report *report, FILE *out) {
    bool any = false;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        any |= rank->backward_seconds > 0 || rank->optimizer_seconds > 0 || rank->collective_seconds > 0;
    }
    bool phases = write_phases(report, out);
    if (!any)
        return;
    /* With phases, backward passes and steps are among them. */
    static const text_table with = {.headings = {"rank", "lived", "median step", "90% within", "longest",
                                                 "waits", "collectives", "gradient sums"}},
                            without = {.headings = {"rank", "lived", "median step", "90% within", "longest",
                                                    "backward", "optimizer", "waits", "collectives",
                                                    "gradient sums"}};
    text_table table = phases ? with : without;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        add_number(&table, rank);
        report_text_seconds_cell(&table, rank->lived_seconds);
        report_text_seconds_cell(&table, rank->step_seconds);
        report_text_seconds_cell(&table, rank->step_p90_seconds);
        report_text_seconds_cell(&table, rank->step_max_seconds);
        if (!phases) {
            write_share_cell(&table, rank->backward_seconds, rank->lived_seconds);
            write_share_cell(&table, rank->optimizer_seconds, rank->lived_seconds);
        }
        write_share_cell(&table, rank->wait_seconds, rank->lived_seconds);
        write_share_cell(&table, rank->collective_seconds, rank->lived_seconds);
        write_share_cell(&table, rank->reduce_seconds, rank->lived_seconds);
    }
    fprintf(out, "\nTime (of the script's thread; collectives and gradient sums run beside it)\n");
    text_table_print(&table, out, 2);
}

/* What went over the network between nodes, and for each of the busiest optimizer's steps. */
static void write_sent(const report *report, FILE *out) {
    char figure[TEXT_FIGURE_MAX];
    uint64_t steps = 0;
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].steps > steps)
            steps = report->ranks[i].steps;
    for (size_t i = 0; i < report->node_count; i++) {
        const report_node *node = &report->nodes[i];
        if (node->sent_bytes == 0)
            continue;
        fprintf(out, "  %s sent to other nodes: %s", node->host, text_bytes(figure, node->sent_bytes));
        fprintf(out, steps > 0 ? ", %s a step\n" : "\n",
                text_bytes(figure, steps > 0 ? node->sent_bytes / steps : 0));
    }
}

static void write_model_data(const report *report, FILE *out) {
    if (report_fullest_node(report) == NULL)
        return;
    text_table table = {.headings = {"node", "parameters", "param", "grad", "optim", "private copies", "sum",
                                     "bytes per parameter", "peak"}};
    char figure[TEXT_FIGURE_MAX];
    for (size_t i = 0; i < report->node_count; i++) {
        const report_node *node = &report->nodes[i];
        text_table_add(&table, "%s", node->host);
        text_table_add(&table, "%s", text_count(figure, node->numel));
        report_text_bytes_cell(&table, node->param_bytes);
        report_text_bytes_cell(&table, node->grad_bytes);
        report_text_bytes_cell(&table, node->optim_bytes);
        report_text_bytes_cell(&table, node->private_bytes);
        text_table_add(&table, "%s", text_bytes(figure, report_node_bytes(node)));
        if (node->numel > 0)
            text_table_add(&table, "%.2f", (double)report_node_bytes(node) / (double)node->numel);
        else
            text_table_add(&table, "-");
        report_text_bytes_cell(&table, report_node_peak_bytes(node));
    }
    fprintf(out, "\nModel data per node\n");
    text_table_print(&table, out, 2);
    write_sent(report, out);
}

/* How well chunks that had been away were there when they were needed. */
static void write_prefetch(const report_chunks *chunks, FILE *out) {
    uint64_t needed = chunks->hits + chunks->late + chunks->misses;
    if (needed == 0)
        return;
    fprintf(out, "          %.0f%% of %s that had been away were brought in time; waits for them %s\n",
            100.0 * (double)chunks->hits / (double)needed, text_count((char[TEXT_FIGURE_MAX]){0}, needed),
            text_seconds((char[TEXT_FIGURE_MAX]){0}, (double)chunks->stall_ns * 1e-9));
}

static void write_summary(const report *report, FILE *out) {
    char figure[TEXT_FIGURE_MAX], other[TEXT_FIGURE_MAX];
    fprintf(out, "\n");
    if (report->chunks.count > 0)
        fprintf(out, "Chunks    %s of %s (%s that no parameter fills); %s moved between tiers, %s\n",
                text_count(figure, report->chunks.count),
                text_bytes((char[TEXT_FIGURE_MAX]){0}, report->chunks.size),
                text_bytes((char[TEXT_FIGURE_MAX]){0}, report->chunks.wasted),
                text_count(other, report->chunks.moves),
                text_bytes((char[TEXT_FIGURE_MAX]){0}, report->chunks.bytes_moved));
    write_prefetch(&report->chunks, out);
    if (report->hooked + report->missed > 0)
        fprintf(out, "Coverage  %" PRIu64 " functions hooked, %" PRIu64 " missed\n", report->hooked,
                report->missed);
    if (report->export_tables > 0)
        fprintf(out,
                "          not seen: what is called through %" PRIu64
                " undocumented tables of the CUDA driver (cuGetExportTable)\n",
                report->export_tables);
    for (size_t i = 0; i < report->also_count; i++) {
        const char *missed = report_also_missed(&report->also[i]);
        if (missed != NULL)
            fprintf(out, "          not seen: %s (CASTOR_TRACE_ALSO), since %s\n", report->also[i].name,
                    missed);
    }
    fprintf(out, "Trace     %s records in %s%s\n", text_count(figure, report->records),
            text_bytes(other, report->trace_bytes),
            report->truncated                               ? ", not complete"
            : report->counters_only && report->records == 0 ? ", counters only"
                                                            : "");
    if (report->note_count + report->problem_count > 0)
        fprintf(out, "\nNotes\n");
    for (size_t i = 0; i < report->note_count; i++)
        fprintf(out, "  - %s\n", report->notes[i]);
    for (size_t i = 0; i < report->problem_count; i++)
        fprintf(out, "  - not read: %s\n", report->problems[i]);
}

void report_write_text(const report *report, FILE *out) {
    write_header(report, out);
    if (has_steps_or_memory(report)) {
        write_ranks(report, out);
        write_processes(report, out);
    } else {
        write_plain_ranks(report, out);
    }
    write_times(report, out);
    report_text_memory(report, out);
    report_text_devices(report, out);
    report_text_pipeline(report, out);
    write_model_data(report, out);
    report_text_collectives(report, out);
    report_text_counters(&report->calls, "Calls (all ranks, by time)", "function", REPORT_TEXT_CALLS, out);
    report_text_slowest(report, out);
    report_text_counters(&report->waits, "Waits for other ranks (all ranks)", "for", SIZE_MAX, out);
    report_text_counters(&report->chunk_events, "Chunk events (all ranks)", "event", SIZE_MAX, out);
    report_text_counters(&report->events, "Events (all ranks)", "event", SIZE_MAX, out);
    write_summary(report, out);
}
