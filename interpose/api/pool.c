/* The exported functions about the pool: thin, over the modules. */
#include "castor.h"

#include "core/error.h"
#include "core/options.h"
#include "core/start.h"
#include "hooks/table/hooks.h"
#include "lazy/pool.h"
#include "lazy/pool_watch.h"

castor_status castor_pool_start(int (*schedule)(int (*)(void *), void *), int (*sweep)(void *)) {
    static bool watched;
    if (!watched) {
        castor_status status = start_fork_register(pool_fork_prepare, pool_fork_parent, pool_fork_child);
        if (status)
            return error_set(status, "no room for the pool's fork handlers");
        watched = true;
    }
    return pool_watch_start(options()->job, options()->lazy_bytes, schedule, sweep);
}

void castor_pool_stop(void) {
    pool_watch_stop();
}

int castor_pool_is_safe(void) {
    return !hooks_collective_pending();
}

uint64_t castor_pool_sweep(void *const *blocks, uint32_t count) {
    uint64_t swept = blocks ? pool_sweep(blocks, count) : 0;
    pool_watch_done(blocks != NULL);
    if (swept)
        pool_await_others();
    return swept;
}

void castor_pool_get(uint64_t *held, uint64_t *found, uint64_t *made) {
    pool_figures figures;
    pool_get_figures(&figures);
    *held = figures.held_bytes;
    *found = figures.found_bytes;
    *made = figures.made_bytes;
}
