/* What the report's JSON says of tiers, homes, slots and the link. */
#include "report_json.h"

void report_json_tiers(json_writer *json, const report_rank *rank) {
    tier_bytes held = {0};
    tier_bytes_add(&held, rank->process->counters);
    json_object_begin(json, "tiers");
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        json_object_begin(json, tier_names[tier]);
        for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
            json_unsigned(json, tier_kind_names[kind], held.bytes[tier][kind]);
        json_object_end(json);
    }
    json_object_end(json);
}

static void write_flips(json_writer *json, const device_figures *device) {
    static const char *const ends[2] = {"to_device", "to_host"};
    json_object_begin(json, "flips");
    for (int to = 0; to < 2; to++) {
        json_object_begin(json, ends[to]);
        json_unsigned(json, "count", device->flips[to]);
        json_unsigned(json, "bytes", device->flipped_bytes[to]);
        json_object_end(json);
    }
    json_number(json, "seconds", (double)device->flip_ns / 1e9);
    json_unsigned(json, "rescues", device->rescues);
    json_object_end(json);
}

static void write_slots(json_writer *json, const device_figures *device) {
    json_object_begin(json, "slots");
    json_unsigned(json, "bytes", device->slots_bytes);
    json_unsigned(json, "uses", device->uses);
    json_unsigned(json, "hits", device->hits);
    json_unsigned(json, "prefetched", device->prefetched);
    json_unsigned(json, "in_time", device->in_time);
    uint64_t copy_reads = device_figures_copy_reads(device);
    json_unsigned(json, "waits", copy_reads > device->in_time ? copy_reads - device->in_time : 0);
    json_unsigned(json, "home_reads", device->home_reads);
    json_unsigned(json, "copies", device->copies);
    json_unsigned(json, "copied_bytes", device->copied_bytes);
    json_unsigned(json, "stale", device->stale);
    json_object_end(json);
}

static void write_link(json_writer *json, const device_figures *device) {
    static const char *const ends[2] = {"to_device", "to_host"};
    json_object_begin(json, "link");
    for (int to = 0; to < 2; to++) {
        json_object_begin(json, ends[to]);
        json_unsigned(json, "bytes", device->link_bytes[to]);
        if (device->link_rates[to] > 0)
            json_number(json, "max_bytes_per_second", device->link_rates[to]);
        else
            json_null(json, "max_bytes_per_second");
        json_object_end(json);
    }
    json_object_end(json);
}

static void write_overflow(json_writer *json, const device_figures *device) {
    json_object_begin(json, "overflow");
    json_unsigned(json, "bytes", device->overflow_bytes);
    json_unsigned(json, "peak_bytes", device->overflow_peak_bytes);
    json_unsigned(json, "segments", device->overflow_segments);
    json_object_end(json);
}

void report_json_device(json_writer *json, const report_rank *rank) {
    static const struct {
        const char *name;
        trace_gauge gauge;
    } kinds[] = {{"param", GAUGE_DEVICE_PARAM_BYTES},
                 {"grad", GAUGE_DEVICE_GRAD_BYTES},
                 {"optim", GAUGE_DEVICE_OPTIM_BYTES},
                 {"slots", GAUGE_DEVICE_SLOTS_BYTES},
                 {"other", GAUGE_DEVICE_OTHER_BYTES}};
    const device_figures *device = &rank->device;
    uint64_t any = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        any |= report_gauge(rank->process, kinds[i].gauge).max;
    if (any == 0 && !device_figures_any(device)) {
        json_null(json, "device");
        return;
    }
    json_object_begin(json, "device");
    json_unsigned_or_null(json, "budget_bytes", device->budget_bytes);
    json_object_begin(json, "peak_bytes");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        json_unsigned(json, kinds[i].name, report_gauge(rank->process, kinds[i].gauge).max);
    json_object_end(json);
    json_unsigned(json, "outside_bytes", device->outside_bytes);
    json_unsigned(json, "refused", device->refused);
    write_flips(json, device);
    write_slots(json, device);
    write_link(json, device);
    write_overflow(json, device);
    json_object_end(json);
}
