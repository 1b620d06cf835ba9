#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "job/fork_line.h"

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

void ranks_signal(const rank_set *s, int signal) {
    for (int rank = 0; rank < s->count; rank++)
        if (s->ranks[rank].pid > 0)
            kill(s->ranks[rank].pid, signal);
}

void ranks_output_path(const run_job *job, int rank, char *out, size_t out_size) {
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

void ranks_signals_take(rank_set *s) {
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

void ranks_signals_give_back(const rank_set *s) {
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

void ranks_join_group(rank_set *s, int rank, pid_t pid) {
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

int ranks_start(rank_set *s) {
    s->terminal_shared = terminal_is_shared();
    int line = forking_open(s);
    int status = start_some(s, 0, line >= 0 ? 1 : s->count, line);
    if (line >= 0)
        close(line);
    if (status)
        forking_close(s);
    return status;
}

void ranks_start_others(rank_set *s) {
    s->start_status = start_some(s, 1, s->count, -1);
}
