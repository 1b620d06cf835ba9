#include "life.h"

#include <pthread.h>
#include <stddef.h>

#define FORK_HANDLERS_MAX 16

static void (*on_wake)(void), (*on_library)(void);
static pthread_once_t wake_once = PTHREAD_ONCE_INIT, fork_once = PTHREAD_ONCE_INIT;
static bool awake, agent_attached; /* atomic */

static struct { void (*prepare)(void), (*parent)(void), (*child)(void); } fork_handlers[FORK_HANDLERS_MAX];
static unsigned fork_handler_count;

void life_listen(void (*wake)(void), void (*library)(void)) {
    on_wake = wake;
    on_library = library;
}

static void wake(void) {
    life_fork_watch();
    on_wake();
    __atomic_store_n(&awake, true, __ATOMIC_RELEASE);
}

void life_wake(void) {
    pthread_once(&wake_once, wake);
}

bool life_is_awake(void) {
    return __atomic_load_n(&awake, __ATOMIC_ACQUIRE);
}

void life_library_loaded(void) {
    on_library();
}

void life_agent_attached(void) {
    __atomic_store_n(&agent_attached, true, __ATOMIC_RELEASE);
}

bool life_has_agent(void) {
    return __atomic_load_n(&agent_attached, __ATOMIC_RELAXED);
}

/* ---- forks */

static void fork_prepare(void) {
    for (unsigned i = __atomic_load_n(&fork_handler_count, __ATOMIC_ACQUIRE); i-- > 0;)
        if (fork_handlers[i].prepare)
            fork_handlers[i].prepare();
}

static void fork_parent(void) {
    for (unsigned i = 0; i < fork_handler_count; i++)
        if (fork_handlers[i].parent)
            fork_handlers[i].parent();
}

static void fork_child(void) {
    for (unsigned i = 0; i < fork_handler_count; i++)
        if (fork_handlers[i].child)
            fork_handlers[i].child();
}

static void fork_install(void) {
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void life_fork_watch(void) {
    pthread_once(&fork_once, fork_install);
}

castor_status life_fork_list(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    castor_status status = CASTOR_ERR_MEMORY;
    pthread_mutex_lock(&lock);
    if (fork_handler_count < FORK_HANDLERS_MAX) {
        fork_handlers[fork_handler_count].prepare = prepare;
        fork_handlers[fork_handler_count].parent = parent;
        fork_handlers[fork_handler_count].child = child;
        __atomic_store_n(&fork_handler_count, fork_handler_count + 1, __ATOMIC_RELEASE);
        status = CASTOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

castor_status life_fork_register(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    castor_status status = life_fork_list(prepare, parent, child);
    life_fork_watch();
    return status;
}
