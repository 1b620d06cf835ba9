#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "core/log.h"

/* Signals and process groups. castor blocks the signals that it handles and takes them one at a time.
 *
 * - Ranks are in a process group of their own, so that what is sent to castor's group (timeout(1) does that)
 *   reaches them once: through castor. Where castor has the terminal, rank 0 (the only rank that reads it)
 * stays in castor's group, which the terminal signals by itself; such signals go on to the other ranks only.
 * - A signal that a process sent to castor goes to the ranks, not to their descendants, as if it had been
 * sent to the command.
 * - castor is the reaper of the job: descendants whose parents have ended become its children, and are ended
 * with the job (see `end_leftovers` for when). */

enum {
    END_MS = 4000,      /* from SIGTERM to SIGKILL, for the other ranks when one has failed */
    LEFTOVER_MS = 1000, /* the same for what ranks left behind */
    LATEST_MS = 300,    /* ... but no later than this after END_MS */
    KILL_STEP_MS = 50,  /* between rounds of SIGKILL: descendants appear as their parents end */
    KILL_ROUNDS = 40,
};

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

typedef struct rank_process {
    pid_t pid; /* 0: not started, or reaped */
    int status;
} rank_process;

typedef struct supervisor {
    const run_job *job;
    rank_process *ranks;
    int count, running;
    bool terminal_shared; /* rank 0 is in castor's own process group */
    pid_t group;          /* of the other ranks; 0: none */
    run_guard guard;
    int failed;       /* the first rank that failed, or -1 */
    bool told_to_end; /* a signal that ends a process was passed on */
    int64_t end_ms;   /* when ranks that still run are killed; 0: nothing has failed */
    sigset_t waited, mask_before;
    struct sigaction child_before;
} supervisor;

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void signal_ranks(const supervisor *s, int signal) {
    for (int rank = 0; rank < s->count; rank++)
        if (s->ranks[rank].pid > 0)
            kill(s->ranks[rank].pid, signal);
}

/* ---- starting ---- */

static bool terminal_is_shared(void) {
    int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0)
        return false;
    pid_t foreground = tcgetpgrp(terminal);
    close(terminal);
    /* In the background only a job of a shell can come to the foreground, and of that castor is the leader.
     */
    return foreground >= 0 && (foreground == getpgrp() || getpid() == getpgrp());
}

static void signals_take(supervisor *s) {
    sigset_t blocked;
    struct sigaction action;
    sigemptyset(&s->waited);
    sigaddset(&s->waited, SIGCHLD);
    sigaddset(&s->waited, SIGCONT);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        if (sigaction(forwarded[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&s->waited, forwarded[i]); /* the ranks inherit what is ignored */
    if (sigaction(SIGTSTP, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
        sigaddset(&s->waited, SIGTSTP);
    blocked = s->waited;
    sigaddset(&blocked, SIGPIPE); /* standard error may be gone */
    sigprocmask(SIG_BLOCK, &blocked, &s->mask_before);
    struct sigaction plain = {.sa_handler = SIG_DFL}; /* where it is ignored, statuses are lost */
    sigaction(SIGCHLD, &plain, &s->child_before);
}

static void signals_give_back(const supervisor *s) {
    sigaction(SIGCHLD, &s->child_before, NULL);
    sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
}

/* The pipes of the start. Nobody executes anything before all ranks are there: `go` holds them back, and
 * closing it unwritten sends them away. `errors` carries the errno of an exec that failed, and ends when all
 * are through. */
typedef struct start_pipes {
    int go[2], errors[2];
} start_pipes;

static void child_run(const supervisor *s, const start_pipes *pipes, int rank, int out,
                      char *const *environment, pid_t castor) {
    bool apart = rank > 0 || !s->terminal_shared;
    if (apart)
        setpgid(0, s->group);
    close(pipes->go[1]);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    char word;
    if (getppid() != castor || read(pipes->go[0], &word, 1) != 1)
        _exit(RUN_EXIT_SYSTEM);
    int failure = 0;
    if (rank > 0) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing < 0 || (nothing != STDIN_FILENO && dup2(nothing, STDIN_FILENO) < 0))
            failure = errno;
        if (nothing > STDERR_FILENO)
            close(nothing);
    }
    if (out >= 0 && dup2(out, STDOUT_FILENO) < 0)
        failure = errno;
    if (!failure) {
        signals_give_back(s);
        execvpe(s->job->command, s->job->request->command,
                environment); /* sh for a script that names nobody */
        failure = errno;
    }
    if (write(pipes->errors[1], &failure, sizeof failure) < 0)
        failure = 0;
    _exit(RUN_EXIT_NOT_FOUND);
}

static void rank_output_path(const run_job *job, int rank, char *out, size_t out_size) {
    log_format(out, out_size, "%s/rank%d.out", job->directory.path, rank);
}

static int start_rank(supervisor *s, const start_pipes *pipes, int rank, char *const *base) {
    char path[PATH_MAX + 32];
    run_environment environment;
    int out = -1, status = RUN_EXIT_SYSTEM;
    pid_t castor = getpid();
    if (!run_environment_build(s->job, base, rank, &environment)) {
        LOG_E("out of memory; nothing was started");
        return status;
    }
    if (rank > 0 && !s->job->request->all_output) {
        rank_output_path(s->job, rank, path, sizeof path);
        out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (out < 0) {
            LOG_E("%s cannot be written: %s; nothing was started", path, strerror(errno));
            goto done;
        }
    }
    pid_t pid = fork();
    if (pid == 0)
        child_run(s, pipes, rank, out, environment.entries, castor);
    if (pid < 0) {
        LOG_E("rank %d of %d cannot be started: %s; nothing was started", rank, s->count, strerror(errno));
        goto done;
    }
    s->ranks[rank].pid = pid;
    s->running++;
    if (rank > 0 || !s->terminal_shared) {
        if (!s->group)
            s->group = pid;
        setpgid(pid, s->group); /* the child does so too: whoever comes first */
    }
    status = 0;
done:
    if (out >= 0)
        close(out);
    run_environment_free(&environment);
    return status;
}

static void remove_outputs(const supervisor *s) {
    char path[PATH_MAX + 32];
    for (int rank = 1; rank < s->count && !s->job->request->all_output; rank++) {
        rank_output_path(s->job, rank, path, sizeof path);
        unlink(path);
    }
}

static void reap_all(supervisor *s) {
    for (int rank = 0; rank < s->count; rank++) {
        if (s->ranks[rank].pid > 0)
            while (waitpid(s->ranks[rank].pid, NULL, 0) < 0 && errno == EINTR)
                ;
        s->ranks[rank].pid = 0;
    }
    s->running = 0;
}

/* An exec that failed with `failure` fails in all ranks: they execute the same file. */
static int refuse_exec(const supervisor *s, int failure) {
    const char *name = s->job->request->command[0];
    if (failure == ENOENT) {
        LOG_E("%s: the interpreter that its first line names, or its dynamic linker, does not exist", name);
        return RUN_EXIT_NOT_FOUND;
    }
    if (failure == E2BIG)
        LOG_E("%s: the arguments and the environment are too long", name);
    else
        LOG_E("%s: cannot be executed: %s", name, strerror(failure));
    return RUN_EXIT_NOT_EXECUTABLE;
}

static int start_all(supervisor *s, char *const *base) {
    start_pipes pipes = {{-1, -1}, {-1, -1}};
    int status = RUN_EXIT_SYSTEM, failure = 0;
    if (pipe2(pipes.go, O_CLOEXEC) != 0 || pipe2(pipes.errors, O_CLOEXEC) != 0) {
        LOG_E("no pipe to start the command: %s", strerror(errno));
        goto done;
    }
    status = 0;
    for (int rank = 0; rank < s->count && !status; rank++)
        status = start_rank(s, &pipes, rank, base);
    for (int rank = 0; rank < s->count && !status; rank++)
        if (write(pipes.go[1], "", 1) != 1)
            status = RUN_EXIT_SYSTEM;
    close(pipes.go[1]);
    pipes.go[1] = -1;
    close(pipes.errors[1]);
    pipes.errors[1] = -1;
    ssize_t length;
    do {
        length = read(pipes.errors[0], &failure, sizeof failure);
    } while (length < 0 && errno == EINTR);
    if (!status && length == sizeof failure)
        status = refuse_exec(s, failure);
    if (status) {
        signal_ranks(s, SIGKILL);
        reap_all(s);
        remove_outputs(s);
    }
done:
    for (int i = 0; i < 2; i++) {
        if (pipes.go[i] >= 0)
            close(pipes.go[i]);
        if (pipes.errors[i] >= 0)
            close(pipes.errors[i]);
    }
    return status;
}

/* ---- watching ---- */

static const char *signal_name(int number) {
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
        {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"},
        {SIGSEGV, "SIGSEGV"}, {SIGPIPE, "SIGPIPE"}, {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"},
        {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number)
            return names[i].name;
    return "a signal without a name here";
}

static bool has_failed(int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void report_failure(const supervisor *s, int rank) {
    int status = s->ranks[rank].status;
    char who[32] = "the command", how[128];
    if (s->count > 1)
        log_format(who, sizeof who, "rank %d", rank);
    if (WIFSIGNALED(status))
        log_format(how, sizeof how, "was ended by signal %d (%s%s)", WTERMSIG(status),
                   signal_name(WTERMSIG(status)),
                   WTERMSIG(status) == SIGKILL ? "; the kernel sends it when memory is out" : "");
    else if (s->count > 1)
        log_format(how, sizeof how, "exited with status %d", WEXITSTATUS(status));
    else
        return; /* the command has said why */
    LOG_E("%s %s%s", who, how, s->running ? "; ending the other ranks" : "");
    char path[PATH_MAX + 32];
    if (rank > 0 && !s->job->request->all_output) {
        rank_output_path(s->job, rank, path, sizeof path);
        LOG_I("its standard output is in %s", path);
    }
}

static void rank_ended(supervisor *s, int rank, int status) {
    s->ranks[rank] = (rank_process){0, status};
    s->running--;
    if (!has_failed(status) || s->failed >= 0)
        return;
    s->failed = rank;
    report_failure(s, rank);
    if (!s->running)
        return;
    if (!s->told_to_end) /* a second signal would interrupt the clean-up that the first one began */
        signal_ranks(s, SIGTERM);
    signal_ranks(s, SIGCONT); /* a stopped process does not see it before */
    s->end_ms = now_ms() + END_MS;
}

static void reap(supervisor *s) {
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        if (pid == s->guard.pid)
            s->guard.pid = 0;
        for (int rank = 0; rank < s->count; rank++)
            if (s->ranks[rank].pid == pid) {
                rank_ended(s, rank, status);
                break;
            }
    }
}

static void forward(supervisor *s, const siginfo_t *info) {
    int signal = info->si_signo;
    if (info->si_code == SI_KERNEL) { /* from the terminal, for castor's process group */
        if (s->group)
            kill(-s->group, signal);
    } else {
        signal_ranks(s, signal);
    }
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
        s->told_to_end = true;
}

/* Stops the ranks and castor itself, as the terminal's Ctrl-Z asks. Returns when castor goes on. */
static void suspend(supervisor *s, const siginfo_t *info) {
    sigset_t stop;
    forward(s, info);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop,
                NULL); /* castor stops here, unless nobody could wake it (an orphaned group) */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    signal_ranks(s, SIGCONT);
    if (s->group)
        kill(-s->group, SIGCONT);
}

/* Takes one signal, or returns 0 when `wait_ms` have passed (-1: waits for ever). */
static int take_signal(supervisor *s, int64_t wait_ms) {
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
        signal_ranks(s, SIGCONT);
        if (s->group)
            kill(-s->group, SIGCONT);
    } else
        forward(s, &info);
    return signal;
}

static void watch(supervisor *s) {
    int rounds = 0;
    while (s->running > 0 && rounds < KILL_ROUNDS) {
        int64_t left = s->end_ms ? s->end_ms - now_ms() : -1;
        if (s->end_ms && left <= 0) {
            signal_ranks(s, SIGKILL);
            left = KILL_STEP_MS;
            rounds++;
            take_signal(s, left);
            continue;
        }
        take_signal(s, left);
    }
    if (s->running > 0)
        LOG_W("%d ranks do not end after SIGKILL (waiting for a device or a file system?)", s->running);
}

/* ---- ending ---- */

/* Waits until no child is left that `same_session` selects, for at most `wait_ms`. */
static bool wait_for_leftovers(supervisor *s, bool same_session, int64_t wait_ms) {
    int64_t until = now_ms() + wait_ms;
    for (;;) {
        reap(s);
        if (!run_children_signal(s->guard.pid, same_session, 0))
            return true;
        int64_t left = until - now_ms();
        if (left <= 0)
            return false;
        take_signal(s, left < KILL_STEP_MS ? left : KILL_STEP_MS);
    }
}

/* Ends what the ranks left running.
 *
 * A single command that ended by itself may leave what it likes, as without castor. After a failure of a
 * rank, or a signal, everything goes. After a good end of several ranks, only those go that did not make
 * themselves independent by a session of their own; they get a moment to end by themselves. */
static void end_leftovers(supervisor *s) {
    bool failed = s->failed >= 0;
    bool signaled = failed && WIFSIGNALED(s->ranks[s->failed].status);
    bool everything = s->told_to_end || signaled || (failed && s->count > 1);
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
    if (s->end_ms && s->end_ms + LATEST_MS - now_ms() < patience)
        patience = s->end_ms + LATEST_MS - now_ms();
    if (wait_for_leftovers(s, same_session, patience))
        return;
    for (int round = 0; round < KILL_ROUNDS; round++) {
        run_children_signal(s->guard.pid, same_session, SIGKILL);
        if (wait_for_leftovers(s, same_session, KILL_STEP_MS))
            return;
    }
}

static int exit_status(const supervisor *s) {
    if (s->failed < 0)
        return s->running ? RUN_EXIT_SYSTEM : 0;
    int status = s->ranks[s->failed].status;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int run_ranks(const run_job *job, char *const *base, bool *started) {
    supervisor s = {.job = job, .count = job->request->ranks, .failed = -1, .guard = {.line = -1}};
    *started = false;
    s.ranks = calloc((size_t)s.count, sizeof *s.ranks);
    if (!s.ranks) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    s.terminal_shared = terminal_is_shared();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signals_take(&s);
    int status = RUN_EXIT_SYSTEM;
    if (!run_guard_start(job->token, &s.guard))
        LOG_E("no process can be started: %s", strerror(errno));
    else
        status = start_all(&s, base);
    if (!status) {
        *started = true;
        watch(&s);
        end_leftovers(&s);
        status = exit_status(&s);
    }
    run_guard_dismiss(&s.guard);
    signals_give_back(&s);
    free(s.ranks);
    return status;
}
