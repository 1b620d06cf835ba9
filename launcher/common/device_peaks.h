/* What a process's devices held when they were fullest (interpose/trace/device_blocks.h), from its counters. */
#ifndef CASTOR_LAUNCHER_COMMON_DEVICE_PEAKS_H
#define CASTOR_LAUNCHER_COMMON_DEVICE_PEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include "trace/device_part.h"
#include "trace/format.h"

extern const char *const device_part_keys[DEVICE_PART_COUNT], *const device_part_labels[DEVICE_PART_COUNT];

typedef struct device_peak {
    int device;
    uint64_t bytes; /* of PyTorch's blocks: the sum of the parts of the peak */
    uint64_t parts[DEVICE_PART_COUNT];
} device_peak;

/* The peaks of the devices that the process used; returns how many. */
size_t device_peaks_read(const trace_counters *counters, device_peak out[DEVICE_PARTS_DEVICES]);
/* "parameters 32.0 MiB, gradients 32.0 MiB, other 130.1 MiB": what the peak held. */
void device_peak_text(const device_peak *peak, char *out, size_t out_size);

#endif
