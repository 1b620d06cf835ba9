/* Whether PyTorch's blocks come from the arena, and since when. */
#include "arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include "base/log.h"
#include "job/options.h"
#include "job/plugin.h"
#include "events/life.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool serves;

/* A plugin without an engine leaves PyTorch's memory alone, unless the arena is asked for. */
static bool is_wanted(void) {
    return options()->arena &&
           (plugin()->engine || option_set_by(OPTION_ID_arena) == OPTION_FROM_ENVIRONMENT);
}

static void begin(void) {
    if (!is_wanted())
        return;
    life_fork_watch();
    serves = arena_start(options()->arena_retain) == CASTOR_OK;
    if (!serves)
        LOG_W("no address space for the arena (is a memory limit set?); PyTorch's memory comes from the "
              "system's allocator");
}

bool arena_serves(void) {
    pthread_once(&once, begin);
    return serves;
}

void arena_serve_now(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!arena_serves())
        begin();
    pthread_mutex_unlock(&lock);
}
