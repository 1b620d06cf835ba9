#include "ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "job/ends.h"
#include "base/log.h"
#include "job/meeting.h"
#include "job/options.h"
#include "launcher/job/first_failure.h"

enum {
    SAY_MS = 1500,      /* until SIGTERM: ranks that share a store notice the failure and say what they did */
    END_MS = 4000,      /* from SIGTERM to SIGKILL, for the other ranks when one has failed */
    LEFTOVER_MS = 1000, /* the same for what ranks left behind */
    LATEST_MS = 300,    /* ... but no later than this after END_MS */
    KILL_STEP_MS = 50,  /* between rounds of SIGKILL: descendants appear as their parents end */
    KILL_ROUNDS = 40,
    LOOK_MS = 1000, /* between looks at the note of a process that has refused the job */
};

int64_t run_now_ms(void) {
    return (int64_t)(clock_ns(CLOCK_MONOTONIC) / 1000000u);
}

/* ---- watching ---- */

static bool has_failed(int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Counted before the signal is sent. */
static void describe_signal(const rank_set *s, int number, char *out, size_t out_size) {
    char fallback[24];
    uint64_t by_group = 0, by_kernel = 0;
    if (number == SIGKILL)
        run_kills_since("", &s->kills, &by_group, &by_kernel);
    if (by_group + by_kernel > 0)
        log_format(out, out_size, "was killed for memory, by %s (signal %d, SIGKILL)",
                   by_group ? "the limit of its control group" : "the kernel", number);
    else
        log_format(out, out_size, "was ended by signal %d (%s%s)", number, job_signal_name(number, fallback),
                   number == SIGKILL ? "; the kernel has counted no kill for memory here" : "");
}

static void report_failure(const rank_set *s, int rank) {
    int status = s->ranks[rank].status;
    char who[32] = "the command", how[128];
    if (run_outcome_refused(s->job))
        return; /* the library has said why */
    if (s->count > 1)
        log_format(who, sizeof who, "rank %d", rank);
    if (WIFSIGNALED(status))
        describe_signal(s, WTERMSIG(status), how, sizeof how);
    else if (s->count > 1)
        log_format(how, sizeof how, "exited with status %d", WEXITSTATUS(status));
    else
        return; /* the command has said why */
    if (rank > 0 && !s->job->request->all_output)
        ranks_errors_show(s->job, rank);
    LOG_E("%s %s%s", who, how, s->running ? "; ending the other ranks" : "");
    char path[PATH_MAX + 32];
    struct stat info;
    run_files_path(&s->job->directory, path, sizeof path);
    if (rank > 0)
        run_files_tell_full(path);
    ranks_output_path(s->job, rank, path, sizeof path);
    if (rank > 0 && !s->job->request->all_output && stat(path, &info) == 0 && info.st_size > 0)
        LOG_I("its standard output is in %s", path);
}

static void tell_to_end(rank_set *s) {
    s->term_ms = 0;
    if (!s->told_to_end) /* a second signal would interrupt the clean-up that the first one began */
        ranks_signal(s, SIGTERM);
    ranks_signal(s, SIGCONT); /* a stopped process does not see it before */
}

static void rank_ended(rank_set *s, int rank, int status) {
    /* A process that the rank has started refused, and ended it. */
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM && run_outcome_refused(s->job))
        status = W_EXITCODE(EXIT_FAILURE, 0);
    if (rank == 0)
        forking_close(s); /* who ends before PyTorch is imported needs no other ranks */
    s->ranks[rank] = (rank_process){0, status};
    s->running--;
    if (!has_failed(status) && s->running && !ended_tell(s->job->token, rank))
        LOG_W("the other ranks cannot be told that rank %d has ended (%s)", rank, strerror(errno));
    if (!has_failed(status) || s->failed >= 0)
        return;
    s->failed = rank;
    report_failure(s, rank);
    if (!s->running)
        return;
    s->end_ms = run_now_ms() + END_MS;
    if (!s->told_to_end)
        s->term_ms = run_now_ms() + SAY_MS;
    else
        tell_to_end(s);
}

static void reap(rank_set *s) {
    forking_answer(s); /* rank 0 may have asked before it ended */
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        if (pid == s->guard.pid)
            s->guard.pid = 0;
        else if (has_failed(status))
            ends_write(s->job->directory.path, (int)pid, WIFSIGNALED(status) ? ENDS_SIGNAL : ENDS_STATUS,
                       (uint64_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
        for (int rank = 0; rank < s->count; rank++)
            if (s->ranks[rank].pid == pid) {
                rank_ended(s, rank, status);
                break;
            }
    }
}

static void forward(rank_set *s, const siginfo_t *info) {
    int signal = info->si_signo;
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) {
        s->told_to_end = true;
        ends_write(s->job->directory.path, (int)getpid(), ENDS_TOLD, (uint64_t)signal);
    }
    if (info->si_code == SI_KERNEL) { /* from the terminal, for castor's process group */
        if (s->group)
            kill(-s->group, signal);
    } else {
        ranks_signal(s, signal);
    }
}

/* Stops the ranks and castor itself, as the terminal's Ctrl-Z asks. Returns when castor goes on. */
static void suspend(rank_set *s, const siginfo_t *info) {
    sigset_t stop;
    forward(s, info);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop,
                NULL); /* castor stops here, unless nobody could wake it (an orphaned group) */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    ranks_signal(s, SIGCONT);
    if (s->group)
        kill(-s->group, SIGCONT);
}

/* Takes one signal, or returns 0 when `wait_ms` have passed (-1: waits for ever). */
static int take_signal(rank_set *s, int64_t wait_ms) {
    siginfo_t info;
    struct timespec limit = {wait_ms / 1000, wait_ms % 1000 * 1000000};
    int signal = sigtimedwait(&s->waited, &info, wait_ms < 0 ? NULL : &limit);
    if (signal <= 0)
        return 0;
    if (signal == SIGCHLD)
        reap(s);
    else if (signal == SIGTSTP)
        suspend(s, &info);
    else if (signal == SIGCONT) {
        ranks_signal(s, SIGCONT);
        if (s->group)
            kill(-s->group, SIGCONT);
    } else
        forward(s, &info);
    return signal;
}

/* A process of the job has refused it, and the ranks still run: they may not have started that process themselves, or its exit
 * may mean nothing to them. */
static void check_refusal(rank_set *s) {
    if (s->end_ms || !run_outcome_refused(s->job))
        return;
    s->term_ms = run_now_ms() + SAY_MS;
    s->end_ms = run_now_ms() + END_MS;
}

static int64_t watch_wait_ms(const rank_set *s) {
    int64_t stall = run_stall_wait_ms(&s->stall);
    return stall < 0 || stall > LOOK_MS ? LOOK_MS : stall;
}

static void watch(rank_set *s) {
    int rounds = 0;
    while (s->running > 0 && rounds < KILL_ROUNDS) {
        int64_t left = s->end_ms ? s->end_ms - run_now_ms() : watch_wait_ms(s);
        if (s->end_ms && left <= 0) {
            ranks_signal(s, SIGKILL);
            left = KILL_STEP_MS;
            rounds++;
            take_signal(s, left);
            continue;
        }
        int64_t until_term = s->term_ms ? s->term_ms - run_now_ms() : 0;
        if (s->term_ms && until_term <= 0)
            tell_to_end(s);
        take_signal(s, until_term > 0 && until_term < left ? until_term : left);
        if (!s->end_ms)
            run_stall_check(&s->stall);
        check_refusal(s);
        forking_check(s);
    }
    run_stall_end(&s->stall);
    if (s->running > 0)
        LOG_W("%d ranks do not end after SIGKILL (waiting for a device or a file system?)", s->running);
}

/* ---- ending ---- */

/* Waits until no child is left that `same_session` selects, for at most `wait_ms`. */
static bool wait_for_leftovers(rank_set *s, bool same_session, int64_t wait_ms) {
    int64_t until = run_now_ms() + wait_ms;
    for (;;) {
        reap(s);
        if (!run_children_signal(s->guard.pid, same_session, 0))
            return true;
        int64_t left = until - run_now_ms();
        if (left <= 0)
            return false;
        take_signal(s, left < KILL_STEP_MS ? left : KILL_STEP_MS);
    }
}

/* Ends what the ranks left running.
 *
 * A single command that ended by itself may leave what it likes, as without castor. After a failure of a
 * rank, a signal or a refusal, everything goes. After a good end of several ranks, only those go that did not make
 * themselves independent by a session of their own; they get a moment to end by themselves. */
static void end_leftovers(rank_set *s) {
    bool failed = s->failed >= 0;
    bool signaled = failed && WIFSIGNALED(s->ranks[s->failed].status);
    bool everything = s->told_to_end || signaled || (failed && s->count > 1) || run_outcome_refused(s->job);
    if (!everything && s->count == 1)
        return;
    bool same_session = !everything;
    if (wait_for_leftovers(s, same_session, everything ? 0 : LEFTOVER_MS))
        return;
    size_t count = run_children_signal(s->guard.pid, same_session, SIGTERM);
    run_children_signal(s->guard.pid, same_session, SIGCONT);
    if (!everything && count)
        LOG_I("ended %zu %s that the ranks left running", count, count == 1 ? "process" : "processes");
    int64_t patience = LEFTOVER_MS;
    if (s->end_ms && s->end_ms + LATEST_MS - run_now_ms() < patience)
        patience = s->end_ms + LATEST_MS - run_now_ms();
    if (wait_for_leftovers(s, same_session, patience))
        return;
    for (int round = 0; round < KILL_ROUNDS; round++) {
        run_children_signal(s->guard.pid, same_session, SIGKILL);
        if (wait_for_leftovers(s, same_session, KILL_STEP_MS))
            return;
    }
}

static int exit_status(const rank_set *s) {
    if (s->failed < 0)
        return s->running || run_outcome_refused(s->job) ? RUN_EXIT_SYSTEM : 0;
    int status = s->ranks[s->failed].status;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* For the report, where something has not ended well. */
static void note_end(const rank_set *s, int status) {
    const char *directory = s->job->directory.path;
    uint64_t by_group, by_kernel;
    if (!status && !ends_exist(directory))
        return;
    run_kills_since("", &s->kills, &by_group, &by_kernel);
    if (by_group)
        ends_write(directory, (int)getpid(), ENDS_KILLED_GROUP, by_group);
    if (by_kernel)
        ends_write(directory, (int)getpid(), ENDS_KILLED, by_kernel);
    ends_write(directory, (int)getpid(), ENDS_JOB, (uint64_t)status);
}

int run_ranks(const run_job *job, char *const *base, bool *started) {
    rank_set s = {.job = job,
                  .base = base,
                  .count = job->request->ranks,
                  .failed = -1,
                  .line = -1,
                  .guard = {.line = -1}};
    char files[PATH_MAX + 16];
    *started = false;
    s.ranks = calloc((size_t)s.count, sizeof *s.ranks);
    if (!s.ranks) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ranks_signals_take(&s);
    int status = RUN_EXIT_SYSTEM;
    run_files_path(&job->directory, files, sizeof files);
    run_kills_read("", &s.kills);
    if (!run_guard_start(job, files, &s.guard))
        LOG_E("no process can be started: %s", strerror(errno));
    else
        status = ranks_start(&s);
    if (!status) {
        *started = true;
        run_stall_start(&s.stall, job->directory.path, options()->stall_seconds);
        watch(&s);
        end_leftovers(&s);
        status = s.start_status ? s.start_status : exit_status(&s);
        note_end(&s, status);
    }
    run_files_remove(files);
    forking_close(&s);
    run_guard_dismiss(&s.guard);
    ranks_signals_give_back(&s);
    free(s.ranks);
    return status;
}
