#include "runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "job/ends.h"
#include "launcher/common/about_read.h"
#include "launcher/common/array.h"
#include "launcher/common/suffix.h"
#include "trace/format.h"
#include "trace/live_format.h"

bool job_file_is(const char *name) {
    static const char *const names[] = {TRACE_BUDGET_NAME,  TRACE_ABOUT_NAME,          TRACE_UNREACHED_NAME,
                                        TRACE_REFUSED_NAME, TRACE_REFUSED_UNSEEN_NAME, TRACE_SAID_NAME,
                                        ENDS_NAME};
    static const char prefix[] = "rank";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    if (has_suffix(name, TRACE_COUNTERS_SUFFIX) || has_suffix(name, TRACE_SEGMENT_SUFFIX) ||
        has_suffix(name, LIVE_SUFFIX) || has_suffix(name, LIVE_STACK_SUFFIX))
        return strstr(name, ".pid-") != NULL;
    const char *number = name + sizeof prefix - 1;
    size_t digits = strspn(number, "0123456789");
    return digits > 0 && (strcmp(number + digits, ".out") == 0 || strcmp(number + digits, ".err") == 0);
}

/* Looks through the folder, which it closes. False: it is no run. */
static bool look_at(int folder, job_run *run) {
    DIR *listing = fdopendir(folder);
    struct stat status;
    bool found = false;
    if (listing == NULL) {
        close(folder);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        found |= job_file_is(entry->d_name);
        if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode))
            run->bytes += (uint64_t)status.st_blocks * 512;
    }
    about about;
    run->started_ns = about_read(folder, &about) ? about_number(&about, TRACE_ABOUT_STARTED) : 0;
    about_free(&about);
    if (run->started_ns == 0 && fstat(folder, &status) == 0)
        run->started_ns = (uint64_t)status.st_mtim.tv_sec * 1000000000u + (uint64_t)status.st_mtim.tv_nsec;
    closedir(listing);
    return found;
}

static int open_folder(int parent, const char *name) {
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool job_directory_is_run(const char *directory) {
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder >= 0 && look_at(folder, &(job_run){0});
}

static int compare_runs(const void *left, const void *right) {
    const job_run *a = left, *b = right;
    if (a->started_ns != b->started_ns)
        return a->started_ns < b->started_ns ? 1 : -1;
    return strcmp(b->name, a->name);
}

bool job_runs_list(const char *parent, job_runs *out) {
    *out = (job_runs){0};
    DIR *listing = opendir(parent);
    if (listing == NULL)
        return false;
    bool complete = true;
    for (struct dirent *entry; complete && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        int folder = open_folder(dirfd(listing), entry->d_name);
        job_run run = {0};
        if (folder < 0 || !look_at(folder, &run))
            continue;
        snprintf(run.name, sizeof run.name, "%s", entry->d_name);
        complete = array_grow(&out->rows, &out->capacity, out->count, sizeof *out->rows);
        if (complete)
            out->rows[out->count++] = run;
    }
    closedir(listing);
    if (out->count > 1)
        qsort(out->rows, out->count, sizeof *out->rows, compare_runs);
    if (!complete)
        errno = ENOMEM;
    return complete;
}

void job_runs_free(job_runs *runs) {
    free(runs->rows);
    *runs = (job_runs){0};
}

bool job_runs_newest(char *out, size_t out_size) {
    job_runs runs;
    bool found = job_runs_list(JOB_RUNS_PARENT, &runs) && runs.count > 0;
    if (found)
        snprintf(out, out_size, JOB_RUNS_PARENT "/%s", runs.rows[0].name);
    job_runs_free(&runs);
    return found;
}
