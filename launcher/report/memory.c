/* What each rank's memory held over time, and at its peak. */
#include "memory.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "report.h"

#define FIRST_WIDTH_NS UINT64_C(1000000)

void report_series_begin(report_series *series, uint64_t origin_ns) {
    memset(series, 0, sizeof *series);
    series->origin_ns = origin_ns;
    series->width_ns = FIRST_WIDTH_NS;
}

static void bucket_add(report_bucket *bucket, uint64_t max, uint64_t min, uint64_t last, uint64_t last_ns) {
    if (bucket->last_ns == 0 || min < bucket->min)
        bucket->min = min;
    if (max > bucket->max)
        bucket->max = max;
    if (last_ns >= bucket->last_ns) {
        bucket->last = last;
        bucket->last_ns = last_ns;
    }
}

static void double_width(report_series *series) {
    for (uint32_t i = 0; i < REPORT_SERIES_BUCKETS; i++) {
        report_bucket bucket = series->buckets[i];
        series->buckets[i] = (report_bucket){0};
        if (bucket.last_ns != 0)
            bucket_add(&series->buckets[i / 2], bucket.max, bucket.min, bucket.last, bucket.last_ns);
    }
    series->width_ns *= 2;
}

void report_series_add(report_series *series, uint64_t time_ns, uint64_t value) {
    uint64_t since = time_ns > series->origin_ns ? time_ns - series->origin_ns : 0;
    while (since / series->width_ns >= REPORT_SERIES_BUCKETS)
        double_width(series);
    bucket_add(&series->buckets[since / series->width_ns], value, value, value, since + 1);
}

/* Makes the buckets at least as wide as `width_ns`, which is another series' width. */
static void report_series_widen(report_series *series, uint64_t width_ns) {
    while (series->width_ns < width_ns)
        double_width(series);
}

/* What was carried in holds until the first sample of the bucket; that sample's own time is not kept. */
static void fill(const report_series *series, uint64_t *out, uint32_t count, bool lowest) {
    uint64_t carried = 0;
    for (uint32_t i = 0; i < count && i < REPORT_SERIES_BUCKETS; i++) {
        const report_bucket *bucket = &series->buckets[i];
        out[i] = bucket->last_ns == 0 ? carried : lowest ? bucket->min : bucket->max;
        if (bucket->last_ns != 0)
            carried = bucket->last;
    }
}

void report_series_fill(const report_series *series, uint64_t *out, uint32_t count) {
    fill(series, out, count, false);
}

/* The same of the lowest value. */
static void report_series_fill_lowest(const report_series *series, uint64_t *out, uint32_t count) {
    fill(series, out, count, true);
}

uint32_t report_series_used(const report_series *series) {
    uint32_t used = REPORT_SERIES_BUCKETS;
    while (used > 0 && series->buckets[used - 1].last_ns == 0)
        used--;
    return used;
}

#define RATE_WINDOW_NS UINT64_C(500000000)

void report_free_memory(report_memory *memory) {
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        free(memory->values[kind]), free(memory->loaded[kind]);
}

/* What of a kind is on disk; REPORT_MEMORY_COUNT: that is not counted of it. */
static report_memory_kind on_disk_of(int kind) {
    return kind == REPORT_MEMORY_PARAM_BYTES   ? REPORT_MEMORY_DISK_PARAM_BYTES
           : kind == REPORT_MEMORY_GRAD_BYTES  ? REPORT_MEMORY_DISK_GRAD_BYTES
           : kind == REPORT_MEMORY_OPTIM_BYTES ? REPORT_MEMORY_DISK_OPTIM_BYTES
                                               : REPORT_MEMORY_COUNT;
}

/* What is in memory of the kinds that are on disk in part: where samples were put together the most of it, which was there when the least
 * was on disk. */
static bool find_loaded(const report_process *process, report_memory *memory) {
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        report_memory_kind disk = on_disk_of(kind);
        if (disk == REPORT_MEMORY_COUNT || memory->values[kind] == NULL || memory->values[disk] == NULL)
            continue;
        uint64_t *loaded = memory->loaded[kind] = calloc(memory->buckets, sizeof *loaded);
        if (loaded == NULL)
            return false;
        report_series_fill_lowest(process->memory[disk], loaded, memory->buckets);
        for (uint32_t i = 0; i < memory->buckets; i++)
            loaded[i] = memory->values[kind][i] > loaded[i] ? memory->values[kind][i] - loaded[i] : 0;
    }
    return true;
}

/* One grid for all kinds of a process. */
static bool fill_grid(const report *report, const report_process *process, report_memory *memory) {
    uint64_t width_ns = 0;
    uint32_t used = 0;
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        if (process->memory[kind] != NULL && process->memory[kind]->width_ns > width_ns)
            width_ns = process->memory[kind]->width_ns;
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        report_series *series = process->memory[kind];
        if (series == NULL)
            continue;
        report_series_widen(series, width_ns);
        uint32_t own = report_series_used(series);
        used = own > used ? own : used;
    }
    if (used == 0)
        return true;
    /* The last values hold until the process ended. */
    uint64_t begin_ns = process->counters->start_monotonic_ns;
    uint64_t lived = process->last_ns > begin_ns ? (process->last_ns - begin_ns) / width_ns + 1 : 1;
    if (lived > used)
        used = lived < REPORT_SERIES_BUCKETS ? (uint32_t)lived : REPORT_SERIES_BUCKETS;
    memory->begin_job_ns = report_job_ns(report, process, begin_ns);
    memory->width_ns = width_ns;
    memory->buckets = used;
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        if (process->memory[kind] == NULL)
            continue;
        memory->values[kind] = calloc(used, sizeof *memory->values[kind]);
        if (memory->values[kind] == NULL)
            return false;
        report_series_fill(process->memory[kind], memory->values[kind], used);
    }
    return find_loaded(process, memory);
}

static bool covers(const report_steps *steps, uint64_t begin_ns, uint64_t end_ns) {
    for (size_t i = 0; i < steps->count; i++)
        if (steps->rows[i].begin_ns < end_ns &&
            steps->rows[i].begin_ns + UINT64_C(1000) * steps->rows[i].us >= begin_ns)
            return true;
    return false;
}

static void find_peak(const report_process *process, uint32_t optimizer, report_memory *memory) {
    for (uint32_t bucket = 0; bucket < memory->buckets; bucket++) {
        uint64_t sum = 0;
        for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
            if (report_memory_role_of(kind) == REPORT_MEMORY_STACKED && memory->values[kind] != NULL)
                sum += report_loaded(memory, (report_memory_kind)kind)[bucket];
        if (sum > memory->peak_bytes) {
            memory->peak_bytes = sum;
            memory->peak_bucket = bucket;
        }
    }
    uint64_t into_ns = memory->peak_bucket * memory->width_ns;
    uint64_t begin_ns = process->counters->start_monotonic_ns + into_ns, end_ns = begin_ns + memory->width_ns;
    memory->peak_job_ns = memory->begin_job_ns + into_ns;
    memory->peak_phase = "";
    if (memory->peak_bytes == 0)
        return;
    /* A step record ends its step: the peak lies in the step whose record comes next. */
    size_t before = 0;
    bool any_after = false;
    for (size_t i = 0; i < process->steps.count; i++)
        if (process->steps.rows[i].optimizer == optimizer) {
            bool earlier = process->steps.rows[i].begin_ns < begin_ns;
            before += earlier;
            any_after |= !earlier;
        }
    memory->peak_step = before + (any_after ? 1 : 0);
    if (covers(&process->backwards, begin_ns, end_ns))
        memory->peak_phase = "backward";
    else if (covers(&process->steps, begin_ns, end_ns))
        memory->peak_phase = "optimizer step";
}

/* The highest rate of `values`, bytes that were copied so far. Samples are a tenth of a second apart, or more: a shorter window would
 * hold several samples' bytes, or none. */
static double highest_rate(const report_memory *memory, const uint64_t *values) {
    uint64_t window = RATE_WINDOW_NS / memory->width_ns;
    window = window > 0 ? window : 1;
    uint64_t most = 0;
    for (uint64_t i = window; i < memory->buckets; i++)
        if (values[i] > values[i - window] && values[i] - values[i - window] > most)
            most = values[i] - values[i - window];
    return (double)most * 1e9 / (double)(window * memory->width_ns);
}

static void find_devices(report_rank *rank) {
    static const report_memory_kind link[2] = {REPORT_MEMORY_LINK_TO_DEVICE_BYTES,
                                               REPORT_MEMORY_LINK_TO_HOST_BYTES};
    device_figures_add(&rank->device, rank->process->counters);
    for (int to = 0; to < 2; to++)
        if (rank->memory.values[link[to]] != NULL)
            rank->device.link_rates[to] = highest_rate(&rank->memory, rank->memory.values[link[to]]);
}

bool report_find_memory(report *report) {
    for (size_t i = 0; i < report->rank_count; i++) {
        report_rank *rank = &report->ranks[i];
        rank->memory.peak_phase = "";
        if (!fill_grid(report, rank->process, &rank->memory))
            return false;
        find_peak(rank->process, rank->busiest_optimizer, &rank->memory);
        find_devices(rank);
    }
    return true;
}
