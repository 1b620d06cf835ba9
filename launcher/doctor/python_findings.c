#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "hooks/table/hooks.h"
#include "job/options.h"
#include "job/torch_version.h"
#include "launcher/common/array.h"
#include "launcher/common/text_table.h"
#include "launcher/common/trace_read.h"
#include "launcher/run/run.h"
#include "doctor.h"
#include "program.h"

#define DOCTOR_FIELDS_MAX 6

/* One fact from the program: a key and up to five values, "" where there is none. */
typedef struct doctor_fact {
    char *fields[DOCTOR_FIELDS_MAX];
} doctor_fact;

typedef struct doctor_probe {
    doctor_fact *facts;
    size_t count;
    char *text;             /* holds the facts' fields */
    char error[512];        /* the last line of its standard error */
    char command[PATH_MAX]; /* the file that was executed */
    bool started, timed_out;
    int status; /* of waitpid */
} doctor_probe;

typedef enum doctor_program_id { DOCTOR_PROGRAM_PYTHON, DOCTOR_PROGRAM_DEVICES } doctor_program_id;

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
    memset(job.token, '0', JOB_TOKEN_DIGITS);
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

/* Runs `command` -c PROGRAM as `castor run` would, for `limit_seconds` at most. False: nothing could be run, and `probe->error`
 * says why. */
static bool doctor_probe_run(char *const *command, doctor_program_id program, double limit_seconds,
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

static const doctor_fact *doctor_probe_fact(const doctor_probe *probe, const char *key,
                                            const doctor_fact *after) {
    for (size_t i = after != NULL ? (size_t)(after - probe->facts) + 1 : 0; i < probe->count; i++)
        if (strcmp(probe->facts[i].fields[0], key) == 0)
            return &probe->facts[i];
    return NULL;
}

/* The next fact of that key after `after` (NULL: the first), or NULL. */
static void doctor_probe_free(doctor_probe *probe) {
    free(probe->facts);
    free(probe->text);
    *probe = (doctor_probe){0};
}

/* What each device can do of what homes need (interpose/device/probe.h), found by a program that does it. */

#define DEVICES_SHOWN 64

/* As the library's probe counts them. */
enum { LEVEL_NONE, LEVEL_PAGES, LEVEL_HOST_MEMORY, LEVEL_HOST_PAGES, LEVEL_FLIPS };
enum { LINE_PAGES, LINE_HOST_PAGES, LINE_FLIPS, LINE_LINK, LINE_COUNT };

/* Names of checks live as long as the program. */
static const char *name_of(unsigned device, int line) {
    static char names[DEVICES_SHOWN][LINE_COUNT][32];
    static const char *const whats[LINE_COUNT] = {"pages", "host pages", "flips", "link"};
    snprintf(names[device][line], sizeof names[device][line], "%u: %s", device, whats[line]);
    return names[device][line];
}

static const char *field(const doctor_fact *fact, int index) {
    return fact != NULL ? fact->fields[index] : "";
}

static uint64_t number(const doctor_fact *fact, int index) {
    return strtoull(field(fact, index), NULL, 10);
}

/* The fact of that key about a device. */
static const doctor_fact *fact_of(const doctor_probe *probe, const char *key, const char *device) {
    for (const doctor_fact *fact = NULL; (fact = doctor_probe_fact(probe, key, fact)) != NULL;)
        if (strcmp(fact->fields[1], device) == 0)
            return fact;
    return NULL;
}

/* What to do where a line's level was not reached. */
static void advise(doctor_checks *checks, int line, uint64_t level) {
    static const char *const advice[] = {
        [LINE_PAGES] =
            "model data stays where scripts have it: the device and its driver must map memory (CUDA "
            "12.2 or later, no vGPU or WSL)",
        [LINE_HOST_PAGES] = "model data stays where scripts have it: a driver for CUDA 12.2 or later maps "
                            "host memory at a device's "
                            "addresses; in a container, see whether it may lock memory (ulimit -l)",
        [LINE_FLIPS] =
            "model data stays where scripts have it: see whether another process has filled the device",
    };
    doctor_advise(
        checks, "%s",
        level == LEVEL_HOST_MEMORY
            ? "what is on the host stays there, and nothing is moved when memory runs out: give "
              "CASTOR_DEVICE_BUDGET. A driver for CUDA 12.2 or later maps such pages; in a container, see "
              "whether it may lock memory (ulimit -l)"
            : advice[line]);
}

static void check_link(doctor_checks *checks, unsigned device, const doctor_fact *copies) {
    double bytes = (double)number(copies, 2), rates[2];
    char figures[2][TEXT_FIGURE_MAX], size[TEXT_FIGURE_MAX];
    for (int to = 0; to < 2; to++) {
        uint64_t ns = number(copies, 3 + to);
        rates[to] = ns > 0 ? bytes * 1e9 / (double)ns : 0;
        text_rate(figures[to], rates[to]);
    }
    if (rates[0] > 0 && rates[1] > 0)
        doctor_add(checks, DOCTOR_SECTION_DEVICES, name_of(device, LINE_LINK), DOCTOR_OK,
                   "%s to the device, %s to the host (copies of %s)", figures[0], figures[1],
                   text_bytes(size, number(copies, 2)));
}

/* `why`: what the next level lacks. */
static void check_levels(doctor_checks *checks, unsigned device, const doctor_probe *probe, const char *why) {
    static const uint64_t reached[] = {LEVEL_PAGES, LEVEL_HOST_PAGES, LEVEL_FLIPS};
    char key[16], unit[TEXT_FIGURE_MAX], total[TEXT_FIGURE_MAX], host[TEXT_FIGURE_MAX];
    snprintf(key, sizeof key, "%u", device);
    const char *name = field(fact_of(probe, "device", key), 2);
    const doctor_fact *memory = fact_of(probe, "memory", key);
    uint64_t level = number(fact_of(probe, "level", key), 2);
    text_bytes(unit, number(memory, 2));
    text_bytes(total, number(memory, 3));
    text_bytes(host, number(memory, 4));
    for (int line = LINE_PAGES; line <= LINE_FLIPS; line++) {
        const char *label = name_of(device, line);
        if (level < reached[line]) {
            doctor_add(checks, DOCTOR_SECTION_DEVICES, label, DOCTOR_WARN, "%s: %s", name, why);
            advise(checks, line, level);
            break;
        }
        if (line == LINE_PAGES)
            doctor_add(checks, DOCTOR_SECTION_DEVICES, label, DOCTOR_OK, "%s: units of %s, %s of memory",
                       name, unit, total);
        else if (line == LINE_HOST_PAGES)
            doctor_add(checks, DOCTOR_SECTION_DEVICES, label, DOCTOR_OK,
                       "mapped at its addresses; at most %s now", host);
        else
            doctor_add(checks, DOCTOR_SECTION_DEVICES, label, DOCTOR_OK,
                       "model data moves to the host and back at one address");
    }
    check_link(checks, device, fact_of(probe, "copies", key));
}

/* How a program ended that has not said all. */
static void describe_end(const doctor_probe *probe, double limit_seconds, char *out, size_t out_size) {
    char limit[TEXT_FIGURE_MAX];
    const char *colon = probe->error[0] != '\0' ? ": " : "";
    if (probe->timed_out)
        snprintf(out, out_size, "no answer within %s", text_seconds(limit, limit_seconds));
    else if (WIFSIGNALED(probe->status))
        snprintf(out, out_size, "the probe ended by signal %d%s%s", WTERMSIG(probe->status), colon,
                 probe->error);
    else
        snprintf(out, out_size, "the probe ended with status %d%s%s", WEXITSTATUS(probe->status), colon,
                 probe->error);
}

/* What each device can do. Called by doctor_python where there are devices; the program gets as long again. */
static void doctor_devices(doctor_checks *checks, char *const *command, double limit_seconds) {
    doctor_probe probe;
    char end[1024] = "";
    if (!doctor_probe_run(command, DOCTOR_PROGRAM_DEVICES, limit_seconds, &probe)) {
        doctor_probe_free(&probe);
        return; /* the first program ran, and would have said it */
    }
    if (doctor_probe_fact(&probe, "end", NULL) == NULL)
        describe_end(&probe, limit_seconds, end, sizeof end);
    bool any = false;
    for (const doctor_fact *device = NULL; (device = doctor_probe_fact(&probe, "device", device)) != NULL;) {
        uint64_t index = number(device, 1);
        const doctor_fact *level = fact_of(&probe, "level", field(device, 1));
        any = true;
        if (index < DEVICES_SHOWN)
            check_levels(checks, (unsigned)index, &probe, level != NULL ? field(level, 3) : end);
    }
    if (!any && end[0] != '\0') {
        doctor_add(checks, DOCTOR_SECTION_DEVICES, "probe", DOCTOR_WARN, "%s", end);
        doctor_advise(checks,
                      "model data on devices stays where scripts have it; see whether nvidia-smi works");
    }
    doctor_probe_free(&probe);
}

#define SECTION_PYTHON "Python and PyTorch"
#define SECTION_DEVICE DOCTOR_SECTION_DEVICES
#define SECTION_HOOKS  "Functions that are intercepted"

#define MISSING_SHOWN 4

typedef struct version {
    unsigned major, minor;
} version;

static const version python_min = {3, 10}, torch_min = {TORCH_MIN_MAJOR, TORCH_MIN_MINOR},
                     torch_max = {TORCH_TESTED_MAJOR, TORCH_TESTED_MINOR};

static version version_of(const char *text) {
    version v = {0, 0};
    sscanf(text, "%u.%u", &v.major, &v.minor);
    return v;
}

static bool is_before(version a, version b) {
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

static bool is_set(const doctor_fact *fact, int index) {
    return strcmp(field(fact, index), "1") == 0;
}

/* ---- options ---- */

static void check_options(doctor_checks *checks) {
    char message[512];
    if (options_load(environ, message, sizeof message) == CASTOR_OK)
        return;
    doctor_add(checks, SECTION_PYTHON, "options", DOCTOR_FAIL, "in the environment: %s", message);
    doctor_advise(checks, "castor run refuses it; `castor options` lists what there is");
}

/* ---- how far the program came ---- */

static void check_course(doctor_checks *checks, const doctor_probe *probe, const char *doing,
                         double limit_seconds) {
    char limit[TEXT_FIGURE_MAX];
    if (probe->timed_out)
        doctor_add(checks, SECTION_PYTHON, doing, DOCTOR_FAIL, "no answer within %s",
                   text_seconds(limit, limit_seconds));
    else if (WIFSIGNALED(probe->status))
        doctor_add(checks, SECTION_PYTHON, doing, DOCTOR_FAIL, "ended by signal %d%s%s",
                   WTERMSIG(probe->status), probe->error[0] ? ": " : "", probe->error);
    else
        doctor_add(checks, SECTION_PYTHON, doing, DOCTOR_FAIL, "ended with status %d%s%s",
                   WEXITSTATUS(probe->status), probe->error[0] ? ": " : "", probe->error);
    doctor_advise(checks, "try it without Castor: %s -c 'import torch'", probe->command);
}

static void check_interpreter(doctor_checks *checks, const doctor_fact *python) {
    version v = version_of(field(python, 1));
    bool cpython = strcmp(field(python, 2), "cpython") == 0, old = is_before(v, python_min);
    doctor_add(checks, SECTION_PYTHON, "Python", old || !cpython ? DOCTOR_FAIL : DOCTOR_OK, "%s, %s",
               field(python, 1), field(python, 3));
    if (!cpython)
        doctor_advise(checks, "Castor works with CPython");
    else if (old)
        doctor_advise(checks, "Castor needs Python 3.10 or later");
}

static void check_library(doctor_checks *checks, const doctor_probe *probe) {
    bool loaded = is_set(doctor_probe_fact(probe, "library", NULL), 1);
    doctor_add(checks, SECTION_PYTHON, "library", loaded ? DOCTOR_OK : DOCTOR_FAIL, "%s",
               loaded ? "libcastor.so is in the process" : "libcastor.so is not in the process");
    if (!loaded)
        doctor_advise(
            checks,
            "LD_PRELOAD does not reach this Python: a static or setuid binary, another libc (musl), or a "
            "wrapper that clears the environment");
}

static void check_torch(doctor_checks *checks, const doctor_probe *probe, const doctor_fact *torch) {
    const doctor_fact *error = doctor_probe_fact(probe, "torch-error", NULL);
    if (error != NULL) {
        doctor_add(checks, SECTION_PYTHON, "torch", DOCTOR_FAIL, "%s: %s", field(error, 1), field(error, 2));
        doctor_advise(checks,
                      strcmp(field(error, 1), "ModuleNotFoundError") == 0
                          ? "install torch for this Python, or name the right one: castor doctor -- PYTHON"
                          : "see whether it goes without Castor; if so, this is a bug of Castor's");
        return;
    }
    version v = version_of(field(torch, 1));
    bool old = is_before(v, torch_min), young = is_before(torch_max, v);
    doctor_add(checks, SECTION_PYTHON, "torch",
               old     ? DOCTOR_FAIL
               : young ? DOCTOR_WARN
                       : DOCTOR_OK,
               "%s%s%s", field(torch, 1), field(torch, 2)[0] ? ", built for CUDA " : ", built for the CPU",
               field(torch, 2));
    if (old)
        doctor_advise(checks, "Castor needs torch %u.%u or later; with an older one only --plugin none runs",
                      torch_min.major, torch_min.minor);
    else if (young)
        doctor_advise(checks, "Castor was tested up to torch %u.%u", torch_max.major, torch_max.minor);
}

static void check_agent(doctor_checks *checks, const doctor_probe *probe) {
    const doctor_fact *agent = doctor_probe_fact(probe, "agent", NULL);
    const doctor_fact *flags = doctor_probe_fact(probe, "flags", NULL);
    const doctor_fact *autoload = doctor_probe_fact(probe, "autoload", NULL);
    const doctor_fact *package = doctor_probe_fact(probe, "package", NULL);
    if (is_set(agent, 1)) {
        doctor_add(checks, SECTION_PYTHON, "agent", DOCTOR_OK, "reached at the end of `import torch`");
        return;
    }
    doctor_add(checks, SECTION_PYTHON, "agent", DOCTOR_FAIL, "not reached: the run would be plain PyTorch");
    if (is_set(flags, 1) || is_set(flags, 2))
        doctor_advise(checks, "this Python ignores PYTHONPATH (-I or -E)");
    else if (strcmp(field(autoload, 1), "0") == 0)
        doctor_advise(checks, "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from calling it: unset it");
    else if (field(package, 1)[0] == '\0')
        doctor_advise(checks, "the package `castor` is not found: something resets PYTHONPATH or sys.path");
    else if (field(agent, 2)[0] != '\0' || strstr(field(package, 1), "/castor/__init__.py") == NULL)
        doctor_advise(checks, "another module is called castor: %s", field(package, 1));
    else
        doctor_advise(checks, "the package is at %s, but PyTorch did not call it%s%s", field(package, 1),
                      probe->error[0] ? ": " : "", probe->error);
}

/* ---- devices ---- */

static bool has_devices(const doctor_fact *devices) {
    return devices != NULL && strtoul(field(devices, 1), NULL, 10) > 0;
}

static void check_kernels(doctor_checks *checks, const doctor_fact *kernels, bool needed) {
    if (kernels == NULL)
        return; /* the library is not in the process, which another line says */
    if (is_set(kernels, 1)) {
        doctor_add(checks, SECTION_DEVICE, "CUDA kernels", DOCTOR_OK, "built in");
        return;
    }
    doctor_add(checks, SECTION_DEVICE, "CUDA kernels", needed ? DOCTOR_WARN : DOCTOR_NOTE,
               "libcastor.so was built without nvcc and has none");
    doctor_advise(checks, "on devices PyTorch's own kernels compute optimizer steps, to the same numbers; "
                          "to have Castor's, build it with nvcc: make NVCC=/path/to/nvcc");
}

static void check_devices(doctor_checks *checks, const doctor_probe *probe, const doctor_fact *torch) {
    const doctor_fact *driver = doctor_probe_fact(probe, "driver", NULL);
    const doctor_fact *devices = doctor_probe_fact(probe, "devices", NULL);
    const doctor_fact *nccl = doctor_probe_fact(probe, "nccl", NULL);
    if (driver != NULL && strcmp(field(driver, 1), "0") == 0) {
        unsigned number = (unsigned)strtoul(field(driver, 2), NULL, 10);
        doctor_add(checks, SECTION_DEVICE, "driver", DOCTOR_OK, "for CUDA %u.%u", number / 1000,
                   number % 1000 / 10);
        if (field(torch, 2)[0] == '\0')
            doctor_advise(checks, "this torch is built for the CPU: a build for CUDA would use the devices");
    } else if (driver != NULL) {
        doctor_add(checks, SECTION_DEVICE, "driver", DOCTOR_WARN, "libcuda.so.1 answers with error %s",
                   field(driver, 1));
        doctor_advise(checks, "jobs run on the CPU; see whether nvidia-smi works");
    } else
        doctor_add(checks, SECTION_DEVICE, "driver", DOCTOR_NOTE,
                   "none (no libcuda.so.1): jobs run on the CPU");
    if (has_devices(devices))
        doctor_add(checks, SECTION_DEVICE, "devices", DOCTOR_NOTE, "%s", field(devices, 1));
    else
        doctor_add(checks, SECTION_DEVICE, "devices", DOCTOR_NOTE, "no CUDA device");
    if (nccl != NULL && field(nccl, 1)[0] != '\0')
        doctor_add(checks, SECTION_DEVICE, "NCCL library", DOCTOR_OK, "%s", field(nccl, 1));
    else if (nccl != NULL)
        doctor_add(checks, SECTION_DEVICE, "NCCL library", DOCTOR_NOTE, "not in this torch%s%s",
                   field(nccl, 2)[0] ? ": " : "", field(nccl, 2));
    check_kernels(checks, doctor_probe_fact(probe, "kernels", NULL), has_devices(devices));
    bool gloo = is_set(doctor_probe_fact(probe, "gloo", NULL), 1);
    doctor_add(checks, SECTION_DEVICE, "gloo backend", gloo ? DOCTOR_OK : DOCTOR_WARN, "%s",
               gloo ? "in this torch" : "not in this torch");
    if (!gloo)
        doctor_advise(checks, "several ranks on the CPU need it: a torch that is built with it");
}

/* ---- hooks ---- */

/* Whether a family belongs to devices, whose libraries a CPU build has not. */
static bool is_of_device(const char *layer) {
    return strstr(layer, "CUDA") != NULL || strstr(layer, "NCCL") != NULL || strstr(layer, "BLAS") != NULL;
}

static void check_family(doctor_checks *checks, const doctor_probe *probe, const char *layer) {
    size_t all = 0, found = 0, shown = 0, used = 0;
    char missing[512] = "";
    for (const doctor_fact *hook = NULL; (hook = doctor_probe_fact(probe, "hook", hook)) != NULL;) {
        if (strcmp(field(hook, 1), layer) != 0 || strcmp(field(hook, 3), "-1") == 0)
            continue; /* -1: a function of other versions */
        all++;
        if (is_set(hook, 3)) {
            found++;
        } else if (shown < MISSING_SHOWN) {
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", shown++ > 0 ? ", " : "",
                                     field(hook, 2));
            if (used >= sizeof missing)
                used = sizeof missing - 1;
        }
    }
    if (all == 0) {
        return; /* a table of another build than this castor's */
    } else if (found == all) {
        doctor_add(checks, SECTION_HOOKS, layer, DOCTOR_OK, "all %zu", all);
    } else if (found == 0) {
        bool device = is_of_device(layer);
        doctor_add(checks, SECTION_HOOKS, layer, device ? DOCTOR_NOTE : DOCTOR_WARN, "none of %zu", all);
        doctor_advise(checks, device ? "its library is not in the process until a device is used"
                                     : "this torch does not have them: such calls are not seen");
    } else {
        doctor_add(checks, SECTION_HOOKS, layer, is_of_device(layer) ? DOCTOR_NOTE : DOCTOR_WARN,
                   "%zu of %zu; not %s%s", found, all, missing, all - found > shown ? ", ..." : "");
        doctor_advise(checks,
                      "the versions of the libraries here do not have those, or they are not loaded yet");
    }
}

static void check_hooks(doctor_checks *checks, const doctor_probe *probe) {
    for (int layer = 0; layer < HOOK_LAYER_COUNT; layer++) {
        bool repeated = false;
        for (int before = 0; before < layer; before++)
            repeated |= strcmp(hook_layer_name[before], hook_layer_name[layer]) == 0;
        if (!repeated)
            check_family(checks, probe, hook_layer_name[layer]);
    }
}

/* What the agent replaces (shims/castor/agent/replaced.py). */
static void check_replaced(doctor_checks *checks, const doctor_fact *replaced) {
    bool all = field(replaced, 2)[0] == '\0';
    doctor_add(checks, SECTION_HOOKS, "Python functions", all ? DOCTOR_OK : DOCTOR_WARN, "%s%s%s%s",
               all ? "all " : "", field(replaced, 1), all ? "" : "; not as expected: ", field(replaced, 2));
    if (!all)
        doctor_advise(
            checks,
            "a plugin that needs one of them refuses to start: use a torch that Castor was tested with "
            "(castor run -- python -m castor.agent tells what is different)");
}

void doctor_python(doctor_checks *checks, char *const *command, double limit_seconds) {
    doctor_probe probe;
    check_options(checks);
    if (!doctor_probe_run(command, DOCTOR_PROGRAM_PYTHON, limit_seconds, &probe)) {
        doctor_add(checks, SECTION_PYTHON, "Python", DOCTOR_FAIL, "%s: %s", probe.command, probe.error);
        doctor_advise(checks, "name the interpreter of your scripts: castor doctor -- PYTHON");
        doctor_probe_free(&probe);
        return;
    }
    const doctor_fact *python = doctor_probe_fact(&probe, "python", NULL);
    const doctor_fact *torch = doctor_probe_fact(&probe, "torch", NULL);
    bool ended = doctor_probe_fact(&probe, "end", NULL) != NULL;
    if (python == NULL) {
        check_course(checks, &probe, "Python", limit_seconds);
        doctor_probe_free(&probe);
        return;
    }
    check_interpreter(checks, python);
    if (doctor_probe_fact(&probe, "library", NULL) != NULL)
        check_library(checks, &probe);
    if (torch != NULL || doctor_probe_fact(&probe, "torch-error", NULL) != NULL)
        check_torch(checks, &probe, torch);
    if (!ended)
        check_course(checks, &probe, torch != NULL ? "PyTorch, looked at" : "import torch", limit_seconds);
    if (torch != NULL && doctor_probe_fact(&probe, "agent", NULL) != NULL)
        check_agent(checks, &probe);
    if (ended && torch != NULL) {
        check_devices(checks, &probe, torch);
        if (has_devices(doctor_probe_fact(&probe, "devices", NULL)))
            doctor_devices(checks, command, limit_seconds);
        if (is_set(doctor_probe_fact(&probe, "library", NULL), 1))
            check_hooks(checks, &probe);
        if (doctor_probe_fact(&probe, "replaced", NULL) != NULL)
            check_replaced(checks, doctor_probe_fact(&probe, "replaced", NULL));
    }
    doctor_probe_free(&probe);
}
