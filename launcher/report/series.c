#include "series.h"

#include <stdbool.h>
#include <string.h>

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

void report_series_widen(report_series *series, uint64_t width_ns) {
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

void report_series_fill_lowest(const report_series *series, uint64_t *out, uint32_t count) {
    fill(series, out, count, true);
}

uint32_t report_series_used(const report_series *series) {
    uint32_t used = REPORT_SERIES_BUCKETS;
    while (used > 0 && series->buckets[used - 1].last_ns == 0)
        used--;
    return used;
}
