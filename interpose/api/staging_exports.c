/* The exported functions about the staging area: thin, over the modules. */
#include "castor.h"

#include "base/error.h"
#include "job/options.h"
#include "events/life.h"
#include "hooks/table/hooks.h"
#include "lazy/staging.h"

castor_status castor_staging_start(int (*schedule)(int (*)(void *), void *), int (*sweep)(void *)) {
    static bool watched;
    if (!watched) {
        castor_status status =
            life_fork_register(staging_fork_prepare, staging_fork_parent, staging_fork_child);
        if (status)
            return error_set(status, "no room for the staging area's fork handlers");
        watched = true;
    }
    return staging_watch_start(options()->job, options()->lazy_bytes, schedule, sweep);
}

void castor_staging_stop(void) {
    staging_watch_stop();
}

int castor_staging_is_safe(void) {
    return !hooks_collective_pending();
}

uint64_t castor_staging_sweep(void *const *blocks, uint32_t count) {
    uint64_t swept = blocks ? staging_sweep(blocks, count) : 0;
    staging_watch_done(blocks != NULL);
    if (swept)
        staging_await_others();
    return swept;
}

void castor_staging_get(uint64_t *held, uint64_t *found, uint64_t *made) {
    staging_figures figures;
    staging_get_figures(&figures);
    *held = figures.held_bytes;
    *found = figures.found_bytes;
    *made = figures.made_bytes;
}
