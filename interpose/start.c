#include "core/start.h"
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "arena/arena.h"
#include "core/error.h"
#include "core/log.h"
#include "core/options.h"
#include "core/plugin.h"
#include "files/overlay.h"
#include "forking/forking.h"
#include "hooks/lookup/anycall.h"
#include "hooks/table/hooks.h"
#include "hooks/torch/caller.h"
#include "trace/counters.h"
#include "trace/format.h"
#include "trace/phases.h"
#include "trace/trace.h"

#define FORK_HANDLERS_MAX 16

static char option_message[1024]; /* what options_load said; empty: nothing was wrong */
static castor_status option_status;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT, arena_once = PTHREAD_ONCE_INIT,
                      wake_once = PTHREAD_ONCE_INIT;
static _Atomic bool arena_serves;
static bool awake, agent_attached;
static bool is_beside;  /* loaded by the process itself, it intercepts nothing */
static pid_t awake_pid; /* the process that woke up itself: not its forked children */

static struct { void (*prepare)(void), (*parent)(void), (*child)(void); } fork_handlers[FORK_HANDLERS_MAX];
static unsigned fork_handler_count;

static void fork_prepare(void) {
    for (unsigned i = __atomic_load_n(&fork_handler_count, __ATOMIC_ACQUIRE); i-- > 0;)
        if (fork_handlers[i].prepare)
            fork_handlers[i].prepare();
    arena_fork_prepare();
}

static void fork_parent(void) {
    arena_fork_parent();
    for (unsigned i = 0; i < fork_handler_count; i++)
        if (fork_handlers[i].parent)
            fork_handlers[i].parent();
}

static void fork_child(void) {
    arena_fork_child();
    trace_fork_child();
    for (unsigned i = 0; i < fork_handler_count; i++)
        if (fork_handlers[i].child)
            fork_handlers[i].child();
}

/* Only once something is awake: a sleeping library has nothing to protect. */
static void fork_watch(void) {
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

castor_status start_fork_register(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
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
    pthread_once(&fork_once, fork_watch);
    return status;
}

/* A plugin without an engine leaves PyTorch's memory alone, unless the arena is asked for. */
static bool arena_wanted(void) {
    return options()->arena &&
           (plugin()->engine || option_set_by(OPTION_ID_arena) == OPTION_FROM_ENVIRONMENT);
}

static void arena_begin(void) {
    if (!arena_wanted())
        return;
    pthread_once(&fork_once, fork_watch);
    arena_serves = arena_start(options()->arena_retain) == CASTOR_OK;
    if (!arena_serves)
        LOG_W("no address space for the arena (is a memory limit set?); PyTorch's memory comes from the "
              "system's allocator");
}

bool start_arena(void) {
    pthread_once(&arena_once, arena_begin);
    return arena_serves;
}

void start_engine(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!start_arena())
        arena_begin();
    pthread_mutex_unlock(&lock);
    trace_plugin_set(plugin()->name);
}

static void exits(int status, void *context) {
    (void)context;
    trace_exit(status & 0xff);
}

static void wake(void) {
    awake_pid = getpid();
    on_exit(exits, NULL); /* without it the status is taken to be 0 */
    log_set_level((log_level)options()->log_level);
    pthread_once(&fork_once, fork_watch);
    caller_find_c10();
    start_arena();
    trace_start(options()->log_dir, options()->trace ? options()->trace_max : 0, options()->rank);
    trace_plugin_set(plugin()->name);
    hooks_resolve();
    anycall_start();
    __atomic_store_n(&awake, true, __ATOMIC_RELEASE);
}

bool start_is_awake(void) {
    return __atomic_load_n(&awake, __ATOMIC_ACQUIRE);
}

void start_beside(void) {
    is_beside = true;
    option_status = options_load(NULL, option_message, sizeof option_message);
    log_set_file(options()->log_file);
    log_set_said("", "");
}

castor_status start_wake(void) {
    if (is_beside)
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "the library is not in front of PyTorch: start the command by "
                         "castor run");
    __atomic_store_n(&agent_attached, true, __ATOMIC_RELEASE);
    pthread_once(&wake_once, wake);
    return option_status == CASTOR_OK ? CASTOR_OK : error_set(option_status, "%s", option_message);
}

void start_wake_by_hook(void) {
    pthread_once(&wake_once, wake);
}

static int torch_visit(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    return slash && strcmp(slash + 1, "libtorch_cpu.so") == 0;
}

/* The file `name` of the log directory, to append; -1: there is none. */
static int note_open(const char *name) {
    char path[OPTION_STRING_MAX + 16];
    if (!options()->log_dir[0])
        return -1;
    log_format(path, sizeof path, "%s/%s", options()->log_dir, name);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
}

static void note_write(int file, const char *name, const char *reason) {
    char text[2048];
    if (file < 0)
        return;
    size_t size = log_message(text, sizeof text - 1, "process %d: %s", (int)getpid(), reason);
    text[size++] = '\n';
    if (write(file, text, size) < 0)
        LOG_W("%s/%s could not be written: error %d", options()->log_dir, name, errno);
    close(file);
}

/* PyTorch was used and the agent was not reached: the run counts as passthrough. Says so, and leaves a file
 * that the report reads. */
static void passthrough_report(void) {
    static const char reason[] =
        "the agent was not reached: this process ran as plain PyTorch (python -I or -E, "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0, a PYTHONPATH that was replaced, or a torch before 2.5, keep "
        "PyTorch from calling it)";
    int file = note_open(TRACE_UNREACHED_NAME);
    if (option_status != CASTOR_OK)
        LOG_E("%s", option_message);
    if (file < 0 || !options()->job[0]) /* else `castor run` says so at the end of the job */
        LOG_W("%s", reason);
    note_write(file, TRACE_UNREACHED_NAME, reason);
}

bool start_is_unreached(void) {
    return !__atomic_load_n(&agent_attached, __ATOMIC_RELAXED) && plugin()->engine &&
           options()->on_error == CASTOR_ON_ERROR_ABORT;
}

void start_refuse(const char *reason) {
    struct stat note;
    const char *name = log_is_shown() ? TRACE_REFUSED_NAME : TRACE_REFUSED_UNSEEN_NAME;
    int file = note_open(name);
    /* Who finds it written knows that it has been said. Under the lock, since castor ends the other ranks when the first
     * one has ended: that must not be before the one that says it has done so. */
    if (file >= 0 && flock(file, LOCK_EX) == 0 && fstat(file, &note) == 0 && note.st_size > 0) {
        close(file);
        return;
    }
    if (file < 0 || log_is_shown())
        LOG_E("%s", reason);
    note_write(file, name, reason);
}

/* All that a process has from its environment. */
static void read_environment(void) {
    option_status = options_load(environ, option_message, sizeof option_message);
    log_set_file(options()->log_file);
    if (options()->job[0] && options()->log_dir[0]) {
        char said[OPTION_STRING_MAX + 16];
        log_format(said, sizeof said, "%s/" TRACE_SAID_NAME, options()->log_dir);
        log_set_said(said, options()->job);
    }
    files_start();
}

castor_status start_again(void) {
    read_environment();
    counters_reset(false); /* no child of another process of the job */
    return option_status == CASTOR_OK ? CASTOR_OK : error_set(option_status, "%s", option_message);
}

__attribute__((constructor)) static void start(void) {
    phases_start();
    read_environment();
    forking_start();
}

__attribute__((destructor)) static void stop(void) {
    bool own = awake_pid == getpid();
    /* Under CASTOR_ON_ERROR=abort a process that comes to its end has not trained, as workers do that load data. */
    bool reached = agent_attached || is_beside || start_is_unreached();
    if (!reached && (own || !awake_pid) && dl_iterate_phdr(torch_visit, NULL))
        passthrough_report();
    if (awake_pid) {
        anycall_stop();
        trace_flush();
    }
}
