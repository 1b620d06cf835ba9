#include "returns.h"

#include "capture.h"
#include "base/error.h"
#include "base/log.h"
#include "device/devices.h"
#include "events/gate.h"

#define GATE_NS UINT64_C(1000000000) /* nobody needs the return: threads that are inside longer prevent it */

void cuda_homes_step_end(int device) {
    homes *h = devices_homes(device);
    if (!h)
        return;
    bool returns = homes_step_end(h), unused = slots_region_is_unused(devices_slots(device));
    if ((!returns && !unused) || capture_runs())
        return;
    if (gate_close(GATE_NS) != CASTOR_OK) {
        homes_short(h); /* not at each step */
        return;
    }
    /* One may have begun meanwhile. */
    castor_status status = CASTOR_OK;
    if (!capture_runs()) {
        if (unused)
            slots_region_end_unused(devices_slots(device));
        status = returns ? homes_return(h) : CASTOR_OK;
    }
    gate_open();
    if (status != CASTOR_OK)
        LOG_W("model data does not come back to device %d: %s", device, error_text());
}

static uint64_t beyond_budget(homes *h) {
    homes_statistics now;
    homes_statistics_get(h, &now);
    uint64_t there = 0;
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        there += now.bytes[kind][DEVICE_TIER_DEVICE];
    return there > now.budget_bytes ? there - now.budget_bytes : 0;
}

void cuda_budget_set(int device, uint64_t budget_bytes) {
    homes *h = devices_homes(device);
    uint64_t slots_bytes, parts_bytes;
    if (!h)
        return;
    devices_budget_set(device, budget_bytes);
    devices_shares(device, &slots_bytes, &parts_bytes);
    bool slots_leave = slots_region_held(devices_slots(device)) > slots_bytes;
    if (!slots_leave && !beyond_budget(h))
        return;
    error_set(CASTOR_OK, "a graph is being captured");
    if (!capture_runs() && gate_close(GATE_PATIENCE_NS) == CASTOR_OK) {
        if (slots_leave)
            slots_region_give(devices_slots(device));
        error_set(CASTOR_OK, "its homes stay where they are"); /* unless homes_evict knows more */
        homes_evict(h, beyond_budget(h));
        gate_open();
    }
    if (beyond_budget(h))
        LOG_W("device %d: %B of model data stay beyond the budget: %s", device, beyond_budget(h),
              error_text());
}
