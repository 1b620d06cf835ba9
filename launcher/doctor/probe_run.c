#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "launcher/common/array.h"
#include "launcher/common/trace_read.h"
#include "launcher/run/run.h"
#include "doctor.h"
#include "program.h"

#define OUTPUT_MAX  ((size_t)1 << 18)
#define ERRORS_MAX  ((size_t)1 << 14)
#define DRAIN_MS    50
#define DRAIN_PARTS 64
#define END_MS      5000 /* for the interpreter to end, once it has said all */

/* ---- running ---- */

/* What one pipe said; beyond its bound it is read and forgotten. */
typedef struct listener {
    int fd;
    char *text;
    size_t used, size;
} listener;

static void listen_once(listener *l) {
    char spare[4096];
    size_t room = l->size - 1 - l->used;
    ssize_t part = read(l->fd, room > 0 ? l->text + l->used : spare, room > 0 ? room : sizeof spare);
    if (part < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (part <= 0) {
        close(l->fd);
        l->fd = -1;
    } else if (room > 0) {
        l->used += (size_t)part;
    }
    l->text[l->used] = '\0';
}

/* Listens until the program has said all, or is gone, or time is up (false). What it started and left running may keep the
 * pipes for longer. */
static bool listen_to(listener *out, listener *errors, double limit_seconds) {
    uint64_t deadline = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(limit_seconds * 1e9);
    while (out->fd >= 0 && strstr(out->text, DOCTOR_MARK "\tend\n") == NULL) {
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now >= deadline)
            return false;
        struct pollfd polled[2] = {{.fd = out->fd, .events = POLLIN}, {.fd = errors->fd, .events = POLLIN}};
        if (poll(polled, 2, (int)((deadline - now) / 1000000) + 1) <= 0)
            continue;
        if (polled[0].revents)
            listen_once(out);
        if (polled[1].revents)
            listen_once(errors);
    }
    struct pollfd rest = {.fd = errors->fd, .events = POLLIN};
    for (int part = 0; part < DRAIN_PARTS && errors->fd >= 0 && poll(&rest, 1, DRAIN_MS) > 0; part++)
        listen_once(errors);
    return true;
}

/* The status of the program, which is ended when it does not end by itself. */
static int wait_for_end(pid_t pid, bool at_once) {
    int status = 0;
    for (int waited = 0; !at_once && waited < END_MS; waited += DRAIN_MS) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        poll(NULL, 0, DRAIN_MS);
    }
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static void child_run(const char *path, char *const *arguments, char *const *environment, int out,
                      int errors) {
    setpgid(0, 0);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execve(path, arguments, environment);
    _exit(RUN_EXIT_NOT_EXECUTABLE);
}

/* The environment that `castor run` would give, without a log directory: nothing is recorded; and nothing is refused,
 * since what is wrong is to be found. */
static bool make_environment(const run_install *install, run_environment *out) {
    static char step_aside[] = "CASTOR_ON_ERROR=passthrough", *settings[] = {step_aside};
    run_request request = {.ranks = 1, .settings = settings, .setting_count = 1};
    run_job job = {.request = &request, .install = *install};
    memset(job.token, '0', RUN_TOKEN_DIGITS);
    return run_environment_build(&job, environ, 0, -1, -1, out);
}

static void last_line(const char *text, char *out, size_t out_size) {
    size_t end = strlen(text);
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' '))
        end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    snprintf(out, out_size, "%.*s", (int)(end - begin), text + begin);
    trace_read_clean(out, out_size);
}

static bool parse(doctor_probe *probe) {
    size_t capacity = 0;
    char *rest = probe->text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *field = strsep(&line, "\t");
        if (strcmp(field, DOCTOR_MARK) != 0)
            continue;
        if (!array_grow(&probe->facts, &capacity, probe->count, sizeof *probe->facts))
            return false;
        doctor_fact *fact = &probe->facts[probe->count++];
        for (size_t i = 0; i < DOCTOR_FIELDS_MAX; i++) {
            field = line != NULL ? strsep(&line, "\t") : NULL;
            static char none[1];
            fact->fields[i] = field != NULL ? field : none;
        }
    }
    return true;
}

/* Starts the program and hears what it says, into probe->text and `errors_text`. */
static void converse(const char *path, char *const *arguments, char *const *environment, double limit_seconds,
                     char *errors_text, doctor_probe *probe) {
    int out[2] = {-1, -1}, errors[2] = {-1, -1};
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
        snprintf(probe->error, sizeof probe->error, "no pipe: %s", strerror(errno));
        goto done;
    }
    pid_t pid = fork();
    if (pid == 0)
        child_run(path, arguments, environment, out[1], errors[1]);
    if (pid < 0) {
        snprintf(probe->error, sizeof probe->error, "no process: %s", strerror(errno));
        goto done;
    }
    setpgid(pid, pid);
    probe->started = true;
    close(out[1]);
    close(errors[1]);
    out[1] = errors[1] = -1;
    listener hears_out = {out[0], probe->text, 0, OUTPUT_MAX},
             hears_errors = {errors[0], errors_text, 0, ERRORS_MAX};
    probe->timed_out = !listen_to(&hears_out, &hears_errors, limit_seconds);
    out[0] = hears_out.fd;
    errors[0] = hears_errors.fd;
    probe->status = wait_for_end(pid, probe->timed_out);
    kill(-pid, SIGKILL); /* what it left running */
    last_line(errors_text, probe->error, sizeof probe->error);
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (errors[i] >= 0)
            close(errors[i]);
    }
}

bool doctor_probe_run(char *const *command, doctor_program_id program, double limit_seconds,
                      doctor_probe *probe) {
    static const char *const programs[] = {
        [DOCTOR_PROGRAM_PYTHON] = doctor_program, [DOCTOR_PROGRAM_DEVICES] = doctor_device_program};
    static char *const usual[] = {"python3", NULL};
    run_install install;
    run_environment environment = {0};
    char path[PATH_MAX], *errors_text = NULL, **arguments = NULL;
    size_t count = 0;
    *probe = (doctor_probe){0};
    if (command == NULL)
        command = usual;
    while (command[count] != NULL)
        count++;
    snprintf(probe->command, sizeof probe->command, "%s", command[0]);
    snprintf(probe->error, sizeof probe->error, "the library or its Python part is missing");
    if (run_install_find(&install) != 0)
        return false;
    snprintf(probe->error, sizeof probe->error, "out of memory");
    arguments = calloc(count + 3, sizeof *arguments);
    probe->text = malloc(OUTPUT_MAX);
    errors_text = malloc(ERRORS_MAX);
    if (arguments == NULL || probe->text == NULL || errors_text == NULL ||
        !make_environment(&install, &environment))
        goto done;
    probe->text[0] = errors_text[0] = '\0';
    snprintf(probe->error, sizeof probe->error, "there is no such command");
    if (run_command_find(command[0], run_environment_get(&environment, "PATH"), path, sizeof path) != 0)
        goto done;
    snprintf(probe->command, sizeof probe->command, "%s", path);
    memcpy(arguments, command, count * sizeof *arguments);
    arguments[count] = "-c";
    arguments[count + 1] = (char *)programs[program];
    converse(path, arguments, environment.entries, limit_seconds, errors_text, probe);
    if (probe->started && !parse(probe))
        probe->started = false;
done:
    run_environment_free(&environment);
    free(errors_text);
    free(arguments);
    return probe->started;
}

const doctor_fact *doctor_probe_fact(const doctor_probe *probe, const char *key, const doctor_fact *after) {
    for (size_t i = after != NULL ? (size_t)(after - probe->facts) + 1 : 0; i < probe->count; i++)
        if (strcmp(probe->facts[i].fields[0], key) == 0)
            return &probe->facts[i];
    return NULL;
}

void doctor_probe_free(doctor_probe *probe) {
    free(probe->facts);
    free(probe->text);
    *probe = (doctor_probe){0};
}
