/* What castor knows of a run when it starts: the file `castor.about` of the log directory (trace/format.h). The report shows it. It
 * holds values of options, among them paths, and no other variable of the environment. */
#include "run.h"

#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/machine.h"
#include "job/options.h"
#include "base/version.h"
#include "launcher/common/about_read.h"
#include "launcher/common/limits.h"
#include "launcher/common/trace_read.h"

__attribute__((format(printf, 3, 4))) static void add(FILE *out, trace_about kind, const char *format, ...) {
    char value[TRACE_ABOUT_VALUE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    trace_read_clean(value, sizeof value);
    if (value[0] != '\0')
        fprintf(out, "%s %s\n", about_keys[kind], value);
}

static void add_command(FILE *out, char *const *command) {
    char text[TRACE_COMMAND_MAX];
    size_t used = 0;
    for (; *command != NULL && used < sizeof text; command++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? " " : "", *command);
    add(out, TRACE_ABOUT_COMMAND, "%s", text);
}

static bool is_set(const run_request *request, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < request->setting_count; i++)
        if (strncmp(request->settings[i], name, length) == 0 && request->settings[i][length] == '=')
            return true;
    return false;
}

/* The options that differ from their defaults; the directory's own name says where it is. */
static void add_options(FILE *out, const run_request *request) {
    char value[OPTION_STRING_MAX];
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        option_format((option_id)id, value, sizeof value);
        if (row->internal || id == OPTION_ID_log_dir || strcmp(value, row->def) == 0)
            continue;
        add(out, is_set(request, row->env) ? TRACE_ABOUT_OPTION_SET : TRACE_ABOUT_OPTION_ENVIRONMENT, "%s=%s",
            row->env, value);
    }
}

enum { MODEL_MAX = 256 };

/* What follows NAME and a colon, in the first such line of the file; "": nothing does. */
static void read_line(const char *path, const char *name, char out[MODEL_MAX]) {
    FILE *file = fopen(path, "re");
    char line[MODEL_MAX];
    size_t length = strlen(name);
    out[0] = '\0';
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = line + length + strspn(line + length, " \t");
        if (strncmp(line, name, length) == 0 && *colon == ':') {
            strcpy(out, colon + 1 + strspn(colon + 1, " \t"));
            out[strcspn(out, "\n")] = '\0';
        }
    }
    if (file != NULL)
        fclose(file);
}

/* As the driver lists them. Equal ones that follow each other are counted. */
static void add_gpus(FILE *out) {
    glob_t gpus;
    char model[MODEL_MAX], before[MODEL_MAX] = "";
    size_t equal = 0;
    if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &gpus) != 0)
        return;
    for (size_t i = 0; i <= gpus.gl_pathc; i++) {
        model[0] = '\0';
        if (i < gpus.gl_pathc)
            read_line(gpus.gl_pathv[i], "Model", model);
        if (equal > 0 && strcmp(model, before) != 0) {
            if (equal > 1)
                add(out, TRACE_ABOUT_GPU, "%zu x %s", equal, before);
            else
                add(out, TRACE_ABOUT_GPU, "%s", before);
            equal = 0;
        }
        equal += model[0] != '\0';
        strcpy(before, model);
    }
    globfree(&gpus);
}

/* The cores that this process may use, and what a control group gives of them. */
static void add_cores(FILE *out) {
    unsigned long usable = machine_cores_usable();
    double given = limit_cores_given();
    if (given > 0 && given < (double)usable)
        add(out, TRACE_ABOUT_CORES, "%lu, of which a control group gives %.1f", usable, given);
    else
        add(out, TRACE_ABOUT_CORES, "%lu", usable);
}

static void add_machine(FILE *out) {
    struct utsname system;
    uint64_t bytes, limit = limit_memory_bytes();
    bool named = uname(&system) == 0;
    if (named)
        add(out, TRACE_ABOUT_HOST, "%s", system.nodename);
    char processor[MODEL_MAX];
    read_line("/proc/cpuinfo", "model name", processor);
    add(out, TRACE_ABOUT_PROCESSOR, "%s", processor);
    add_cores(out);
    if (!machine_meminfo("", "MemTotal", &bytes))
        bytes = 0;
    bytes = limit > 0 && (bytes == 0 || limit < bytes) ? limit : bytes;
    if (bytes > 0)
        add(out, TRACE_ABOUT_MEMORY, "%llu", (unsigned long long)bytes);
    if (named)
        add(out, TRACE_ABOUT_KERNEL, "%s %s, %s", system.sysname, system.release, system.machine);
    add_gpus(out);
}

/* To write beyond the limit of files' sizes is a SIGXFSZ. */
static bool has_room(size_t bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes;
}

static void path_of(const run_job *job, char *out, size_t out_size) {
    snprintf(out, out_size, "%s/" TRACE_ABOUT_NAME, job->directory.path);
}

void run_about_write(const run_job *job) {
    char path[PATH_MAX + 16], *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return;
    add(out, TRACE_ABOUT_CASTOR, "%s", CASTOR_VERSION);
    add(out, TRACE_ABOUT_STARTED, "%llu", (unsigned long long)clock_ns(CLOCK_REALTIME));
    add_command(out, job->request->command);
    add_options(out, job->request);
    add_machine(out);
    bool complete = fclose(out) == 0 && has_room(size);
    path_of(job, path, sizeof path);
    int file = complete ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    /* What cannot be written is not known to the report: no reason to keep a job from running. */
    if (file >= 0) {
        if (write(file, text, size) != (ssize_t)size)
            unlink(path);
        close(file);
    }
    free(text);
}

void run_about_add_ranks(const run_job *job, const char *how) {
    char path[PATH_MAX + 16];
    path_of(job, path, sizeof path);
    int file = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    FILE *out = file < 0 ? NULL : fdopen(file, "a");
    if (out == NULL && file >= 0)
        close(file);
    if (out == NULL)
        return;
    if (has_room(TRACE_ABOUT_VALUE_MAX))
        add(out, TRACE_ABOUT_RANKS, "%s", how);
    fclose(out);
}

void run_about_remove(const run_job *job) {
    char path[PATH_MAX + 16];
    path_of(job, path, sizeof path);
    unlink(path);
}
