#include "stack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/common/live_read.h"

#define LINES_MAX  16 /* innermost ones */
#define TEXT_BYTES 65536

enum { PATH_BYTES = PATH_MAX + 160 };

static void path_of(char out[PATH_BYTES], const char *directory, const job_process *process,
                    const char *suffix) {
    log_format(out, PATH_BYTES, "%s/%s%s", directory, process->name, suffix);
}

static const job_process *process_of(const run_stack *stack, const job_reading *reading) {
    for (size_t i = 0; i < reading->count; i++)
        if (reading->processes[i].uid == stack->uid)
            return &reading->processes[i];
    return NULL;
}

void run_stack_ask(run_stack *stack, const job_process *process, const char *directory) {
    char path[PATH_BYTES];
    struct stat status;
    *stack = (run_stack){.uid = process->uid};
    if (process->state != JOB_RUNNING || process->live == NULL || !process->live->stack_able)
        return;
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    stack->old_bytes = stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
    stack->number = process->live->stack_wanted + 1;
    path_of(path, directory, process, LIVE_SUFFIX);
    stack->asked = live_ask_stack(path, stack->number);
}

bool run_stack_arrived(const run_stack *stack, const job_reading *reading) {
    const job_process *process = process_of(stack, reading);
    return !stack->asked || process == NULL || process->live == NULL ||
           process->live->stack_given == stack->number;
}

/* The part of the file that was written since the question; the caller frees it. */
static char *read_answer(const run_stack *stack, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    char *text = fd < 0 ? NULL : malloc(TEXT_BYTES);
    size_t used = 0;
    while (text != NULL && used + 1 < TEXT_BYTES) {
        ssize_t part = pread(fd, text + used, TEXT_BYTES - 1 - used, (off_t)(stack->old_bytes + used));
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            break;
        used += (size_t)part;
    }
    if (fd >= 0)
        close(fd);
    if (text != NULL)
        text[used] = '\0';
    return text;
}

/* The answer's lines: one about the process, then per thread its name and indented lines, the main thread first. */
static bool tell_main_thread(char *text) {
    char *lines[LINES_MAX];
    size_t count = 0, threads = 0;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && threads < 3;) {
        if (line[0] != ' ')
            threads += line[0] != '\0'; /* the process, the main thread, the next thread */
        else if (threads == 2)
            lines[count++ % LINES_MAX] = line;
    }
    if (count > LINES_MAX)
        LOG_W("  ... (%zu lines further out)", count - LINES_MAX);
    for (size_t i = count > LINES_MAX ? count - LINES_MAX : 0; i < count; i++)
        LOG_W("%s", lines[i % LINES_MAX]);
    return count > 0;
}

/* Of packages, of Python and of Castor: not of the script. */
static bool is_of_a_library(const char *line) {
    return strstr(line, "/lib/python") != NULL || strstr(line, "/dist-packages/") != NULL ||
           strstr(line, "/lib/castor/") != NULL;
}

bool run_stack_place(const run_stack *stack, const job_reading *reading, const char *directory, char *out,
                     size_t out_size) {
    const job_process *process = process_of(stack, reading);
    if (process == NULL || !stack->asked || !run_stack_arrived(stack, reading))
        return false;
    char path[PATH_BYTES];
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    char *text = read_answer(stack, path), *rest = text, *file, *end;
    size_t threads = 0;
    bool found = false;
    for (char *line; rest != NULL && (line = strsep(&rest, "\n")) != NULL && threads < 3;) {
        threads += line[0] != ' ' && line[0] != '\0'; /* the process, the main thread, the next thread */
        if (threads != 2 || strncmp(line, "  File \"", 8) != 0 || is_of_a_library(line) ||
            (end = strstr(line + 8, "\", line ")) == NULL)
            continue;
        *end = '\0';
        file = strrchr(line + 8, '/') != NULL ? strrchr(line + 8, '/') + 1 : line + 8;
        found = log_format(out, out_size, "%.128s, line %d", file, atoi(end + 8)) > 0;
    }
    free(text);
    return found;
}

void run_stack_tell(const run_stack *stack, const job_reading *reading, const char *directory) {
    const job_process *process = process_of(stack, reading);
    if (process == NULL)
        return;
    char who[64], path[PATH_BYTES];
    if (process->rank >= 0)
        log_format(who, sizeof who, "rank %d (process %u)", process->rank, process->pid);
    else
        log_format(who, sizeof who, "process %u", process->pid);
    if (process->state == JOB_EXITED || process->state == JOB_DIED) {
        LOG_W("%s has ended; see its own messages", who);
        return;
    }
    if (process->state == JOB_STOPPED) {
        LOG_W("%s is stopped by a signal; kill -CONT %u lets it go on", who, process->pid);
        return;
    }
    if (!stack->asked || !run_stack_arrived(stack, reading)) {
        LOG_W("%s runs, and does not tell its Python stack%s", who,
              stack->asked ? ": it holds Python's interpreter, inside C code" : "");
        return;
    }
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    char *text = read_answer(stack, path);
    LOG_W("%s is here, innermost last (all its threads: %s):", who, path);
    if (text == NULL || !tell_main_thread(text))
        LOG_W("  (it could not write its stack)");
    free(text);
}
