#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"
#include "launcher/common/text_table.h"
#include "launcher/common/tiers.h"
#include "launcher/common/trace_read.h"
#include "top.h"

static uint64_t top_steps(const trace_counters *counters) {
    uint64_t most = 0;
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_STEP); id++) {
        uint64_t count = counters->counters[trace_slot(TRACE_STEP, id)].count;
        most = count > most ? count : most;
    }
    return most > 0 ? most : counters->gauges[GAUGE_STEPS].last;
}

/* ---- which processes are the ranks ---- */

bool top_ranks_choose(const job_reading *reading, size_t **indices, size_t *count) {
    bool any_known = false;
    *count = 0;
    *indices = malloc((reading->count + 1) * sizeof **indices);
    if (*indices == NULL)
        return false;
    for (size_t i = 0; i < reading->count; i++)
        any_known |= reading->processes[i].counters != NULL && reading->processes[i].rank >= 0;
    for (size_t i = 0; i < reading->count; i++) {
        const job_process *process = &reading->processes[i];
        if (process->counters == NULL)
            continue;
        if (process->rank < 0) {
            /* A launcher that loads PyTorch, or a worker: shown only where nobody is a rank. */
            if (trace_read_has_trained(process->counters) ||
                (!any_known && process->counters->parent_uid == 0))
                (*indices)[(*count)++] = i;
            continue;
        }
        size_t last = *count > 0 ? (*indices)[*count - 1] : SIZE_MAX;
        if (last == SIZE_MAX || reading->processes[last].rank != process->rank)
            (*indices)[(*count)++] = i;
        else if (trace_read_speaks_rather(process->counters, reading->processes[last].counters))
            (*indices)[*count - 1] = i;
    }
    return true;
}

/* ---- samples ---- */

static void add_operations(top_sample *sample, const trace_counters *counters) {
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_COLLECTIVE); id++) {
        const trace_counter *counter = &counters->counters[trace_slot(TRACE_COLLECTIVE, id)];
        const char *name = counter->count > 0 ? trace_read_name(counters, TRACE_COLLECTIVE, id) : NULL;
        if (name == NULL)
            continue;
        top_operation *operation = sample->operations;
        top_operation *end = operation + sample->operation_count;
        while (operation < end && strncmp(operation->name, name, TOP_NAME_MAX - 1) != 0)
            operation++;
        if (operation == end) {
            if (sample->operation_count == TOP_OPERATIONS_MAX)
                continue;
            sample->operation_count++;
            snprintf(operation->name, sizeof operation->name, "%s", name);
        }
        operation->count += counter->count;
        operation->bytes += counter->bytes;
        operation->ns += counter->ns;
    }
}

bool top_history_add(top_history *history, const job_reading *reading, const size_t *ranks,
                     size_t rank_count) {
    top_sample sample = {.at_ns = reading->now_ns, .ranks = calloc(rank_count + 1, sizeof *sample.ranks)};
    if (sample.ranks == NULL)
        return false;
    for (size_t i = 0; i < rank_count; i++) {
        const job_process *process = &reading->processes[ranks[i]];
        const trace_gauge_value *gauges = process->counters->gauges;
        sample.ranks[sample.rank_count++] = (top_rank_sample){
            .uid = process->uid,
            .steps = top_steps(process->counters),
            .wait_ns = gauges[GAUGE_WAIT_NS].last,
            .link_bytes = {gauges[GAUGE_LINK_TO_DEVICE_BYTES].last, gauges[GAUGE_LINK_TO_HOST_BYTES].last}};
        add_operations(&sample, process->counters);
    }
    if (history->count == TOP_SAMPLES_MAX) {
        free(history->samples[0].ranks);
        memmove(history->samples, history->samples + 1, (TOP_SAMPLES_MAX - 1) * sizeof *history->samples);
        history->count--;
    }
    history->samples[history->count++] = sample;
    return true;
}

void top_history_free(top_history *history) {
    for (size_t i = 0; i < history->count; i++)
        free(history->samples[i].ranks);
    history->count = 0;
}

/* ---- rates ---- */

static const top_rank_sample *rank_in(const top_sample *sample, uint64_t uid) {
    for (size_t i = 0; i < sample->rank_count; i++)
        if (sample->ranks[i].uid == uid)
            return &sample->ranks[i];
    return NULL;
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* Between the first and the last reading with new steps, so that the rate of steps that take longer than an update does not
 * flicker; the rate of a rank that makes no more steps sinks. */
static double top_step_rate(const top_history *history, uint64_t uid) {
    uint64_t first_ns = 0, last_ns = 0, first_steps = 0, steps = 0, oldest_ns = 0, oldest_steps = 0;
    size_t changes = 0;
    bool seen = false;
    for (size_t i = 0; i < history->count; i++) {
        const top_rank_sample *rank = rank_in(&history->samples[i], uid);
        if (rank == NULL)
            continue;
        if (!seen) {
            seen = true;
            oldest_ns = history->samples[i].at_ns;
            oldest_steps = steps = rank->steps;
        }
        if (rank->steps != steps) {
            if (changes++ == 0) {
                first_ns = history->samples[i].at_ns;
                first_steps = rank->steps;
            }
            last_ns = history->samples[i].at_ns;
            steps = rank->steps;
        }
    }
    uint64_t now_ns = history->count > 0 ? history->samples[history->count - 1].at_ns : 0;
    double all = seconds_between(oldest_ns, now_ns);
    if (!seen || all <= 0)
        return -1;
    if (changes < 2)
        return (double)(steps - oldest_steps) / all;
    double rate = (double)(steps - first_steps) / seconds_between(first_ns, last_ns);
    double silent = seconds_between(last_ns, now_ns);
    return silent * rate > 2 ? (double)(steps - first_steps) / seconds_between(first_ns, now_ns) : rate;
}

/* Per second, over the samples; negative: not known yet. */
static double top_wait_share(const top_history *history, uint64_t uid) {
    const top_sample *newest = history->count > 0 ? &history->samples[history->count - 1] : NULL;
    const top_rank_sample *now = newest != NULL ? rank_in(newest, uid) : NULL;
    for (size_t i = 0; now != NULL && i + 1 < history->count; i++) {
        const top_rank_sample *then = rank_in(&history->samples[i], uid);
        if (then != NULL && now->wait_ns >= then->wait_ns)
            return (double)(now->wait_ns - then->wait_ns) / 1e9 /
                   seconds_between(history->samples[i].at_ns, newest->at_ns);
    }
    return -1;
}

/* Of all ranks together, in bytes. */
static double top_link_rate(const top_history *history, int to) {
    if (history->count < 2)
        return -1;
    const top_sample *oldest = &history->samples[0], *newest = &history->samples[history->count - 1];
    double bytes = 0, seconds = seconds_between(oldest->at_ns, newest->at_ns);
    for (size_t i = 0; i < newest->rank_count; i++) {
        const top_rank_sample *now = &newest->ranks[i], *then = rank_in(oldest, now->uid);
        if (then != NULL && now->link_bytes[to] > then->link_bytes[to])
            bytes += (double)(now->link_bytes[to] - then->link_bytes[to]);
    }
    return seconds > 0 ? bytes / seconds : -1;
}

/* change: the increase of `total` since the oldest sample. Returns the seconds since then; 0 with one sample. */
static double top_operation_change(const top_history *history, const top_operation *total,
                                   top_operation *change) {
    *change = *total;
    if (history->count < 2)
        return 0;
    const top_sample *oldest = &history->samples[0];
    for (size_t i = 0; i < oldest->operation_count; i++) {
        const top_operation *then = &oldest->operations[i];
        if (strcmp(then->name, total->name) == 0 && then->count <= total->count &&
            then->bytes <= total->bytes && then->ns <= total->ns) {
            change->count -= then->count;
            change->bytes -= then->bytes;
            change->ns -= then->ns;
        }
    }
    return seconds_between(oldest->at_ns, history->samples[history->count - 1].at_ns);
}

#define WAIT_SHOWN_NS  UINT64_C(500000000) /* shorter ones are the ordinary course of a step */
#define LINE_MAX_BYTES 1024

/* ---- lines ---- */

void top_text_add(top_text *text, const char *format, ...) {
    if (!array_grow(&text->lines, &text->capacity, text->count, sizeof *text->lines)) {
        text->failed = true;
        return;
    }
    char line[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    char *copy = strdup(line);
    if (copy == NULL)
        text->failed = true;
    else
        text->lines[text->count++] = copy;
}

void top_text_free(top_text *text) {
    for (size_t i = 0; i < text->count; i++)
        free(text->lines[i]);
    free(text->lines);
    *text = (top_text){0};
}

static bool is_first_byte(char c) {
    return ((unsigned char)c & 0xc0) != 0x80;
}

static void cut(char *line, size_t width) {
    size_t columns = 0;
    for (char *c = line; *c; c++)
        if (is_first_byte(*c) && columns++ == width) {
            *c = '\0';
            return;
        }
}

void top_text_cut(top_text *text, size_t width) {
    for (size_t i = 0; i < text->count && width > 0; i++)
        cut(text->lines[i], width);
}

/* ---- tables whose columns go when there is no room for them ---- */

enum { COLUMNS_MAX = 16, CELL_MAX = 48 };

typedef struct column {
    const char *heading;
    int rank; /* the highest goes first; 0 stays */
} column;

typedef struct grid {
    const column *columns;
    size_t column_count;
    char (*cells)[CELL_MAX]; /* row by row */
    size_t cell_count, cell_capacity;
} grid;

__attribute__((format(printf, 3, 4))) static void grid_add(grid *g, top_text *text, const char *format, ...) {
    if (!array_grow(&g->cells, &g->cell_capacity, g->cell_count, sizeof *g->cells)) {
        text->failed = true;
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(g->cells[g->cell_count++], CELL_MAX, format, arguments);
    va_end(arguments);
}

static void grid_print(grid *g, size_t width, top_text *text) {
    size_t widths[COLUMNS_MAX], total = 0;
    bool shown[COLUMNS_MAX];
    for (size_t c = 0; c < g->column_count; c++) {
        widths[c] = strlen(g->columns[c].heading);
        shown[c] = true;
        for (size_t i = c; i < g->cell_count; i += g->column_count)
            if (strlen(g->cells[i]) > widths[c])
                widths[c] = strlen(g->cells[i]);
        total += widths[c] + (c > 0 ? 2 : 0);
    }
    for (int rank = COLUMNS_MAX; rank > 0 && width > 0 && total > width; rank--)
        for (size_t c = 0; c < g->column_count; c++)
            if (g->columns[c].rank == rank) {
                shown[c] = false;
                total -= widths[c] + 2;
            }
    for (size_t row = 0; row <= g->cell_count / g->column_count; row++) {
        char line[LINE_MAX_BYTES];
        size_t used = 0;
        for (size_t c = 0; c < g->column_count; c++)
            if (shown[c])
                used += (size_t)snprintf(line + used, sizeof line - used, c == 0 ? "%s%-*s" : "%s%*s",
                                         used > 0 ? "  " : "", (int)widths[c],
                                         row == 0 ? g->columns[c].heading
                                                  : g->cells[(row - 1) * g->column_count + c]);
        top_text_add(text, "%s", line);
    }
    free(g->cells);
    *g = (grid){0};
}

/* ---- parts ---- */

/* How the ranks ended. */
typedef struct endings {
    job_ended *ranks;
    job_end *ends;
    size_t first_failure;
} endings;

static void endings_free(endings *found) {
    free(found->ranks);
    free(found->ends);
}

/* False when memory is out. */
static bool endings_find(const job_reading *reading, const size_t *ranks, size_t count, endings *out) {
    *out = (endings){calloc(count + 1, sizeof *out->ranks), calloc(count + 1, sizeof *out->ends),
                     JOB_NO_FAILURE};
    if (out->ranks == NULL || out->ends == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        const job_process *process = &reading->processes[ranks[i]];
        out->ranks[i] = (job_ended){process->counters, process->rank, !job_process_is_gone(process)};
    }
    out->first_failure = job_ends_find(&reading->notes, out->ranks, count, out->ends);
    return true;
}

static const char *state_name(const job_process *process, const job_end *end, char word[JOB_END_TEXT_MAX]) {
    if (process->state == JOB_STOPPED)
        return "stopped";
    job_end_word(end, word);
    return word;
}

static uint64_t gauge(const job_process *process, trace_gauge id) {
    return process->counters->gauges[id].last;
}

static void add_head(const top_job *job, const job_reading *reading, const size_t *ranks, size_t count,
                     const endings *found, top_text *out) {
    uint64_t start_ns = UINT64_MAX, end_ns = 0;
    for (size_t i = 0; i < reading->count; i++) {
        const trace_counters *counters = reading->processes[i].counters;
        if (counters == NULL)
            continue;
        uint64_t life_ns = counters->last_monotonic_ns > counters->start_monotonic_ns
                               ? counters->last_monotonic_ns - counters->start_monotonic_ns
                               : 0;
        if (counters->start_realtime_ns < start_ns)
            start_ns = counters->start_realtime_ns;
        if (counters->start_realtime_ns + life_ns > end_ns)
            end_ns = counters->start_realtime_ns + life_ns;
    }
    if (!job->ended)
        end_ns = reading->now_realtime_ns;
    char spent[TEXT_FIGURE_MAX];
    text_seconds(spent, end_ns > start_ns ? (double)(end_ns - start_ns) / 1e9 : 0);
    const trace_counters *first = count > 0 ? reading->processes[ranks[0]].counters : NULL;
    char ranks_text[32] = "";
    snprintf(ranks_text, sizeof ranks_text, "%zu %s", count, count == 1 ? "rank" : "ranks");
    top_text_add(out, "%s: %s %s, %s, plugin %s", job->directory, job->ended ? "ended, ran" : "running for",
                 spent, ranks_text, first != NULL && first->plugin[0] ? first->plugin : "none");
    if (first != NULL && first->command[0])
        top_text_add(out, "%s", first->command);
    char outcome[JOB_END_TEXT_MAX];
    job_ends_outcome(&reading->notes, found->ranks, found->ends, found->first_failure, outcome);
    if (outcome[0] != '\0')
        top_text_add(out, "%s", outcome);
    top_text_add(out, "%s", "");
}

static void format_rate(char out[CELL_MAX], double rate) {
    if (rate < 0)
        snprintf(out, CELL_MAX, "-");
    else
        snprintf(out, CELL_MAX, rate < 10 ? "%.2f" : "%.1f", rate);
}

static void format_bytes(char out[TEXT_FIGURE_MAX], uint64_t bytes) {
    if (bytes == 0)
        snprintf(out, TEXT_FIGURE_MAX, "-");
    else
        text_bytes(out, bytes);
}

static void add_ranks(const top_job *job, const job_reading *reading, const top_history *history,
                      const size_t *ranks, size_t count, const endings *found, size_t width, top_text *out) {
    static const column columns[] = {{"rank", 0},        {"pid", 5},    {"state", 4}, {"steps", 0},
                                     {"steps/s", 0},     {"param", 3},  {"grad", 3},  {"optim", 3},
                                     {"activations", 6}, {"import", 8}, {"rest", 7},  {"PSS", 2},
                                     {"waits", 1}};
    grid g = {.columns = columns, .column_count = sizeof columns / sizeof *columns};
    bool average = job->ended || history->count < 2;
    for (size_t i = 0; i < count; i++) {
        const job_process *process = &reading->processes[ranks[i]];
        const trace_counters *counters = process->counters;
        double rate = top_step_rate(history, process->uid), waits = top_wait_share(history, process->uid);
        uint64_t steps = top_steps(counters);
        if (average) {
            uint64_t end_ns = job->ended ? counters->last_monotonic_ns : reading->now_ns;
            double life = end_ns > counters->start_monotonic_ns
                              ? (double)(end_ns - counters->start_monotonic_ns) / 1e9
                              : 0;
            rate = life > 0 ? (double)steps / life : -1;
            waits = life > 0 ? (double)gauge(process, GAUGE_WAIT_NS) / 1e9 / life : -1;
        }
        char figure[TEXT_FIGURE_MAX], rate_text[CELL_MAX];
        if (process->rank >= 0)
            grid_add(&g, out, "%d", process->rank);
        else
            grid_add(&g, out, "?");
        grid_add(&g, out, "%u", process->pid);
        char word[JOB_END_TEXT_MAX];
        grid_add(&g, out, "%s", state_name(process, &found->ends[i], word));
        grid_add(&g, out, "%s", text_count(figure, steps));
        format_rate(rate_text, rate);
        grid_add(&g, out, "%s", rate_text);
        static const trace_gauge memory[] = {GAUGE_PARAM_BYTES, GAUGE_GRAD_BYTES,   GAUGE_OPTIM_BYTES,
                                             GAUGE_OTHER_BYTES, GAUGE_IMPORT_BYTES, GAUGE_REST_BYTES,
                                             GAUGE_PSS_BYTES};
        for (size_t m = 0; m < sizeof memory / sizeof *memory; m++) {
            format_bytes(figure, gauge(process, memory[m]));
            grid_add(&g, out, "%s", figure);
        }
        if (waits < 0)
            grid_add(&g, out, "-");
        else
            grid_add(&g, out, "%.0f%%", waits * 100 > 100 ? 100 : waits * 100);
    }
    grid_print(&g, width, out);
    if (average && count > 0)
        top_text_add(out, "(steps/s and waits: averages since each process's start)");
}

/* The node store is the node's: each of its ranks tells the same. */
static void add_nodes(const job_reading *reading, const size_t *ranks, size_t count, top_text *out) {
    for (size_t i = 0; i < count; i++) {
        const job_process *process = &reading->processes[ranks[i]];
        uint64_t private_bytes = 0;
        bool told = gauge(process, GAUGE_CHUNK_COUNT) == 0;
        for (size_t j = 0; j < count; j++) {
            const job_process *other = &reading->processes[ranks[j]];
            if (strcmp(other->counters->host, process->counters->host) != 0)
                continue;
            told |= j < i && gauge(other, GAUGE_CHUNK_COUNT) > 0;
            private_bytes += gauge(other, GAUGE_PRIVATE_BYTES);
        }
        if (told)
            continue;
        char param[TEXT_FIGURE_MAX], grad[TEXT_FIGURE_MAX], optim[TEXT_FIGURE_MAX], copies[TEXT_FIGURE_MAX],
            size[TEXT_FIGURE_MAX], moved[TEXT_FIGURE_MAX];
        format_bytes(param, gauge(process, GAUGE_STORE_PARAM_BYTES));
        format_bytes(grad, gauge(process, GAUGE_STORE_GRAD_BYTES));
        format_bytes(optim, gauge(process, GAUGE_STORE_OPTIM_BYTES));
        format_bytes(copies, private_bytes);
        text_bytes(size, gauge(process, GAUGE_CHUNK_SIZE));
        text_bytes(moved, gauge(process, GAUGE_CHUNK_BYTES_MOVED));
        top_text_add(out, "%s", "");
        top_text_add(out, "node %s, in chunks: param %s, grad %s, optim %s; private copies %s",
                     process->counters->host, param, grad, optim, copies);
        top_text_add(out, "  %llu chunks of %s; %llu moved between tiers, %s",
                     (unsigned long long)gauge(process, GAUGE_CHUNK_COUNT), size,
                     (unsigned long long)gauge(process, GAUGE_CHUNK_MOVES), moved);
    }
}

/* Of all ranks. Where everything is on the host, the ranks' table says it. */
static void add_tiers(const job_reading *reading, const size_t *ranks, size_t count, size_t width,
                      top_text *out) {
    tier_bytes sum = {0};
    for (size_t i = 0; i < count; i++)
        tier_bytes_add(&sum, reading->processes[ranks[i]].counters);
    if (!tier_bytes_elsewhere(&sum))
        return;
    column columns[1 + TIER_KIND_COUNT] = {{"memory of all ranks", 0}};
    grid g = {.columns = columns, .column_count = 1};
    bool shown[TIER_KIND_COUNT];
    for (int kind = 0; kind < TIER_KIND_COUNT; kind++) {
        shown[kind] = kind != TIER_SLOTS || sum.bytes[TIER_DEVICE][TIER_SLOTS] > 0;
        if (shown[kind])
            columns[g.column_count++] = (column){tier_kind_names[kind], 0};
    }
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        if (tier_bytes_of(&sum, tier) == 0)
            continue;
        grid_add(&g, out, "%s", tier_names[tier]);
        for (int kind = 0; kind < TIER_KIND_COUNT; kind++) {
            char figure[TEXT_FIGURE_MAX];
            format_bytes(figure, sum.bytes[tier][kind]);
            if (shown[kind])
                grid_add(&g, out, "%s", figure);
        }
    }
    top_text_add(out, "%s", "");
    grid_print(&g, width, out);
}

/* Homes, slots and the link, of all ranks. */
static void add_devices(const top_job *job, const job_reading *reading, const top_history *history,
                        const size_t *ranks, size_t count, top_text *out) {
    device_figures figures = {0};
    for (size_t i = 0; i < count; i++)
        device_figures_add(&figures, reading->processes[ranks[i]].counters);
    for (int to = 0; to < 2 && !job->ended; to++)
        figures.link_rates[to] = top_link_rate(history, to);
    char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX];
    size_t line_count = device_figures_lines(&figures, "now", lines);
    for (size_t i = 0; i < line_count; i++)
        top_text_add(out, "%s", lines[i]);
}

static void add_collectives(const top_job *job, const top_history *history, size_t rank_count, size_t width,
                            top_text *out) {
    static const column columns[] = {{"collective", 0}, {"calls", 2},     {"calls/s", 3},
                                     {"size", 1},       {"bandwidth", 0}, {"in flight", 4}};
    const top_sample *newest = history->count > 0 ? &history->samples[history->count - 1] : NULL;
    if (newest == NULL || newest->operation_count == 0)
        return;
    grid g = {.columns = columns, .column_count = sizeof columns / sizeof *columns};
    for (size_t i = 0; i < newest->operation_count; i++) {
        const top_operation *total = &newest->operations[i];
        top_operation change;
        double seconds = top_operation_change(history, total, &change);
        char figure[TEXT_FIGURE_MAX];
        bool idle = seconds > 0 && change.count == 0 && !job->ended;
        if (job->ended)
            change = *total;
        grid_add(&g, out, "%s", total->name);
        grid_add(&g, out, "%s", text_count(figure, total->count));
        if (seconds > 0 && !job->ended)
            grid_add(&g, out, "%.1f", (double)change.count / seconds);
        else
            grid_add(&g, out, "-");
        format_bytes(figure, change.count > 0 ? change.bytes / change.count : 0);
        grid_add(&g, out, "%s", figure);
        if (change.bytes > 0 && change.ns > 0) {
            text_bytes(figure, text_whole((double)change.bytes * 1e9 / (double)change.ns));
            grid_add(&g, out, "%s/s", figure);
        } else
            grid_add(&g, out, "-");
        if (idle || seconds <= 0 || job->ended || rank_count == 0)
            grid_add(&g, out, "-");
        else
            grid_add(&g, out, "%.0f%%", (double)change.ns / 1e7 / seconds / (double)rank_count);
    }
    top_text_add(out, "%s", "");
    grid_print(&g, width, out);
}

static void add_waits(const job_reading *reading, top_text *out) {
    job_meetings meetings;
    uint64_t before_ns = reading->now_ns > WAIT_SHOWN_NS ? reading->now_ns - WAIT_SHOWN_NS : 0;
    if (!job_meetings_find(reading, before_ns, &meetings))
        out->failed = true;
    size_t shown = 0;
    for (size_t i = 0; i < meetings.count; i++) {
        const job_meeting *meeting = &meetings.rows[i];
        if (meeting->progress_ns >= before_ns || meeting->held) /* who is ahead goes on */
            continue;
        char who[256], whom[256], spent[TEXT_FIGURE_MAX], group[160];
        if (shown++ == 0) {
            top_text_add(out, "%s", "");
            top_text_add(out, "waiting");
        }
        job_ranks_text(reading, meeting->waiting, meeting->waiting_count, who, sizeof who);
        job_ranks_text(reading, meeting->missing, meeting->missing_count, whom, sizeof whom);
        text_seconds(spent, (double)(reading->now_ns - meeting->begin_ns) / 1e9);
        job_process_group_text(meeting, group, sizeof group);
        const char *many = meeting->waiting_count > 1 ? "ranks" : "rank";
        const char *missing = meeting->missing_count == 0  ? ""
                              : meeting->missing_count > 1 ? " for ranks "
                                                           : " for rank ";
        if (meeting->kind == LIVE_COLLECTIVE || meeting->group[0] != '\0')
            top_text_add(out, "  %s %s: %s in %s %llu of %s%s%s", many, who, spent, meeting->what,
                         (unsigned long long)meeting->ordinal, group, missing, whom);
        else
            top_text_add(out, "  %s %s: %s in %s%s%s", many, who, spent, meeting->what, missing, whom);
    }
    job_meetings_free(&meetings);
}

void top_view(const top_job *job, const job_reading *reading, const top_history *history, size_t width,
              top_text *out) {
    size_t *ranks, count;
    if (!top_ranks_choose(reading, &ranks, &count)) {
        out->failed = true;
        return;
    }
    endings found = {0};
    if (!endings_find(reading, ranks, count, &found)) {
        out->failed = true;
    } else if (count == 0) {
        top_text_add(out, "%s: no process of the job has used PyTorch yet", job->directory);
    } else {
        add_head(job, reading, ranks, count, &found, out);
        add_ranks(job, reading, history, ranks, count, &found, width, out);
        add_tiers(reading, ranks, count, width, out);
        add_devices(job, reading, history, ranks, count, out);
        add_nodes(reading, ranks, count, out);
        add_collectives(job, history, count, width, out);
        if (!job->ended)
            add_waits(reading, out);
    }
    if (reading->unreadable > 0)
        top_text_add(out, "%zu %s cannot be read: %s", reading->unreadable,
                     reading->unreadable == 1 ? "file" : "files", reading->message);
    endings_free(&found);
    free(ranks);
}
