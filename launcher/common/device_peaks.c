#include "device_peaks.h"

#include "base/log.h"
#include "text_table.h"

const char *const device_part_keys[DEVICE_PART_COUNT] = {
#define PART(id, key, label, doc) key,
#include "trace/device_part.def"
};
const char *const device_part_labels[DEVICE_PART_COUNT] = {
#define PART(id, key, label, doc) label,
#include "trace/device_part.def"
};

size_t device_peaks_read(const trace_counters *counters, device_peak out[DEVICE_PARTS_DEVICES]) {
    size_t count = 0;
    for (int device = 0; device < DEVICE_PARTS_DEVICES; device++) {
        device_peak peak = {.device = device};
        for (int part = 0; part < DEVICE_PART_COUNT; part++) {
            unsigned id = device_part_id(device, (device_part)part);
            peak.parts[part] = counters->counters[trace_slot(TRACE_PEAK, id)].bytes;
            if (part < DEVICE_PARTS_OF_PEAK &&
                __builtin_add_overflow(peak.bytes, peak.parts[part], &peak.bytes))
                peak.bytes = UINT64_MAX; /* of damaged files */
        }
        if (peak.bytes > 0 || peak.parts[DEVICE_PART_NEEDED] > 0)
            out[count++] = peak;
    }
    return count;
}

void device_peak_text(const device_peak *peak, char *out, size_t out_size) {
    char figure[TEXT_FIGURE_MAX];
    size_t used = 0;
    out[0] = '\0';
    for (int part = 0; part < DEVICE_PARTS_OF_PEAK; part++)
        if (peak->parts[part] > 0)
            used += log_format(out + used, out_size - used, "%s%s %s", used > 0 ? ", " : "",
                               device_part_labels[part], text_bytes(figure, peak->parts[part]));
}
