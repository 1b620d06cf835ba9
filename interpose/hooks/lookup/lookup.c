#include "lookup.h"
#include <string.h>
#include "events/life.h"
#include "wrapper.h"
#include "trace/trace.h"
#include "objects.h"

#define HOOK(layer, mode, result, id, ...) extern void wrap_##id(void);
#include "hooks/table/cublas.def"
#include "hooks/table/cuda_driver.def"
#include "hooks/table/cuda_lookup.def"
#include "hooks/table/cuda_runtime.def"
#include "hooks/table/nccl.def"
#undef HOOK

static void (*const wrappers[HOOK_COUNT])(void) = {
#define HOOK(layer, mode, result, id, ...) [HOOK_##id] = wrap_##id,
#include "hooks/table/cublas.def"
#include "hooks/table/cuda_driver.def"
#include "hooks/table/cuda_lookup.def"
#include "hooks/table/cuda_runtime.def"
#include "hooks/table/nccl.def"
#undef HOOK
};

/* The driver's ABIs, in the order of the table. */
static const struct driver_row {
    const char *name;
    int version;
    bool per_thread;
    hook_id id;
} driver_rows[] = {
#define DRIVER(version, function, symbol, ...) {#function, version, false, HOOK_##symbol},
#define DRIVER_PER_THREAD(version, function, symbol, variant, ...)                                           \
    {#function, version, true, HOOK_##symbol##variant},
#include "hooks/table/cuda_driver.def"
    {"cuGetProcAddress", 11030, false, HOOK_cuGetProcAddress},
    {"cuGetProcAddress", 12000, false, HOOK_cuGetProcAddress_v2},
    {"cuGetExportTable", 3000, false, HOOK_cuGetExportTable},
};

/* Open addressing over the symbols; filled by the first look-up. Who finds it in the making searches the table. */
#define SLOTS 2048                                  /* a power of two, more than twice the rows */
static uint16_t slots[SLOTS];                       /* a row's id plus 1 */
static enum { EMPTY, FILLING, FILLED } slots_state; /* atomic */
static uint64_t passed_over;                        /* atomic */

_Static_assert(HOOK_COUNT * 2 < SLOTS, "the table of symbols needs more slots");

static uint32_t slot_of(const char *symbol) {
    uint32_t hash = 2166136261u;
    for (; *symbol; symbol++)
        hash = (hash ^ (unsigned char)*symbol) * 16777619u;
    return hash % SLOTS;
}

static void slots_fill(void) {
    for (hook_id id = 0; id < HOOK_COUNT; id++) {
        if (!wrappers[id])
            continue;
        uint32_t slot = slot_of(hook_table[id].symbol);
        while (slots[slot])
            slot = (slot + 1) % SLOTS;
        slots[slot] = (uint16_t)(id + 1);
    }
}

hook_id lookup_symbol(const char *symbol) {
    int state = __atomic_load_n(&slots_state, __ATOMIC_ACQUIRE);
    if (state == EMPTY) {
        int empty = EMPTY;
        if (__atomic_compare_exchange_n((int *)&slots_state, &empty, FILLING, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_ACQUIRE)) {
            slots_fill();
            __atomic_store_n(&slots_state, FILLED, __ATOMIC_RELEASE);
        }
        state = __atomic_load_n(&slots_state, __ATOMIC_ACQUIRE);
    }
    if (state == FILLED) {
        for (uint32_t slot = slot_of(symbol); slots[slot]; slot = (slot + 1) % SLOTS)
            if (objects_text_equal(hook_table[slots[slot] - 1].symbol, symbol))
                return slots[slot] - 1;
        return HOOK_COUNT;
    }
    for (hook_id id = 0; id < HOOK_COUNT; id++)
        if (wrappers[id] && objects_text_equal(hook_table[id].symbol, symbol))
            return id;
    return HOOK_COUNT;
}

hook_id lookup_driver(const char *name, int version, bool per_thread) {
    const struct driver_row *best = NULL;
    for (size_t i = 0; i < sizeof driver_rows / sizeof *driver_rows; i++) {
        const struct driver_row *row = &driver_rows[i];
        if (row->version > version || (row->per_thread && !per_thread) || strcmp(row->name, name) != 0)
            continue;
        /* A function without a variant per thread has one ABI for both. */
        bool better =
            !best || (row->per_thread != best->per_thread ? row->per_thread : row->version > best->version);
        if (better)
            best = row;
    }
    return best ? best->id : HOOK_COUNT;
}

void *lookup_wrapper(hook_id id) {
    return id < HOOK_COUNT ? (void *)wrappers[id] : NULL;
}

void *lookup_wrap(hook_id id, void *found) {
    void *wrapper = lookup_wrapper(id);
    if (!found || !wrapper || found == wrapper)
        return found;
    /* Callers that are linked reach the wrapper too: what they would call comes before what was asked for. */
    void *known = hooks_find(id);
    if (!known &&
        __atomic_compare_exchange_n(&hook_real[id], &known, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        known = found;
    if (known == found || objects_same(known, found))
        return wrapper;
    __atomic_fetch_add(&passed_over, 1, __ATOMIC_RELAXED);
    if (life_is_awake())
        trace_counter_add(GAUGE_HOOKS_MISSED, 1);
    return found;
}

uint64_t lookup_passed_over(void) {
    return __atomic_load_n(&passed_over, __ATOMIC_RELAXED);
}
