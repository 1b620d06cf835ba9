/* Memory over time, collectives, calls: the tables of the text report that come from many records. */
#include <inttypes.h>
#include <string.h>
#include "collective_statistics.h"
#include "text.h"

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

void report_text_memory(const report *report, FILE *out) {
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
    const report_group *group = &collectives->groups[class->group];
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

void report_text_collectives(const report *report, FILE *out) {
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

void report_text_counters(const report_counters *counters, const char *title, const char *heading,
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

void report_text_slowest(const report *report, FILE *out) {
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
