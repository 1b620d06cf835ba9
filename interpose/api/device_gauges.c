/* What this process tells the trace of its devices. */
#include "gauges.h"
#include "castor.h"

#include <stdatomic.h>
#include <unistd.h>
#include "device/devices.h"
#include "trace/device_memory.h"
#include "trace/trace.h"

static _Atomic uint64_t outside[CHUNK_KIND_COUNT];          /* model data on devices that is in no home */
static _Atomic uint64_t copied_by_agent[DEVICE_TIER_COUNT]; /* to that tier */
static _Atomic bool ended;                                  /* the gauges stay as they are */
static _Atomic pid_t counting;                              /* a forked child has no devices */

void castor_event_device_data(const uint64_t *addresses, const uint64_t *bytes, const uint8_t *kinds,
                              uint32_t count) {
    uint64_t found[CHUNK_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < count; i++)
        if (kinds[i] < CHUNK_KIND_COUNT && devices_find(addresses[i]) < 0)
            found[kinds[i]] += bytes[i];
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        atomic_store(&outside[kind], found[kind]);
}

void castor_event_device_copied(int device, int to, uint64_t bytes, void *stream) {
    if ((unsigned)to >= DEVICE_TIER_COUNT)
        return;
    atomic_fetch_add(&copied_by_agent[to], bytes);
    if (stream)
        copies_note(devices_copies(device), to == DEVICE_TIER_DEVICE ? COPY_PART_IN : COPY_PART_OUT, bytes,
                    (uint64_t)stream);
}

/* Of all devices together. */
typedef struct devices_statistics {
    homes_statistics homes;
    slots_statistics slots;
    uint64_t slots_bytes; /* taken for regions */
    bool any;
} devices_statistics;

static void add_homes(homes_statistics *sum, const homes_statistics *more) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
            sum->bytes[kind][tier] += more->bytes[kind][tier];
    for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++) {
        sum->flips[tier] += more->flips[tier];
        sum->flipped_bytes[tier] += more->flipped_bytes[tier];
    }
    sum->budget_bytes += more->budget_bytes == UINT64_MAX ? 0 : more->budget_bytes;
    sum->flip_ns += more->flip_ns;
    sum->rescues += more->rescues;
    sum->refused += more->refused;
}

static void add_slots(slots_statistics *sum, const slots_statistics *more) {
    sum->uses += more->uses;
    sum->hits += more->hits;
    sum->prefetched += more->prefetched;
    sum->in_time += more->in_time;
    sum->home_reads += more->home_reads;
    sum->copies += more->copies;
    sum->copied_bytes += more->copied_bytes;
    sum->stale += more->stale;
}

static void statistics_get(devices_statistics *out) {
    *out = (devices_statistics){0};
    if (atomic_load(&counting) != getpid())
        return;
    for (int device = 0; device < DEVICES_MAX; device++) {
        homes *h = devices_homes(device);
        if (!h)
            continue;
        homes_statistics of_homes;
        slots_statistics of_slots;
        homes_statistics_get(h, &of_homes);
        slots_statistics_get(devices_slots(device), &of_slots);
        add_homes(&out->homes, &of_homes);
        add_slots(&out->slots, &of_slots);
        out->slots_bytes += of_slots.copies > 0 ? of_slots.region_bytes : 0; /* the first copy takes it */
        out->any = true;
    }
}

static void set_homes(const homes_statistics *homes) {
    trace_gauge_set(GAUGE_DEVICE_BUDGET_BYTES, homes->budget_bytes);
    trace_gauge_set(GAUGE_FLIPS_TO_DEVICE, homes->flips[DEVICE_TIER_DEVICE]);
    trace_gauge_set(GAUGE_FLIPS_TO_HOST, homes->flips[DEVICE_TIER_HOST]);
    trace_gauge_set(GAUGE_FLIPPED_TO_DEVICE_BYTES, homes->flipped_bytes[DEVICE_TIER_DEVICE]);
    trace_gauge_set(GAUGE_FLIPPED_TO_HOST_BYTES, homes->flipped_bytes[DEVICE_TIER_HOST]);
    trace_gauge_set(GAUGE_FLIP_NS, homes->flip_ns);
    trace_gauge_set(GAUGE_RESCUES, homes->rescues);
    trace_gauge_set(GAUGE_HOMES_REFUSED, homes->refused);
}

static void set_slots(const slots_statistics *slots) {
    trace_gauge_set(GAUGE_SLOT_USES, slots->uses);
    trace_gauge_set(GAUGE_SLOT_HITS, slots->hits);
    trace_gauge_set(GAUGE_SLOT_PREFETCHED, slots->prefetched);
    trace_gauge_set(GAUGE_SLOT_IN_TIME, slots->in_time);
    trace_gauge_set(GAUGE_SLOT_HOME_READS, slots->home_reads);
    trace_gauge_set(GAUGE_SLOT_COPIES, slots->copies);
    trace_gauge_set(GAUGE_SLOT_COPIED_BYTES, slots->copied_bytes);
    trace_gauge_set(GAUGE_SLOT_STALE, slots->stale);
}

static void set_link(const devices_statistics *found) {
    trace_gauge_set(GAUGE_LINK_TO_DEVICE_BYTES, found->slots.copied_bytes +
                                                    found->homes.flipped_bytes[DEVICE_TIER_DEVICE] +
                                                    atomic_load(&copied_by_agent[DEVICE_TIER_DEVICE]));
    trace_gauge_set(GAUGE_LINK_TO_HOST_BYTES, found->homes.flipped_bytes[DEVICE_TIER_HOST] +
                                                  atomic_load(&copied_by_agent[DEVICE_TIER_HOST]));
}

void gauges_devices_start(void) {
    atomic_store(&counting, getpid());
}

void castor_event_devices_end(void) {
    gauges_sample();
    for (int device = 0; device < DEVICES_MAX; device++)
        copies_look(devices_copies(device), true);
    atomic_store(&ended, true);
}

static void add_bytes(const devices_statistics *found, uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
            bytes[kind][tier] += found->homes.bytes[kind][tier];
        bytes[kind][DEVICE_TIER_DEVICE] += atomic_load(&outside[kind]);
    }
}

void gauges_devices_get(uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    devices_statistics found;
    statistics_get(&found);
    add_bytes(&found, bytes);
}

bool gauges_devices_sample(uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    devices_statistics found;
    if (atomic_load(&ended))
        return false;
    statistics_get(&found);
    add_bytes(&found, bytes);
    uint64_t outside_bytes = 0, allocated = device_memory_bytes();
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        outside_bytes += atomic_load(&outside[kind]);
    if (allocated > 0 || outside_bytes > 0 || found.any) {
        trace_gauge_set(GAUGE_DEVICE_PARAM_BYTES, bytes[CHUNK_PARAM][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_GRAD_BYTES, bytes[CHUNK_GRAD][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_OPTIM_BYTES, bytes[CHUNK_OPTIM][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_OTHER_BYTES, allocated > outside_bytes ? allocated - outside_bytes : 0);
    }
    if (!found.any)
        return true;
    trace_gauge_set(GAUGE_DEVICE_OUTSIDE_BYTES, outside_bytes);
    trace_gauge_set(GAUGE_DEVICE_SLOTS_BYTES, found.slots_bytes);
    set_homes(&found.homes);
    set_slots(&found.slots);
    set_link(&found);
    return true;
}
