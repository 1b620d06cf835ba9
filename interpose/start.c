#include "start.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "arena/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "job/begin.h"
#include "job/options.h"
#include "job/plugin.h"
#include "events/life.h"
#include "files/overlay.h"
#include "forking/forking.h"
#include "forking/joining.h"
#include "hooks/lookup/anycall.h"
#include "hooks/resolve.h"
#include "hooks/torch/caller.h"
#include "trace/counters.h"
#include "trace/format.h"
#include "trace/phases.h"
#include "trace/refusal.h"
#include "trace/trace.h"

static char option_message[1024]; /* what options_load said; empty: nothing was wrong */
static castor_status option_status;
static bool is_beside;  /* loaded by the process itself, it intercepts nothing */
static pid_t awake_pid; /* the process that woke up itself: not its forked children */

static castor_status options_verdict(void) {
    return option_status == CASTOR_OK ? CASTOR_OK : error_set(option_status, "%s", option_message);
}

void start_engine(void) {
    arena_serve_now();
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
    caller_find_c10();
    arena_serves();
    trace_start(options()->log_dir, options()->trace ? options()->trace_max : 0, options()->rank);
    trace_plugin_set(plugin()->name);
    hooks_resolve();
    anycall_start();
}

void start_beside(void) {
    is_beside = true;
    option_status = options_load(NULL, option_message, sizeof option_message);
    log_set_file(options()->log_file);
    log_set_said("", "");
}

/* The processes of a job say a line once. */
static void share_lines(void) {
    if (options()->job[0] && options()->log_dir[0]) {
        char said[OPTION_STRING_MAX + 16];
        log_format(said, sizeof said, "%s/" TRACE_SAID_NAME, options()->log_dir);
        log_set_said(said, options()->job);
    }
}

castor_status start_wake(void) {
    if (is_beside)
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "the library is not in front of PyTorch: start the command by "
                         "castor run");
    life_agent_attached();
    if (option_status == CASTOR_OK)
        option_status = job_begin(option_message, sizeof option_message);
    share_lines();
    life_wake();
    return options_verdict();
}

static int torch_visit(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    return slash && strcmp(slash + 1, "libtorch_cpu.so") == 0;
}

/* All that a process has from its environment. words: joining_begin's. */
static void read_environment(char *const *words) {
    option_status = options_load(environ, option_message, sizeof option_message);
    if (option_status == CASTOR_OK)
        option_status = joining_begin(words, option_message, sizeof option_message);
    log_set_file(options()->log_file);
    share_lines();
    files_start();
}

castor_status start_again(void) {
    read_environment(NULL);
    counters_reset(false); /* no child of another process of the job */
    return options_verdict();
}

/* glibc hands constructors the words of the process. */
__attribute__((constructor)) static void start(int count, char **words) {
    (void)count;
    life_listen(wake, hooks_resolve);
    /* First, so that other handlers may allocate while they prepare, and the trace is the child's own before they run. */
    life_fork_list(arena_fork_prepare, arena_fork_parent, arena_fork_child);
    life_fork_list(NULL, NULL, trace_fork_child);
    phases_start();
    read_environment(words);
    forking_start();
}

__attribute__((destructor)) static void stop(void) {
    bool own = awake_pid == getpid();
    /* Under CASTOR_ON_ERROR=abort a process that comes to its end has not trained, as workers do that load data. */
    bool reached = life_has_agent() || is_beside || refusal_is_due();
    if (!reached && (own || !awake_pid) && dl_iterate_phdr(torch_visit, NULL)) {
        if (option_status != CASTOR_OK)
            LOG_E("%s", option_message);
        refusal_of_agent();
    }
    if (awake_pid) {
        anycall_stop();
        trace_flush();
    }
    joining_end();
}
