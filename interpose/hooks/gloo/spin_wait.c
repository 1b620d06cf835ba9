#include "spin_wait.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include "base/clock.h"
#include "base/spin.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/stable.h"

#define GROUPS_MAX     256u
#define CANDIDATES_MAX 4u

static _Atomic(const void *) groups[GROUPS_MAX];
static _Atomic uint32_t groups_end; /* entries from here on were never used */

typedef struct candidates {
    bool on;
    uint32_t count;
    const void *group[CANDIDATES_MAX];
} candidates;

HOOK_THREAD_LOCAL candidates seen;

/* Of this thread. */
HOOK_THREAD_LOCAL const void *last_work;
HOOK_THREAD_LOCAL spin_patience patience;

typedef bool (*completed_function)(void *work); /* c10d::Work::isCompleted */
static _Atomic(completed_function) is_completed;

void gloo_wait_watch(void) {
    seen = (candidates){.on = true};
}

void gloo_wait_made(const void *group) {
    if (seen.on && seen.count < CANDIDATES_MAX)
        seen.group[seen.count++] = group;
}

void gloo_wait_unwatch(void) {
    seen.on = false;
}

static void completed_resolve(void) {
    void *library = loader_library(TORCH_CPU_LIBRARY);
    void *found = library ? loader_symbol(library, "_ZN4c10d4Work11isCompletedEv") : NULL;
    completed_function function;
    memcpy(&function, &found, sizeof function);
    atomic_store(&is_completed, function);
}

static void group_add(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX; i++) {
        const void *none = NULL;
        if (!atomic_compare_exchange_strong(&groups[i], &none, group))
            continue;
        uint32_t end = atomic_load(&groups_end);
        while (end <= i && !atomic_compare_exchange_weak(&groups_end, &end, i + 1))
            ;
        return;
    }
}

void gloo_wait_bind(void) {
    if (!atomic_load(&is_completed))
        completed_resolve();
    for (uint32_t i = 0; i < seen.count; i++)
        group_add(seen.group[i]);
}

static _Atomic(const void *) *group_find(const void *group) {
    uint32_t end = atomic_load_explicit(&groups_end, memory_order_acquire);
    for (uint32_t i = 0; i < end; i++)
        if (atomic_load_explicit(&groups[i], memory_order_relaxed) == group)
            return &groups[i];
    return NULL;
}

void gloo_wait_end(const void *group) {
    _Atomic(const void *) *found = group_find(group);
    if (found)
        atomic_store(found, NULL);
}

void gloo_wait_enqueued(const void *group, const void *work) {
    if (atomic_load_explicit(&groups_end, memory_order_relaxed))
        last_work = group_find(group) ? work : NULL;
}

void gloo_wait_spin(void *work) {
    if (!last_work || last_work != work)
        return;
    last_work = NULL;
    completed_function completed = atomic_load_explicit(&is_completed, memory_order_relaxed);
    uint32_t microseconds = completed ? spin_begin(&patience) : 0;
    if (!microseconds)
        return;
    double before = clock_seconds(), now = before, end = before + microseconds * 1e-6, turn = 0;
    bool done;
    do {
        before = now;
        sched_yield();
        done = completed(work);
        now = clock_seconds();
        turn = now - before > turn ? now - before : turn;
    } while (!done && now < end);
    spin_end(&patience, done && now < end, turn);
}
