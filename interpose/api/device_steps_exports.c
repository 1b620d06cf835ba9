/* The exported functions about steps on the host, of tensors that a device has: thin, over device/updates.h. */
#include "castor.h"

#include <dlfcn.h>
#include <string.h>
#include "base/error.h"
#include "device/devices.h"
#include "events/gate.h"
#include "hooks/cuda/joined.h"
#include "job/options.h"
#include "optimizer_exports.h"
#include "same.h"

SAME(castor_step_range, kernel_range, numel);

static bool is_at_home(int device, const void *memory) {
    return devices_find((uintptr_t)memory) == device &&
           home_is_on_host(devices_homes(device), (uintptr_t)memory);
}

static castor_status check_homes(int device, const update_step *step, const castor_step_range *ranges,
                                 uint32_t count) {
    bool able = true, wide = step->kind == UPDATE_SUM || step->numbers.common.param_dtype == CASTOR_DTYPE_F32;
    for (uint32_t i = 0; i < count && able; i++) {
        able = wide ? !ranges[i].master : ranges[i].master && is_at_home(device, ranges[i].master);
        able = able && (devices_find((uintptr_t)ranges[i].grad) < 0 || is_at_home(device, ranges[i].grad)) &&
               (devices_find((uintptr_t)ranges[i].param) < 0 || is_at_home(device, ranges[i].param));
        for (int state = 0; state < 3 && able; state++)
            able = !ranges[i].states[state] || is_at_home(device, ranges[i].states[state]);
    }
    return able ? CASTOR_OK
                : error_set(CASTOR_ERR_ARGUMENT, "a step on the host takes tensors whose homes are on the "
                                                 "host, parameters of float or with a master");
}

/* What copies into slots still read comes before, and the slots hold what was. Where the device keeps an address of a home, kernels read
 * there that nobody sees: then the host waits. */
static castor_status update(int device, uint64_t stream, const update_step *step, uint64_t late,
                            const castor_step_range *ranges, uint32_t count, int threads) {
    updates *u = devices_updates(device);
    if (!u)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a step on the host of device %d, which castor_device_updates comes before", device);
    slots *s = devices_slots(device);
    bool kept = false;
    size_t param_bytes = kernel_dtype_bytes((kernel_dtype)step->numbers.common.param_dtype);
    for (uint32_t i = 0; i < count && joined_matter(); i++) /* the processors cannot write there either */
        joined_leave_homes((uintptr_t)ranges[i].param, ranges[i].count * param_bytes, true);
    gate_enter();
    castor_status status = check_homes(device, step, ranges, count);
    if (!status && step->kind != UPDATE_SUM) /* no slot has gradients */
        status = slots_copies_join(s, stream);
    if (!status)
        status = updates_add(u, step, (const kernel_range *)ranges, count, late, threads, stream);
    for (uint32_t i = 0; i < count && !status; i++) {
        slots_written(s, (uintptr_t)ranges[i].param, ranges[i].count * param_bytes, stream);
        kept |= slots_keep(s, (uintptr_t)ranges[i].param) || slots_keep(s, (uintptr_t)ranges[i].grad);
        kept |= ranges[i].master && slots_keep(s, (uintptr_t)ranges[i].master);
        for (int state = 0; state < 3; state++)
            kept |= ranges[i].states[state] && slots_keep(s, (uintptr_t)ranges[i].states[state]);
    }
    gate_leave();
    return !status && kept ? updates_settle(u) : status;
}

static update_step update_of(update_kind kind) {
    update_step step = {.kind = kind};
    step.has_roots = optimizer_roots(&step.roots);
    return step;
}

castor_status castor_device_adam(int device, uint64_t stream, const castor_adam *adam,
                                 const castor_late *late, const castor_step_range *ranges, uint32_t count,
                                 int threads) {
    castor_status status = optimizer_check_adam(adam, ranges, count);
    update_step step = update_of(UPDATE_ADAM);
    memcpy(&step.numbers.adam, adam, sizeof *adam);
    if (late) {
        step.late = late->counted ? UPDATE_COUNTED : UPDATE_LATE;
        step.lr = late->lr;
        step.beta1 = late->beta1;
        step.beta2 = late->beta2;
        step.power = (double (*)(double, double))dlsym(RTLD_DEFAULT, "pow"); /* Python has it */
        if (!step.power)
            return error_set(CASTOR_ERR_UNSUPPORTED, "optimizer step: there is no pow in this process");
    }
    return status ? status : update(device, stream, &step, late ? late->numbers : 0, ranges, count, threads);
}

castor_status castor_device_sgd(int device, uint64_t stream, const castor_sgd *sgd,
                                const castor_step_range *ranges, uint32_t count, int threads) {
    castor_status status = optimizer_check_sgd(sgd, ranges, count);
    update_step step = update_of(UPDATE_SGD);
    memcpy(&step.numbers.sgd, sgd, sizeof *sgd);
    return status ? status : update(device, stream, &step, 0, ranges, count, threads);
}

castor_status castor_device_sum(int device, uint64_t stream, int dtype, const castor_step_range *ranges,
                                uint32_t count, int threads) {
    const castor_sgd by_one = {.step = {.param_dtype = dtype, .grad_dtype = dtype, .inv_scale = 1, .clip = 1},
                               .grad_weight = 1,
                               .negative_lr = 1};
    castor_status status = optimizer_check_sgd(&by_one, ranges, count);
    update_step step = {.kind = UPDATE_SUM};
    memcpy(&step.numbers.sgd, &by_one, sizeof by_one);
    return status ? status : update(device, stream, &step, 0, ranges, count, threads);
}

castor_status castor_device_updates(int device) {
    updates *u;
    castor_status status = devices_updates_make(device, &u);
    if (!status)
        updates_delay_set(u, (uint32_t)options()->update_delay);
    return status;
}

void castor_device_updates_wait(int device, uint64_t stream) {
    updates *u = devices_updates(device);
    if (u)
        updates_wait_all(u, device, stream);
}
