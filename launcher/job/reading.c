#include "reading.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/process.h"
#include "launcher/common/array.h"
#include "launcher/common/live_read.h"
#include "launcher/common/suffix.h"
#include "launcher/common/trace_read.h"

/* ---- the state of a process ---- */

static bool is_of_this_host(const trace_counters *counters) {
    struct utsname system;
    return counters == NULL ||
           (uname(&system) == 0 && strncmp(system.nodename, counters->host, sizeof counters->host - 1) == 0);
}

static job_state find_state(const job_process *process) {
    const trace_counters *counters = process->counters;
    if (counters != NULL && counters->exit_state == TRACE_PROCESS_EXITED)
        return JOB_EXITED;
    if (!is_of_this_host(counters))
        return JOB_RUNNING; /* as it told last */
    uint64_t ticks = counters != NULL ? counters->start_clock_ticks : process->live->start_clock_ticks;
    char letter = process_state((int)process->pid, ticks);
    if (letter == 0)
        return JOB_DIED;
    return letter == 'T' || letter == 't' ? JOB_STOPPED : JOB_RUNNING;
}

bool job_runs_here(const trace_counters *counters) {
    return is_of_this_host(counters) && process_state((int)counters->pid, counters->start_clock_ticks) != 0;
}

/* ---- the files ---- */

static job_process *process_of(job_reading *reading, uint64_t uid) {
    for (size_t i = 0; i < reading->count; i++)
        if (reading->processes[i].uid == uid)
            return &reading->processes[i];
    if (!array_grow(&reading->processes, &reading->capacity, reading->count, sizeof *reading->processes))
        return NULL;
    job_process *process = &reading->processes[reading->count++];
    *process = (job_process){.uid = uid, .rank = -1};
    return process;
}

static void note_unreadable(job_reading *reading, const char *name, const char *why) {
    if (reading->unreadable++ == 0) {
        snprintf(reading->message, sizeof reading->message, "%s %s", name, why);
        trace_read_clean(reading->message, sizeof reading->message);
    }
}

/* Each returns false when memory is out. */
static bool read_counters(job_reading *reading, int fd, const char *name) {
    char message[TRACE_READ_MESSAGE_MAX];
    trace_counters *counters = malloc(sizeof *counters);
    if (counters == NULL)
        return false;
    trace_read_status status = trace_read_counters(fd, counters, message);
    job_process *process = status == TRACE_READ_OK ? process_of(reading, counters->uid) : NULL;
    if (status == TRACE_READ_BAD)
        note_unreadable(reading, name, message);
    if (process == NULL || process->counters != NULL) {
        free(counters);
        return status != TRACE_READ_OK || process != NULL;
    }
    process->counters = counters;
    process->pid = counters->pid;
    return true;
}

static bool read_live(job_reading *reading, int fd, const char *name) {
    live_file *live = malloc(sizeof *live);
    if (live == NULL)
        return false;
    bool valid = live_read(fd, live); /* one that is just being made is not yet */
    job_process *process = valid ? process_of(reading, live->process_uid) : NULL;
    if (process == NULL || process->live != NULL) {
        free(live);
        return !valid || process != NULL;
    }
    process->live = live;
    process->pid = live->pid;
    snprintf(process->name, sizeof process->name, "%.*s", (int)(strlen(name) - strlen(LIVE_SUFFIX)), name);
    return true;
}

static int compare_processes(const void *left, const void *right) {
    const job_process *a = left, *b = right;
    if (a->rank != b->rank)
        return (unsigned)a->rank < (unsigned)b->rank ? -1 : 1; /* -1 is the largest */
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

bool job_reading_take(const char *directory, unsigned files, job_reading *out) {
    *out = (job_reading){.now_ns = clock_ns(CLOCK_MONOTONIC), .now_realtime_ns = clock_ns(CLOCK_REALTIME)};
    DIR *listing = opendir(directory);
    if (listing == NULL)
        return false;
    bool complete = true;
    for (struct dirent *entry; complete && (entry = readdir(listing)) != NULL;) {
        const char *name = entry->d_name;
        bool counters = (files & JOB_LOOK_COUNTERS) && has_suffix(name, TRACE_COUNTERS_SUFFIX);
        bool live = (files & JOB_LOOK_LIVE) && has_suffix(name, LIVE_SUFFIX);
        if (!counters && !live)
            continue;
        /* Not blocked by a pipe of that name. */
        int fd = openat(dirfd(listing), name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        struct stat status;
        if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
            complete = counters ? read_counters(out, fd, name) : read_live(out, fd, name);
        if (fd >= 0)
            close(fd);
    }
    if (complete && (files & JOB_LOOK_COUNTERS))
        complete = job_notes_read(dirfd(listing), &out->notes);
    closedir(listing);
    if (!complete)
        errno = ENOMEM;
    for (size_t i = 0; i < out->count; i++) {
        job_process *process = &out->processes[i];
        process->state = find_state(process);
        process->rank = process->counters != NULL ? process->counters->rank : -1;
        if (process->rank < 0 && process->live != NULL)
            process->rank = process->live->rank;
    }
    if (out->count > 1)
        qsort(out->processes, out->count, sizeof *out->processes, compare_processes);
    return complete;
}

void job_reading_free(job_reading *reading) {
    for (size_t i = 0; i < reading->count; i++) {
        free(reading->processes[i].counters);
        free(reading->processes[i].live);
    }
    free(reading->processes);
    job_notes_free(&reading->notes);
    *reading = (job_reading){0};
}

/* Told by the kernel's list of locks: trying the lock could keep a run that starts now from getting it. */
bool job_directory_in_use(const char *directory) {
    struct stat status;
    FILE *locks = stat(directory, &status) == 0 ? fopen("/proc/locks", "re") : NULL;
    if (locks == NULL)
        return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, locks)) {
        char kind[16];
        unsigned high, low;
        unsigned long long inode;
        found = sscanf(line, "%*s %15s %*s %*s %*s %x:%x:%llu", kind, &high, &low, &inode) == 4 &&
                strcmp(kind, "FLOCK") == 0 && inode == (unsigned long long)status.st_ino &&
                makedev(high, low) == status.st_dev;
    }
    fclose(locks);
    return found;
}
