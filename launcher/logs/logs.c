#include "logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/common/command_line.h"
#include "launcher/common/text_table.h"
#include "launcher/job/reading.h"
#include "launcher/job/runs.h"
#include "launcher/report/report.h"
#include "launcher/run/run.h"

enum { STATUS_DONE = 0, STATUS_PARTIAL = 1, STATUS_USAGE = 2, COMMAND_SHOWN = 60, OUTCOME_SHOWN = 40 };

typedef struct logs_request {
    const char *folder;
    long keep; /* -1: nothing is removed */
} logs_request;

/* -1: go on; else the status to end with. */
static int parse_arguments(int argc, char **argv, logs_request *out) {
    char *end;
    *out = (logs_request){.keep = -1};
    command_line line = {SUBCOMMAND_logs, argc, argv, 1, NULL};
    for (;;) {
        switch (command_line_next(&line)) {
        case ARGUMENT_logs_keep:
            errno = 0;
            out->keep = strtol(line.value, &end, 10);
            if (errno != 0 || end == line.value || *end != '\0' || out->keep < 0 || line.value[0] == '-') {
                LOG_E("logs: --keep `%s`: must be a number of runs, from 0 on", line.value);
                return STATUS_USAGE;
            }
            break;
        case COMMAND_LINE_WORD:
            if (out->folder != NULL || line.value[0] == '\0') {
                LOG_E("logs: takes one folder: castor logs DIR");
                return STATUS_USAGE;
            }
            out->folder = line.value;
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return STATUS_DONE;
        case COMMAND_LINE_WRONG:
            return STATUS_USAGE;
        default:
            return -1;
        }
    }
}

/* ---- the list ---- */

/* Whether a process of the run may still work: one that runs here, or one of another machine that has not said that it ended. */
static bool has_processes(const char *path) {
    job_reading reading;
    bool running = !job_reading_take(path, JOB_LOOK_COUNTERS | JOB_LOOK_LIVE, &reading);
    for (size_t i = 0; i < reading.count; i++)
        running |= reading.processes[i].state == JOB_RUNNING || reading.processes[i].state == JOB_STOPPED;
    job_reading_free(&reading);
    return running;
}

/* At most so many characters; three dots stand for the rest. */
static void add_cut(text_table *table, const char *text, int most) {
    int length = 0, bytes = 0;
    for (; text[bytes] != '\0' && length < most; length++)
        for (bytes++; ((unsigned char)text[bytes] & 0xc0) == 0x80; bytes++)
            ;
    text_table_add(table, "%.*s%s", bytes, text, text[bytes] == '\0' ? "" : "...");
}

static void add_run(text_table *table, const char *path, const job_run *run) {
    static report found;
    char figure[TEXT_FIGURE_MAX], when[32] = "-";
    char *name = strdup(run->name);
    if (name == NULL)
        return;
    trace_read_clean(name, strlen(name) + 1);
    bool read = report_read_brief(&found, path);
    const char *command = about_find(&found.about, TRACE_ABOUT_COMMAND);
    if (command == NULL)
        command = found.command;
    time_t seconds = (time_t)(run->started_ns / 1000000000u);
    struct tm broken_down;
    if (localtime_r(&seconds, &broken_down) != NULL)
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &broken_down);
    const char *outcome = !read                        ? "cannot be read"
                          : job_directory_in_use(path) ? "running"
                          : found.outcome != NULL      ? found.outcome
                                                       : "left no trace";
    text_table_add(table, "%s", name);
    text_table_add(table, "%s", when);
    text_table_add(table, "%s", text_bytes(figure, run->bytes));
    text_table_add(table, "%s", read && found.plugin[0] != '\0' ? found.plugin : "-");
    add_cut(table, outcome, OUTCOME_SHOWN);
    add_cut(table, command != NULL && command[0] != '\0' ? command : "-", COMMAND_SHOWN);
    report_free(&found);
    free(name);
}

static void write_list(const char *folder, const job_runs *runs) {
    char path[PATH_MAX], figure[TEXT_FIGURE_MAX];
    uint64_t bytes = 0;
    text_table table = {.headings = {"run", "started", "size", "plugin", "outcome", "command"}, .left = 0x3a};
    for (size_t i = 0; i < runs->count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, runs->rows[i].name);
        add_run(&table, path, &runs->rows[i]);
        bytes += runs->rows[i].bytes;
    }
    text_table_print(&table, stdout, 0);
    printf("%zu run%s, %s\n", runs->count, runs->count == 1 ? "" : "s", text_bytes(figure, bytes));
}

/* ---- removing ---- */

typedef enum removal { REMOVED, REMOVED_PART, NOT_ENDED, FAILED } removal;

/* Removes what the run has written; the rest is somebody else's. */
static removal remove_files(DIR *listing, const char *path, uint64_t *bytes) {
    char files[PATH_MAX + NAME_MAX + 2];
    struct stat status;
    removal done = REMOVED;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (strcmp(name, JOB_FILES_NAME) == 0) {
            snprintf(files, sizeof files, "%s/%s", path, name);
            run_files_remove(files);
            continue;
        }
        bool own = job_file_is(name) && fstatat(dirfd(listing), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(status.st_mode);
        if (!own) {
            done = done == REMOVED ? REMOVED_PART : done;
            continue;
        }
        if (unlinkat(dirfd(listing), name, 0) != 0)
            return FAILED;
        *bytes += (uint64_t)status.st_blocks * 512;
    }
    return done;
}

/* The directory is locked meanwhile, as a run locks it: none starts in it. */
static removal remove_run(const char *path, uint64_t *bytes) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    removal done = FAILED;
    if (folder < 0)
        return done;
    if ((flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) || has_processes(path)) {
        close(folder);
        return NOT_ENDED;
    }
    int again = dup(folder); /* closedir closes its own */
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    if (listing != NULL) {
        done = remove_files(listing, path, bytes);
        if (done == REMOVED && rmdir(path) != 0)
            done = FAILED;
        int error = errno;
        closedir(listing);
        errno = error;
    }
    int error = errno;
    close(folder);
    errno = error;
    return done;
}

/* The newest `keep` of those that have ended stay. */
static int prune(const char *folder, const job_runs *runs, long keep) {
    char path[PATH_MAX], shown[PATH_MAX], figure[TEXT_FIGURE_MAX];
    size_t removed = 0, kept = 0;
    uint64_t all_bytes = 0;
    int status = STATUS_DONE;
    for (size_t i = 0; i < runs->count; i++) {
        uint64_t bytes = 0;
        snprintf(path, sizeof path, "%s/%s", folder, runs->rows[i].name);
        snprintf(shown, sizeof shown, "%s", path);
        trace_read_clean(shown, sizeof shown);
        if (kept < (size_t)keep && !job_directory_in_use(path) && !has_processes(path)) {
            kept++;
            continue;
        }
        removal done = remove_run(path, &bytes);
        all_bytes += bytes;
        if (done == NOT_ENDED) {
            printf("%s: has not ended, kept\n", shown);
            continue;
        }
        if (done == FAILED) {
            LOG_E("logs: %s cannot be removed: %s", shown, strerror(errno));
            status = STATUS_PARTIAL;
            continue;
        }
        removed++;
        printf("%s: removed, %s%s\n", shown, text_bytes(figure, bytes),
               done == REMOVED_PART ? "; the folder stays, for what castor did not write" : "");
    }
    printf("%zu run%s removed, %s\n", removed, removed == 1 ? "" : "s", text_bytes(figure, all_bytes));
    return status;
}

int logs_main(int argc, char **argv) {
    logs_request request;
    int status = parse_arguments(argc, argv, &request);
    if (status >= 0)
        return status;
    const char *folder = request.folder != NULL ? request.folder : JOB_RUNS_PARENT;
    job_runs runs;
    if (job_directory_is_run(folder)) {
        LOG_E(
            "logs: %s is the log directory of one run: castor report shows it; name the folder that it is in",
            folder);
        return STATUS_USAGE;
    }
    bool listed = job_runs_list(folder, &runs);
    if (!listed && request.folder == NULL && errno == ENOENT) {
        LOG_I("there is no run in ./" JOB_RUNS_PARENT);
        status = STATUS_DONE;
    } else if (!listed) {
        LOG_E("logs: %s cannot be read: %s", folder, strerror(errno));
        status = STATUS_USAGE;
    } else if (runs.count == 0) {
        LOG_I("there is no run in %s", folder);
        status = STATUS_DONE;
    } else if (request.keep >= 0) {
        status = prune(folder, &runs, request.keep);
    } else {
        write_list(folder, &runs);
        status = STATUS_DONE;
    }
    job_runs_free(&runs);
    if (fflush(stdout) != 0) {
        LOG_E("standard output cannot be written: %s", strerror(errno));
        return STATUS_PARTIAL;
    }
    return status;
}
