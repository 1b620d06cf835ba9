#include <dlfcn.h>
#include <string.h>
#include "payload.h"
#include "wrapper.h"
#include "../trace/trace.h"
#include "../../shims/torch/stable.h"

void *hook_real[HOOK_COUNT];

HOOK_THREAD_LOCAL bool looking_up;

void *hooks_real(hook_id id) {
    return __atomic_load_n(&hook_real[id], __ATOMIC_RELAXED);
}

void *hooks_next(hook_id id) {
    void *real = hooks_real(id);
    if (real || looking_up)
        return real;
    looking_up = true;
    real = dlsym(RTLD_NEXT, hook_table[id].symbol);
    looking_up = false;
    __atomic_store_n(&hook_real[id], real, __ATOMIC_RELAXED);
    return real;
}

const char *hooks_operation_name(hook_id id) {
    const char *colon = strrchr(hook_table[id].name, ':');
    return colon ? colon + 1 : hook_table[id].name;
}

void hooks_resolve(void) {
    uint64_t found = 0, missed = 0;
    /* Python loads it RTLD_LOCAL: RTLD_NEXT does not see it. The handle is kept: torch is never unloaded. */
    void *torch = dlopen(TORCH_CPU_LIBRARY, RTLD_NOLOAD | RTLD_LAZY);
    if (torch)
        payload_resolve(torch);
    for (hook_id id = 0; id < HOOK_COUNT; id++) {
        hook_layer layer = hook_table[id].layer;
        if (layer == HOOK_LAYER_ALLOCATION)
            hooks_next(id);
        else if (!torch)
            continue;
        else if (HOOK_GLOO_WRAPPED && !hooks_real(id))
            __atomic_store_n(&hook_real[id], dlsym(torch, hook_table[id].symbol), __ATOMIC_RELAXED);
        *(hooks_real(id) ? &found : &missed) += 1;
        trace_name_set(TRACE_CALL, id, hook_table[id].name);
        if (layer == HOOK_LAYER_GLOO)
            trace_name_set(TRACE_COLLECTIVE, id, hooks_operation_name(id));
    }
    trace_gauge_set(GAUGE_HOOKS_FOUND, found);
    trace_gauge_set(GAUGE_HOOKS_MISSED, missed);
}
