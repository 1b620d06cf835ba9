/* A figure over time in bounded memory: buckets of equal width that become wider as the time grows. The highest and the
 * lowest value of each bucket are kept, so a peak is never lost; its time is then known to within a bucket. Samples may have any order. */
#ifndef CASTOR_LAUNCHER_REPORT_MEMORY_H
#define CASTOR_LAUNCHER_REPORT_MEMORY_H

#include <stdint.h>

#define REPORT_SERIES_BUCKETS 1024

typedef struct report_bucket {
    uint64_t max, min, last;
    uint64_t last_ns; /* of `last`; 0: no sample in this bucket */
} report_bucket;

typedef struct report_series {
    uint64_t origin_ns, width_ns;
    report_bucket buckets[REPORT_SERIES_BUCKETS];
} report_series;

void report_series_begin(report_series *series, uint64_t origin_ns);
/* A sample before the origin counts as one at the origin. */
void report_series_add(report_series *series, uint64_t time_ns, uint64_t value);
/* The highest value in each of the first `count` buckets, or the value carried into it: a value holds until the
 * next sample. */
void report_series_fill(const report_series *series, uint64_t *out, uint32_t count);
/* The buckets up to the last one with a sample. */
uint32_t report_series_used(const report_series *series);

#endif
