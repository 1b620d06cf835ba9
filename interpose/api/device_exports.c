/* The exported functions about devices: thin, over interpose/device. */
#include "castor.h"

#include "base/error.h"
#include "base/log.h"
#include "job/options.h"
#include "device/devices.h"
#include "device/probe.h"
#include "events/gate.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/operands.h"
#include "hooks/cuda/overflow.h"
#include "hooks/cuda/returns.h"
#include "placement_options.h"
#include "training/division.h"

#define UNIT              (UINT64_C(1) << 20)
#define PROBED_COPY_BYTES (UINT64_C(64) << 20)

_Static_assert((int)CASTOR_HOME_DEVICE == (int)DEVICE_TIER_DEVICE &&
                   (int)CASTOR_HOME_HOST == (int)DEVICE_TIER_HOST,
               "one value, two names");
_Static_assert((int)CASTOR_LEVEL_PAGES == (int)DEVICE_LEVEL_PAGES &&
                   (int)CASTOR_LEVEL_HOST_MEMORY == (int)DEVICE_LEVEL_HOST_MEMORY &&
                   (int)CASTOR_LEVEL_FLIPS == (int)DEVICE_LEVEL_FLIPS,
               "one value, two names");

static void fixed_say(int device, bool budget) {
    const device_driver *driver = devices_driver();
    const char *overflow = options()->overflow ? "; CASTOR_OVERFLOW has no effect" : "";
    driver->maps_host(driver->context, device); /* why */
    if (budget)
        LOG_I("%s. Model data beyond CASTOR_DEVICE_BUDGET stays on the host, and the rest on the device%s",
              error_text(), overflow);
    else
        LOG_W("%s. What is on the host stays there, and nothing is moved when memory runs out: give "
              "CASTOR_DEVICE_BUDGET%s",
              error_text(), overflow);
}

static uint32_t ranks_on[DEVICES_MAX]; /* 0: this one alone */

static bool is_shared(int device) {
    return device >= 0 && device < DEVICES_MAX && ranks_on[device];
}

static uint64_t budget_of(int device) {
    uint64_t whole = options()->device_budget;
    return whole == OPTION_BYTES_AUTO ? UINT64_MAX : is_shared(device) ? whole / ranks_on[device] : whole;
}

void castor_device_share(int device, uint32_t ranks) {
    if (device < 0 || device >= DEVICES_MAX || ranks < 2 || ranks <= ranks_on[device])
        return;
    ranks_on[device] = ranks;
    cuda_budget_set(device, budget_of(device));
}

castor_status castor_device_start(int device) {
    if (devices_homes(device))
        return CASTOR_OK;
    devices_settings settings = {.budget_bytes = budget_of(device), .placement = placement_of(options())};
    if (placement_ignores_parameters(&settings.placement))
        LOG_W("CASTOR_OFFLOAD_PARAM_FRAC counts as 0 on device %d: it needs CASTOR_SHARD_PARAM_FRAC=1 and "
              "CASTOR_OFFLOAD_OPTIM_FRAC=1",
              device);
    castor_status status = devices_start(cuda_driver(), device, &settings);
    if (!status)
        status = cuda_operands_install();
    if (!status && homes_are_fixed(devices_homes(device)))
        fixed_say(device, settings.budget_bytes != UINT64_MAX);
    return status;
}

/* PyTorch's allocator calls these: NULL is its out-of-memory, and what is missing is said here. */
static void *home_of(chunk_kind kind, int64_t size, int device) {
    homes *h = devices_homes(device);
    home made;
    if (!h || size < 0 || devices_home_create(device, kind, (size_t)size, &made)) {
        LOG_W("%s", h ? error_text() : "a device has no homes yet");
        return NULL;
    }
    return (void *)made.address;
}

void *castor_home_of_parameter(int64_t size, int device, void *stream) {
    (void)stream;
    return home_of(CHUNK_PARAM, size, device);
}

void *castor_home_of_gradient(int64_t size, int device, void *stream) {
    (void)stream;
    return home_of(CHUNK_GRAD, size, device);
}

void *castor_home_of_state(int64_t size, int device, void *stream) {
    (void)stream;
    return home_of(CHUNK_OPTIM, size, device);
}

void castor_home_free(void *address, int64_t size, int device, void *stream) {
    (void)size, (void)stream;
    homes *h = devices_homes(device);
    home found;
    if (!h || !home_find(h, (uintptr_t)address, &found))
        return;
    const device_driver *driver = devices_driver();
    slots_forget(devices_slots(device), found.address, found.bytes);
    /* What is enqueued may still use it, copies into slots included; cudaFree waits as well. */
    if (driver->drain(driver->context, device)) {
        LOG_W("%s: its memory is not freed", error_text());
        return;
    }
    if (home_destroy(h, found.address))
        LOG_W("%s", error_text());
}

castor_status castor_storage_add(int device, const void *address, uint64_t bytes) {
    slots *s = devices_slots(device);
    if (!s || devices_find((uintptr_t)address) != device)
        return CASTOR_OK;
    return slots_storage_add(s, (uintptr_t)address, bytes);
}

void castor_home_tiers(const uint64_t *addresses, uint32_t count, int8_t *tiers) {
    for (uint32_t i = 0; i < count; i++) {
        int device = devices_find(addresses[i]);
        home found;
        tiers[i] = -1;
        if (device >= 0 && home_find(devices_homes(device), addresses[i], &found))
            tiers[i] = (int8_t)found.tier;
    }
}

int castor_homes_on_host(void) {
    for (int device = 0; device < DEVICES_MAX; device++) {
        homes *h = devices_homes(device);
        if (!h)
            continue;
        homes_statistics found;
        homes_statistics_get(h, &found);
        uint64_t there = 0;
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
            there += found.bytes[kind][DEVICE_TIER_HOST];
        if (there > found.away_bytes)
            return 1;
    }
    return 0;
}

int castor_device_short(int device, uint64_t outside_bytes) {
    return devices_short(device, outside_bytes);
}

void castor_device_outside(int device, uint64_t bytes) {
    devices_outside_set(device, bytes);
}

_Static_assert((int)CASTOR_DEVICE_PARTS == DEVICES_PARTS_AT_A_TIME, "one value, two names");

uint32_t castor_device_parts_divide(const int32_t *devices, const uint64_t *bytes, uint32_t count,
                                    uint32_t *ends) {
    return parts_divide_by_place(bytes, devices, count, devices_part_bytes, ends);
}

int castor_device_parts_hold(int device, uint64_t bytes) {
    return bytes <= DEVICES_PARTS_AT_A_TIME * devices_part_bytes(device);
}

void castor_slots_next_uses(int device, const uint64_t *addresses, uint32_t count, uint64_t *order) {
    if (devices_slots(device))
        slots_next_uses(devices_slots(device), addresses, count, order);
}

uint64_t castor_slots_too_small(int device) {
    slots *s = devices_slots(device);
    uintptr_t address = 0;
    return s && slots_too_large(s, &address) ? address : 0;
}

void castor_budget_too_small(int device, const char *operand, uint64_t operand_bytes, const char *step,
                             uint64_t step_bytes) {
    uint64_t slots_bytes, parts_bytes, budget = devices_budget_for(device, operand_bytes + UNIT, step_bytes);
    char products[160] = "", steps[160] = "", would[64] = "No budget of this device would do";
    devices_shares(device, &slots_bytes, &parts_bytes);
    if (*operand)
        log_format(products, sizeof products,
                   "slots have %B, and products read a parameter of shape %s, %B, from host memory",
                   slots_bytes, operand, operand_bytes);
    if (*step)
        log_format(steps, sizeof steps,
                   "parts have %B, and the step of a parameter of shape %s, %B, goes over the link",
                   parts_bytes, step, step_bytes);
    if (budget)
        log_format(
            would, sizeof would, "CASTOR_DEVICE_BUDGET=%lluM would do",
            (unsigned long long)((budget * (is_shared(device) ? ranks_on[device] : 1) + UNIT - 1) / UNIT));
    LOG_W("device %d: %s%s%s. %s", device, products, *operand && *step ? "; " : "", steps, would);
}

void castor_device_optional(int optional) {
    overflow_optional(optional != 0);
}

int castor_operand_begin(int device, uint64_t address, uint64_t bytes, uint64_t stream, castor_operand *out) {
    slots *s = devices_slots(device);
    if (!s || devices_find(address) != device)
        return 0;
    gate_enter(); /* copies read homes */
    slot_use use = slot_use_begin(s, address, bytes, stream);
    gate_leave();
    *out = (castor_operand){.pointer = use.pointer, .stream = use.stream, .storage = use.storage};
    return use.storage != SLOT_USE_NONE;
}

void castor_operand_end(int device, const castor_operand *use) {
    gate_enter();
    slot_use_end(devices_slots(device),
                 &(slot_use){.pointer = use->pointer, .storage = use->storage, .stream = use->stream});
    gate_leave();
}

void castor_device_pass_end(void) {
    gate_enter(); /* copies read homes */
    for (int device = 0; device < DEVICES_MAX; device++)
        if (devices_slots(device))
            slots_step_end(devices_slots(device));
    gate_leave();
}

void castor_device_step_end(void) {
    castor_device_pass_end();
    for (int device = 0; device < DEVICES_MAX; device++)
        cuda_homes_step_end(device);
}

int castor_homes_get(int device, castor_homes *out) {
    *out = (castor_homes){0};
    homes *h = devices_homes(device);
    if (!h)
        return 0;
    homes_statistics of_homes;
    slots_statistics of_slots;
    updates_statistics of_updates;
    homes_statistics_get(h, &of_homes);
    slots_statistics_get(devices_slots(device), &of_slots);
    updates_statistics_get(devices_updates(device), &of_updates);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++) {
            out->bytes[kind][tier] = of_homes.bytes[kind][tier];
            out->peak_bytes[kind][tier] = of_homes.peak_bytes[kind][tier];
        }
    out->budget_bytes = of_homes.budget_bytes;
    for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++) {
        out->flips[tier] = of_homes.flips[tier];
        out->flipped_bytes[tier] = of_homes.flipped_bytes[tier];
    }
    out->flip_ns = of_homes.flip_ns;
    out->rescues = of_homes.rescues;
    out->region_bytes = of_slots.region_bytes;
    out->uses = of_slots.uses;
    out->hits = of_slots.hits;
    out->prefetched = of_slots.prefetched;
    out->in_time = of_slots.in_time;
    out->home_reads = of_slots.home_reads;
    out->copies = of_slots.copies;
    out->copied_bytes = of_slots.copied_bytes;
    out->stale = of_slots.stale;
    out->updates = of_updates.updates;
    out->update_elements = of_updates.elements;
    out->update_waits = of_updates.waits;
    out->taken_bytes = of_homes.taken_bytes;
    out->beside_bytes = of_homes.beside_bytes;
    return 1;
}

castor_status castor_device_probe(int device, castor_probe *out) {
    device_probe found;
    castor_status status = device_probe_run(cuda_driver(), device, PROBED_COPY_BYTES, &found);
    *out = (castor_probe){.level = found.level,
                          .unit_bytes = found.unit_bytes,
                          .free_bytes = found.free_bytes,
                          .total_bytes = found.total_bytes,
                          .host_bytes = found.host_bytes,
                          .copy_bytes = found.copy_bytes,
                          .copy_ns = {found.copy_ns[DEVICE_TIER_DEVICE], found.copy_ns[DEVICE_TIER_HOST]}};
    return status;
}

castor_status castor_device_check(int device) {
    homes *h = devices_homes(device);
    if (!h)
        return CASTOR_OK;
    castor_status status = homes_check(h);
    return status ? status : slots_check(devices_slots(device));
}
