/* The ranks of a job: they are started, watched and ended.
 *
 * Signals and process groups. castor blocks the signals that it handles and takes them one at a time.
 *
 * - Ranks are in a process group of their own, so that a signal to castor's group (timeout(1) sends one)
 *   reaches them once: through castor. Where castor has the terminal, rank 0 (the only rank that reads it)
 *   stays in castor's group, which the terminal signals by itself; such signals go on to the other ranks only.
 * - A signal that a process sent to castor goes to the ranks, not to their descendants, as if it had been sent
 *   to the command.
 * - castor is the reaper of the job: descendants whose parents have ended become its children, and are ended
 *   with the job. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "job/ends.h"
#include "job/fork_line.h"
#include "job/meeting.h"
#include "job/options.h"
#include "launcher/job/first_failure.h"
#include "kills.h"
#include "run.h"
#include "stall.h"

typedef struct rank_process {
    pid_t pid; /* 0: not started, or reaped */
    int status;
} rank_process;

typedef struct rank_set {
    const run_job *job;
    char *const *base; /* castor's environment */
    rank_process *ranks;
    int count, running;
    bool terminal_shared;  /* rank 0 is in castor's own process group */
    pid_t group;           /* of the other ranks; 0: none */
    int line;              /* to rank 0, which may fork the other ranks; -1: they are started, or cannot be */
    int64_t line_until_ms; /* when they are started in any case */
    int start_status;      /* as ranks_start's */
    run_guard guard;
    run_stall stall;
    run_kills kills;  /* before the ranks */
    int failed;       /* the first rank that failed, or -1 */
    bool told_to_end; /* a signal that ends a process was passed on */
    int64_t term_ms;  /* when ranks that still run get SIGTERM; 0: done */
    int64_t end_ms;   /* when they are killed; 0: nothing has failed */
    sigset_t waited, mask_before;
    struct sigaction child_before;
} rank_set;

static void forking_close(rank_set *s);
static int forking_open(rank_set *s);
static int64_t run_now_ms(void);

/* Standard error of the ranks other than 0: a file of the log directory, of which the end is shown when the rank fails. */

enum { TAIL_BYTES = 8192, TAIL_LINES = 20 };

/* The file of its standard error. */
static void ranks_errors_path(const run_job *job, int rank, char *out, size_t out_size) {
    log_format(out, out_size, "%s/" LINE_ERRORS_NAME, job->directory.path, rank);
}

/* What is left of a line that a progress bar has written over. */
static char *visible(char *line) {
    size_t length = strlen(line);
    while (length && line[length - 1] == '\r')
        line[--length] = '\0';
    char *last = strrchr(line, '\r');
    return last ? last + 1 : line;
}

static void show(char *text, int rank) {
    char *lines[TAIL_LINES], shown[TAIL_BYTES + TAIL_LINES * 32];
    size_t count = 0, used = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (*visible(line))
            lines[count++ % TAIL_LINES] = visible(line);
    for (size_t i = count > TAIL_LINES ? count - TAIL_LINES : 0; i < count; i++)
        used += log_format(shown + used, sizeof shown - used, "[rank%d]: %s\n", rank, lines[i % TAIL_LINES]);
    if (used && write(STDERR_FILENO, shown, used) < 0)
        return;
}

/* Shows the end of that file, as far as it has not been shown. */
static void ranks_errors_show(const run_job *job, int rank) {
    char path[PATH_MAX + 32], text[TAIL_BYTES + 1];
    ranks_errors_path(job, rank, path, sizeof path);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    long begin = fseek(file, -TAIL_BYTES, SEEK_END) == 0 ? ftell(file) : 0;
    if (begin == 0)
        rewind(file);
    size_t length = fread(text, 1, TAIL_BYTES, file);
    fclose(file);
    text[length] = '\0';
    char *from = memrchr(text, '\0', length); /* up to here the rank has shown it itself (log_say) */
    from = from ? from + 1 : text;
    if (from == text && begin > 0 && strchr(text, '\n'))
        from = strchr(text, '\n') + 1; /* the first line is cut */
    show(from, rank);
}

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static void ranks_signal(const rank_set *s, int signal) {
    for (int rank = 0; rank < s->count; rank++)
        if (s->ranks[rank].pid > 0)
            kill(s->ranks[rank].pid, signal);
}

/* The file of a rank's standard output, when it is not passed on. */
static void ranks_output_path(const run_job *job, int rank, char *out, size_t out_size) {
    log_format(out, out_size, "%s/" LINE_OUTPUT_NAME, job->directory.path, rank);
}

static bool terminal_is_shared(void) {
    int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0)
        return false;
    pid_t foreground = tcgetpgrp(terminal);
    close(terminal);
    /* In the background only a job of a shell can come to the foreground, and of that castor is the leader. */
    return foreground >= 0 && (foreground == getpgrp() || getpid() == getpgrp());
}

/* Blocks the signals that castor handles; the ranks get the earlier settings back. */
static void ranks_signals_take(rank_set *s) {
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

static void ranks_signals_give_back(const rank_set *s) {
    sigaction(SIGCHLD, &s->child_before, NULL);
    sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
}

/* The pipes of the start. Nobody executes anything before all ranks are there: `go` holds them back, and
 * closing it unwritten sends them away. `errors` carries the errno of an exec that failed, and ends when all
 * are through. */
typedef struct start_pipes {
    int go[2], errors[2];
} start_pipes;

/* Where a rank writes to; -1: where castor does. */
typedef struct rank_streams {
    int out, errors;
    int log; /* Castor's own lines go here, where `errors` is a file */
} rank_streams;

/* line: rank 0's end of the line to castor; -1: it has none. */
static void child_run(const rank_set *s, const start_pipes *pipes, int rank, const rank_streams *streams,
                      int line, char *const *environment, pid_t castor) {
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
    if (streams->out >= 0 && dup2(streams->out, STDOUT_FILENO) < 0)
        failure = errno;
    if (streams->errors >= 0 && dup2(streams->errors, STDERR_FILENO) < 0)
        failure = errno;
    if (streams->log >= 0)
        fcntl(streams->log, F_SETFD, 0);
    if (line >= 0)
        fcntl(line, F_SETFD, 0);
    if (!failure) {
        ranks_signals_give_back(s);
        execvpe(s->job->command, s->job->request->command,
                environment); /* sh for a script that names nobody */
        failure = errno;
    }
    if (write(pipes->errors[1], &failure, sizeof failure) < 0)
        failure = 0;
    _exit(RUN_EXIT_NOT_FOUND);
}

static void streams_close(rank_streams *streams) {
    int files[] = {streams->out, streams->errors, streams->log};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
}

static int output_open(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        LOG_E("%s cannot be written: %s; nothing was started", path, strerror(errno));
    return file;
}

/* Of ranks other than 0 only Castor's own lines are passed on. */
static bool streams_open(const rank_set *s, int rank, rank_streams *streams) {
    char path[PATH_MAX + 32];
    *streams = (rank_streams){-1, -1, -1};
    if (rank == 0 || s->job->request->all_output)
        return true;
    ranks_output_path(s->job, rank, path, sizeof path);
    streams->out = output_open(path);
    if (streams->out < 0)
        return false;
    ranks_errors_path(s->job, rank, path, sizeof path);
    streams->errors = output_open(path);
    streams->log = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, LINE_FILE_MIN);
    return streams->errors >= 0;
}

/* Puts a process into the ranks' process group. */
static void ranks_join_group(rank_set *s, int rank, pid_t pid) {
    if (rank == 0 && s->terminal_shared)
        return;
    if (!s->group)
        s->group = pid;
    setpgid(pid, s->group); /* a child that castor has started does so too: whoever comes first */
}

static int start_rank(rank_set *s, const start_pipes *pipes, int rank, int line) {
    run_environment environment;
    rank_streams streams;
    int status = RUN_EXIT_SYSTEM;
    pid_t castor = getpid();
    if (!streams_open(s, rank, &streams)) {
        streams_close(&streams);
        return status;
    }
    if (!run_environment_build(s->job, s->base, rank, streams.log, line, &environment)) {
        LOG_E("out of memory; nothing was started");
        streams_close(&streams);
        return status;
    }
    pid_t pid = fork();
    if (pid == 0)
        child_run(s, pipes, rank, &streams, line, environment.entries, castor);
    if (pid < 0) {
        LOG_E("rank %d of %d cannot be started: %s; nothing was started", rank, s->count, strerror(errno));
        goto done;
    }
    s->ranks[rank].pid = pid;
    s->running++;
    ranks_join_group(s, rank, pid);
    status = 0;
done:
    streams_close(&streams);
    run_environment_free(&environment);
    return status;
}

static void remove_outputs(const rank_set *s) {
    char path[PATH_MAX + 32];
    for (int rank = 1; rank < s->count && !s->job->request->all_output; rank++) {
        ranks_output_path(s->job, rank, path, sizeof path);
        unlink(path);
        ranks_errors_path(s->job, rank, path, sizeof path);
        unlink(path);
    }
}

static void reap_all(rank_set *s) {
    for (int rank = 0; rank < s->count; rank++) {
        if (s->ranks[rank].pid > 0)
            while (waitpid(s->ranks[rank].pid, NULL, 0) < 0 && errno == EINTR)
                ;
        s->ranks[rank].pid = 0;
    }
    s->running = 0;
}

/* An exec that failed with `failure` fails in all ranks: they execute the same file. */
static int refuse_exec(const rank_set *s, int failure) {
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

/* Ranks first to last - 1: all, or none. `line`: as start_rank's, of rank 0. */
static int start_some(rank_set *s, int first, int last, int line) {
    start_pipes pipes = {{-1, -1}, {-1, -1}};
    int status = RUN_EXIT_SYSTEM, failure = 0;
    if (pipe2(pipes.go, O_CLOEXEC) != 0 || pipe2(pipes.errors, O_CLOEXEC) != 0) {
        LOG_E("no pipe to start the command: %s", strerror(errno));
        goto done;
    }
    status = 0;
    for (int rank = first; rank < last && !status; rank++)
        status = start_rank(s, &pipes, rank, rank == 0 ? line : -1);
    for (int rank = first; rank < last && !status; rank++)
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
        ranks_signal(s, SIGKILL);
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

/* Starts all ranks, or none; rank 0 alone, if it may fork the others. Returns the exit status to end with, 0 when they run. */
static int ranks_start(rank_set *s) {
    s->terminal_shared = terminal_is_shared();
    int line = forking_open(s);
    int status = start_some(s, 0, line >= 0 ? 1 : s->count, line);
    if (line >= 0)
        close(line);
    if (status)
        forking_close(s);
    return status;
}

/* The ranks from 1 on, one by one, or none of them: start_status tells. */
static void ranks_start_others(rank_set *s) {
    s->start_status = start_some(s, 1, s->count, -1);
}

/* castor's end of the line to rank 0, which may fork the other ranks (job/fork_line.h). */

/* Rank 0 may read data before it imports PyTorch. The others, started so late, must find it where it waits for them. */
enum { PATIENCE_MS = 60000, TIMEOUT_PARTS = 4, CLOSED_MS = 500 };

static int64_t patience_ms(void) {
    int64_t part = (int64_t)(options()->timeout * 1000) / TIMEOUT_PARTS;
    return part < PATIENCE_MS ? part : PATIENCE_MS;
}

/* NULL: nothing that castor knows. */
static const char *why_not(const rank_set *s) {
    return options()->fork == CASTOR_FORK_OFF ? "CASTOR_FORK=off"
           : s->count > LINE_RANKS_MAX        ? "there are too many"
           : run_command_becomes_python(s->job->request->command, s->job->command)
               ? NULL
               : "the command does not become Python";
}

/* For the report. */
static void tell(const rank_set *s, const char *why) {
    char text[LINE_REASON_MAX + 32];
    log_format(text, sizeof text, "one by one: %s", why);
    run_about_add_ranks(s->job, text);
}

/* Opens it if rank 0 may fork the others. Returns rank 0's end, -1: there is none. */
static int forking_open(rank_set *s) {
    int ends[2];
    s->line = -1;
    if (s->count == 1)
        return -1;
    const char *why = why_not(s);
    if (!why && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        why = strerror(errno);
    if (why) {
        tell(s, why);
        return -1;
    }
    int far = fcntl(ends[1], F_DUPFD_CLOEXEC, LINE_FILE_MIN);
    close(ends[1]);
    /* A question comes as a signal, as everything that castor waits for: as that of a child that ends, which may have asked. */
    if (far < 0 || fcntl(ends[0], F_SETOWN, getpid()) != 0 || fcntl(ends[0], F_SETSIG, SIGCHLD) != 0 ||
        fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) != 0) {
        close(ends[0]);
        if (far >= 0)
            close(far);
        return -1;
    }
    s->line = ends[0];
    s->line_until_ms = run_now_ms() + patience_ms();
    return far;
}

/* Starts the other ranks, if rank 0 has not asked for too long. */
static void forking_close(rank_set *s) {
    if (s->line >= 0)
        close(s->line);
    s->line = -1;
}

static void start_others(rank_set *s, const char *why) {
    tell(s, why);
    ranks_start_others(s);
}

static void take_over(rank_set *s, const line_question *question) {
    for (int rank = 1; rank < s->count; rank++) {
        s->ranks[rank].pid = question->pids[rank - 1];
        s->running++;
        ranks_join_group(s, rank, question->pids[rank - 1]);
    }
    run_about_add_ranks(s->job, "forked from one import of PyTorch");
}

/* Answers, if rank 0 has asked. */
static void forking_answer(rank_set *s) {
    static line_question question;
    if (s->line < 0)
        return;
    ssize_t length = recv(s->line, &question, sizeof question, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length == 0) { /* it has ended, or has closed all files */
        if (s->line_until_ms > run_now_ms() + CLOSED_MS)
            s->line_until_ms = run_now_ms() + CLOSED_MS;
        return;
    }
    bool asked = length == sizeof question, ends = s->told_to_end || s->end_ms;
    line_answer answer = {.go = asked && question.made == s->count - 1 && !ends,
                          .outputs_pass = s->job->request->all_output};
    if (answer.go)
        take_over(s, &question);
    if (asked)
        send(s->line, &answer, sizeof answer, MSG_NOSIGNAL);
    forking_close(s);
    question.reason[sizeof question.reason - 1] = '\0';
    if (asked && !answer.go && !ends)
        start_others(s, question.reason);
}

static void forking_check(rank_set *s) {
    if (s->line < 0 || s->told_to_end || s->end_ms || run_now_ms() < s->line_until_ms)
        return;
    forking_close(s);
    start_others(s, "PyTorch was not imported for long");
}

enum {
    SAY_MS = 1500,      /* until SIGTERM: ranks that share a store notice the failure and say what they did */
    END_MS = 4000,      /* from SIGTERM to SIGKILL, for the other ranks when one has failed */
    LEFTOVER_MS = 1000, /* the same for what ranks left behind */
    LATEST_MS = 300,    /* ... but no later than this after END_MS */
    KILL_STEP_MS = 50,  /* between rounds of SIGKILL: descendants appear as their parents end */
    KILL_ROUNDS = 40,
    LOOK_MS = 1000, /* between looks at the note of a process that has refused the job */
};

static int64_t run_now_ms(void) {
    return (int64_t)(clock_ns(CLOCK_MONOTONIC) / 1000000u);
}

/* ---- watching ---- */

static bool has_failed(int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Counted before the signal is sent. */
static void describe_signal(const rank_set *s, int number, char *out, size_t out_size) {
    char fallback[24];
    uint64_t by_cgroup = 0, by_kernel = 0;
    if (number == SIGKILL)
        run_kills_since("", &s->kills, &by_cgroup, &by_kernel);
    if (by_cgroup + by_kernel > 0)
        log_format(out, out_size, "was killed for memory, by %s (signal %d, SIGKILL)",
                   by_cgroup ? "the limit of its control group" : "the kernel", number);
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

/* A rehearsal ends in a bounded time: what its ranks wait for does not come, as on devices, and nobody pays for a longer wait. */
static void check_stalled(rank_set *s) {
    char title[RUN_STALL_TITLE_MAX];
    if (s->end_ms || options()->rehearse_devices == 0 ||
        (double)run_stall_longest_ns(&s->stall, title) < options()->timeout * 1e9)
        return;
    LOG_W("the rehearsal is ended: no progress for %.0f s (CASTOR_TIMEOUT) in %s", options()->timeout, title);
    ends_write(s->job->directory.path, (int)getpid(), ENDS_TOLD, SIGTERM);
    s->term_ms = run_now_ms();
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
        check_stalled(s);
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
    uint64_t by_cgroup, by_kernel;
    if (!status && !ends_exist(directory))
        return;
    run_kills_since("", &s->kills, &by_cgroup, &by_kernel);
    if (by_cgroup)
        ends_write(directory, (int)getpid(), ENDS_KILLED_CGROUP, by_cgroup);
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
