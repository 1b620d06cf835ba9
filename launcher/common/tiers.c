#include "tiers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "text_table.h"

const char *const tier_names[TIER_COUNT] = {"device", "host", "disk"};
const char *const tier_kind_names[TIER_KIND_COUNT] = {"param", "grad", "optim", "slots", "other"};

static void add(uint64_t *sum, uint64_t more) {
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

static uint64_t last(const trace_counters *counters, trace_gauge gauge) {
    return counters->gauges[gauge].last;
}

void tier_bytes_add(tier_bytes *sum, const trace_counters *counters) {
    static const struct {
        trace_gauge all, device, disk;
    } model_data[] = {{GAUGE_PARAM_BYTES, GAUGE_DEVICE_PARAM_BYTES, GAUGE_DISK_PARAM_BYTES},
                      {GAUGE_GRAD_BYTES, GAUGE_DEVICE_GRAD_BYTES, GAUGE_DISK_GRAD_BYTES},
                      {GAUGE_OPTIM_BYTES, GAUGE_DEVICE_OPTIM_BYTES, GAUGE_DISK_OPTIM_BYTES}};
    for (int kind = TIER_PARAM; kind <= TIER_OPTIM; kind++) {
        uint64_t all = last(counters, model_data[kind].all);
        uint64_t device = last(counters, model_data[kind].device),
                 disk = last(counters, model_data[kind].disk);
        uint64_t elsewhere = device;
        add(&elsewhere, disk);
        add(&sum->bytes[TIER_DEVICE][kind], device);
        add(&sum->bytes[TIER_DISK][kind], disk);
        add(&sum->bytes[TIER_HOST][kind], all > elsewhere ? all - elsewhere : 0);
    }
    add(&sum->bytes[TIER_DEVICE][TIER_SLOTS], last(counters, GAUGE_DEVICE_SLOTS_BYTES));
    uint64_t other = last(counters, GAUGE_DEVICE_OTHER_BYTES),
             overflow = last(counters, GAUGE_OVERFLOW_BYTES);
    add(&sum->bytes[TIER_DEVICE][TIER_OTHER], other > overflow ? other - overflow : 0);
    add(&sum->bytes[TIER_HOST][TIER_OTHER], last(counters, GAUGE_OTHER_BYTES));
    add(&sum->bytes[TIER_HOST][TIER_OTHER], overflow);
}

uint64_t tier_bytes_of(const tier_bytes *sum, tier tier) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
        add(&bytes, sum->bytes[tier][kind]);
    return bytes;
}

bool tier_bytes_elsewhere(const tier_bytes *sum) {
    return tier_bytes_of(sum, TIER_DEVICE) > 0 || tier_bytes_of(sum, TIER_DISK) > 0;
}

void device_figures_add(device_figures *sum, const trace_counters *counters) {
    const struct {
        uint64_t *sum;
        trace_gauge gauge;
    } rows[] = {
        {&sum->budget_bytes, GAUGE_DEVICE_BUDGET_BYTES},
        {&sum->slots_bytes, GAUGE_DEVICE_SLOTS_BYTES},
        {&sum->outside_bytes, GAUGE_DEVICE_OUTSIDE_BYTES},
        {&sum->flips[0], GAUGE_FLIPS_TO_DEVICE},
        {&sum->flips[1], GAUGE_FLIPS_TO_HOST},
        {&sum->flipped_bytes[0], GAUGE_FLIPPED_TO_DEVICE_BYTES},
        {&sum->flipped_bytes[1], GAUGE_FLIPPED_TO_HOST_BYTES},
        {&sum->flip_ns, GAUGE_FLIP_NS},
        {&sum->rescues, GAUGE_RESCUES},
        {&sum->refused, GAUGE_HOMES_REFUSED},
        {&sum->uses, GAUGE_SLOT_USES},
        {&sum->hits, GAUGE_SLOT_HITS},
        {&sum->prefetched, GAUGE_SLOT_PREFETCHED},
        {&sum->in_time, GAUGE_SLOT_IN_TIME},
        {&sum->home_reads, GAUGE_SLOT_HOME_READS},
        {&sum->copies, GAUGE_SLOT_COPIES},
        {&sum->copied_bytes, GAUGE_SLOT_COPIED_BYTES},
        {&sum->stale, GAUGE_SLOT_STALE},
        {&sum->host_steps, GAUGE_HOST_STEPS},
        {&sum->host_step_bytes, GAUGE_HOST_STEP_BYTES},
        {&sum->host_step_waits, GAUGE_HOST_STEP_WAITS},
        {&sum->link_bytes[0], GAUGE_LINK_TO_DEVICE_BYTES},
        {&sum->link_bytes[1], GAUGE_LINK_TO_HOST_BYTES},
        {&sum->overflow_bytes, GAUGE_OVERFLOW_BYTES},
        {&sum->overflow_segments, GAUGE_OVERFLOW_SEGMENTS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        add(rows[i].sum, last(counters, rows[i].gauge));
    add(&sum->overflow_peak_bytes, counters->gauges[GAUGE_OVERFLOW_BYTES].max);
}

bool device_figures_any(const device_figures *figures) {
    return figures->budget_bytes || figures->slots_bytes || figures->outside_bytes || figures->flips[0] ||
           figures->flips[1] || figures->refused || figures->uses || figures->link_bytes[0] ||
           figures->link_bytes[1] || figures->overflow_peak_bytes;
}

uint64_t device_figures_copy_reads(const device_figures *figures) {
    return figures->uses > figures->home_reads ? figures->uses - figures->home_reads : 0;
}

/* ---- lines ---- */

typedef struct line {
    char *text;
    size_t used;
} line;

__attribute__((format(printf, 2, 3))) static void say(line *line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line->text + line->used, DEVICE_LINE_MAX - line->used, format, arguments);
    va_end(arguments);
    line->used += more > 0 ? (size_t)more : 0;
    if (line->used >= DEVICE_LINE_MAX)
        line->used = DEVICE_LINE_MAX - 1;
}

#define FIGURE ((char[TEXT_FIGURE_MAX]){0})

static const char *share(char out[TEXT_FIGURE_MAX], uint64_t part, uint64_t whole) {
    snprintf(out, TEXT_FIGURE_MAX, "%.0f%%", whole > 0 ? 100 * (double)part / (double)whole : 0);
    return out;
}

static void say_homes(line *line, const device_figures *f) {
    if (!f->budget_bytes && !f->flips[0] && !f->flips[1])
        return;
    say(line, "homes: ");
    if (f->budget_bytes)
        say(line, "at most %s on the device; ", text_bytes(FIGURE, f->budget_bytes));
    say(line, "%s moved to the host", f->flips[1] ? text_count(FIGURE, f->flips[1]) : "none");
    if (f->flips[1])
        say(line, ", %s", text_bytes(FIGURE, f->flipped_bytes[1]));
    if (f->rescues)
        say(line, ", since %s %s had no room", text_count(FIGURE, f->rescues),
            f->rescues == 1 ? "allocation" : "allocations");
    if (f->flips[0])
        say(line, "; %s back, %s", text_count(FIGURE, f->flips[0]), text_bytes(FIGURE, f->flipped_bytes[0]));
    if (f->flip_ns)
        say(line, "; took %s", text_seconds(FIGURE, (double)f->flip_ns / 1e9));
}

static void say_slots(line *line, const device_figures *f) {
    if (!f->uses)
        return;
    uint64_t copy_reads = device_figures_copy_reads(f);
    say(line, "slots: %s; %s of %s uses read a copy", text_bytes(FIGURE, f->slots_bytes),
        share(FIGURE, copy_reads, f->uses), text_count(FIGURE, f->uses));
    if (copy_reads)
        say(line, " (%s prefetched, %s in time)", share(FIGURE, f->prefetched, copy_reads),
            share(FIGURE, f->in_time, copy_reads));
    say(line, ", %s the home; %s %s, %s", text_count(FIGURE, f->home_reads), text_count(FIGURE, f->copies),
        f->copies == 1 ? "copy" : "copies", text_bytes(FIGURE, f->copied_bytes));
    if (f->stale)
        say(line, ", %s dropped after a write", text_count(FIGURE, f->stale));
}

static void say_steps(line *line, const device_figures *f) {
    if (f->host_steps)
        say(line, "steps on the host: %s of a parameter, %s in all; streams waited %s %s",
            text_count(FIGURE, f->host_steps), text_bytes(FIGURE, f->host_step_bytes),
            text_count(FIGURE, f->host_step_waits), f->host_step_waits == 1 ? "time" : "times");
}

static void say_link(line *line, const device_figures *f, const char *rates) {
    static const char *const ends[2] = {"to the device", "to the host"};
    if (!f->link_bytes[0] && !f->link_bytes[1])
        return;
    say(line, "link: ");
    for (int to = 0; to < 2; to++) {
        say(line, "%s%s %s", to ? "; " : "", text_bytes(FIGURE, f->link_bytes[to]), ends[to]);
        if (f->link_rates[to] > 0)
            say(line, ", %s %s", rates, text_rate(FIGURE, f->link_rates[to]));
    }
}

static void say_overflow(line *line, const device_figures *f) {
    if (!f->overflow_peak_bytes)
        return;
    say(line, "overflow: %s of the host's memory under the device's addresses, in %s %s; %s at most",
        text_bytes(FIGURE, f->overflow_bytes), text_count(FIGURE, f->overflow_segments),
        f->overflow_segments == 1 ? "allocation" : "allocations", text_bytes(FIGURE, f->overflow_peak_bytes));
}

size_t device_figures_lines(const device_figures *f, const char *rates,
                            char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX]) {
    size_t count = 0;
    for (int what = 0; what < DEVICE_LINES_MAX; what++) {
        line line = {.text = lines[count]};
        line.text[0] = '\0';
        if (what == 0)
            say_homes(&line, f);
        else if (what == 1)
            say_slots(&line, f);
        else if (what == 2)
            say_steps(&line, f);
        else if (what == 3)
            say_link(&line, f, rates);
        else if (what == 4)
            say_overflow(&line, f);
        else if (what == 5 && f->outside_bytes)
            say(&line, "outside: %s of model data on the device has no home, and stays there",
                text_bytes(FIGURE, f->outside_bytes));
        else if (what == 6 && f->refused)
            say(&line, "refused: %s %s no room anywhere", text_count(FIGURE, f->refused),
                f->refused == 1 ? "home had" : "homes had");
        count += line.used > 0;
    }
    return count;
}
