/* Where the data of processes is: on devices, the host, or disk; and what homes, slots and the link have done for it
 * (interpose/device/homes.h, slots.h). Sums of the gauges of any number of processes, and lines for people about them. */
#ifndef CASTOR_LAUNCHER_COMMON_TIERS_H
#define CASTOR_LAUNCHER_COMMON_TIERS_H

#include <stdbool.h>
#include <stddef.h>
#include "trace/format.h"

typedef enum tier { TIER_DEVICE, TIER_HOST, TIER_DISK, TIER_COUNT } tier;
typedef enum tier_kind {
    TIER_PARAM,
    TIER_GRAD,
    TIER_OPTIM,
    TIER_SLOTS,
    TIER_OTHER,
    TIER_KIND_COUNT
} tier_kind;

extern const char *const tier_names[TIER_COUNT], *const tier_kind_names[TIER_KIND_COUNT];

typedef struct tier_bytes {
    uint64_t bytes[TIER_COUNT][TIER_KIND_COUNT];
} tier_bytes;

/* Adds what a process holds; a sum beyond 64 bits, of damaged files, stays the largest. */
void tier_bytes_add(tier_bytes *sum, const trace_counters *counters);
uint64_t tier_bytes_of(const tier_bytes *sum, tier tier);
/* Something is on devices or on disk. */
bool tier_bytes_elsewhere(const tier_bytes *sum);

/* Indices 0: to devices, 1: to the host. */
typedef struct device_figures {
    uint64_t budget_bytes; /* 0: none */
    uint64_t slots_bytes, outside_bytes;
    uint64_t flips[2], flipped_bytes[2], flip_ns, rescues, refused;
    uint64_t uses, hits, prefetched, in_time, home_reads, copies, copied_bytes, stale;
    uint64_t host_steps, host_step_bytes, host_step_waits;
    uint64_t link_bytes[2];
    uint64_t overflow_bytes, overflow_peak_bytes, overflow_segments; /* a sum of peaks of several processes */
    double link_rates[2]; /* bytes per second, by who sums up; 0: unknown */
} device_figures;

void device_figures_add(device_figures *sum, const trace_counters *counters);
/* There are homes: something was said of them. */
bool device_figures_any(const device_figures *figures);

/* Uses that read a copy: one that was there, or was made for them. */
uint64_t device_figures_copy_reads(const device_figures *figures);

#define DEVICE_LINES_MAX 7
#define DEVICE_LINE_MAX  256

/* One line each of homes, slots, steps on the host, the link, what overflowed, and what stayed outside, where there is something to say. `rates`: how link_rates are
 * called: "at most", "now". Returns their number. */
size_t device_figures_lines(const device_figures *figures, const char *rates,
                            char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX]);

#endif
