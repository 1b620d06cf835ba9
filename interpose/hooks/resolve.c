#include <dlfcn.h>
#include "wrapper.h"
#include "../trace/trace.h"

#define TORCH_LIBRARY "libtorch_cpu.so"

void *hook_real[HOOK_COUNT];

static hook_count counts[HOOK_COUNT];
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

void hooks_resolve(void) {
    uint64_t found = 0, missed = 0;
    /* Python loads it RTLD_LOCAL: RTLD_NEXT does not see it. The handle is kept: torch is never unloaded. */
    void *torch = dlopen(TORCH_LIBRARY, RTLD_NOLOAD | RTLD_LAZY);
    for (unsigned id = 0; id < HOOK_COUNT; id++) {
        if (hook_table[id].layer == HOOK_LAYER_ALLOCATION)
            hooks_next(id);
        else if (torch && !hooks_real(id))
            __atomic_store_n(&hook_real[id], dlsym(torch, hook_table[id].symbol), __ATOMIC_RELAXED);
        else if (!torch)
            continue;
        if (hooks_real(id))
            found++;
        else
            missed++;
    }
    trace_gauge_set(GAUGE_HOOKS_FOUND, found);
    trace_gauge_set(GAUGE_HOOKS_MISSED, missed);
}

void hooks_count_add(hook_id id, uint64_t bytes) {
    __atomic_fetch_add(&counts[id].count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts[id].bytes, bytes, __ATOMIC_RELAXED);
}

hook_count hooks_get_count(hook_id id) {
    return (hook_count){.count = __atomic_load_n(&counts[id].count, __ATOMIC_RELAXED),
                        .bytes = __atomic_load_n(&counts[id].bytes, __ATOMIC_RELAXED)};
}
