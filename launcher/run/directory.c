#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/job/runs.h"

/* Removes the directories of `path` that this run made, the deepest first; those that hold something stay. */
static void remove_made(const char *shown, size_t made_from) {
    char path[PATH_MAX];
    if (!made_from)
        return;
    strcpy(path, shown);
    for (size_t length = strlen(path); length >= made_from; length--) {
        if (path[length] && path[length] != '/')
            continue;
        path[length] = '\0';
        if (length && path[length - 1] != '/' && rmdir(path) != 0)
            return;
    }
}

/* castor-logs/TIME */
static bool make_default(run_directory *out) {
    strcpy(out->shown, JOB_RUNS_PARENT);
    if (!job_folders_make(JOB_RUNS_PARENT, &out->made_from) ||
        !job_directory_make(JOB_RUNS_PARENT, out->shown, sizeof out->shown))
        return false;
    if (!out->made_from)
        out->made_from = strlen(out->shown);
    return true;
}

/* Permissions do not tell (root, read-only and full file systems); a file of that size does. */
static bool try_to_write(const char *directory, size_t bytes) {
    char path[PATH_MAX + 16];
    struct sigaction ignored = {.sa_handler = SIG_IGN},
                     before; /* a limit on the size of files would end castor */
    snprintf(path, sizeof path, "%s/.castor-XXXXXX", directory);
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0)
        return false;
    sigaction(SIGXFSZ, &ignored, &before);
    int reason = posix_fallocate(file, 0, (off_t)bytes);
    sigaction(SIGXFSZ, &before, NULL);
    close(file);
    unlink(path);
    errno = reason;
    return reason == 0;
}

bool run_directory_takes(const run_directory *directory, size_t bytes) {
    return try_to_write(directory->path, bytes);
}

int run_directory_prepare(const char *wanted, run_directory *out) {
    *out = (run_directory){.lock = -1};
    if (strlen(wanted) >= sizeof out->shown) {
        LOG_E("--log-dir: the name is too long");
        return RUN_EXIT_USAGE;
    }
    if (wanted[0])
        strcpy(out->shown, wanted);
    bool made = wanted[0] ? job_folders_make(out->shown, &out->made_from) : make_default(out);
    if (!made || !realpath(out->shown, out->path) || !try_to_write(out->path, 1)) {
        if (errno == EFBIG)
            LOG_E("the log directory %s cannot be written: the limit on the size of files (ulimit -f) is too "
                  "low",
                  out->shown);
        else
            LOG_E("the log directory %s cannot be written: %s; name another with --log-dir", out->shown,
                  strerror(errno));
        run_directory_abandon(out);
        return RUN_EXIT_SYSTEM;
    }
    out->lock = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A file system without locks is no reason to stop. */
    if (out->lock >= 0 && flock(out->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        LOG_E("the log directory %s is in use by another run; name another with --log-dir", out->shown);
        close(out->lock);
        out->lock = -1;
        return RUN_EXIT_SYSTEM;
    }
    return 0;
}

void run_directory_clear(const run_directory *directory) {
    char files[PATH_MAX + 16];
    run_files_path(directory, files, sizeof files);
    run_files_remove(files);
    DIR *entries = opendir(directory->path);
    if (!entries)
        return;
    size_t removed = 0;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (job_file_is(entry->d_name) && unlinkat(dirfd(entries), entry->d_name, 0) == 0)
            removed++;
    closedir(entries);
    if (removed)
        LOG_I("%s held the trace of an earlier run; it is replaced", directory->shown);
}

void run_directory_abandon(run_directory *directory) {
    int reason = errno;
    remove_made(directory->shown, directory->made_from);
    if (directory->lock >= 0)
        close(directory->lock);
    directory->lock = -1;
    directory->made_from = 0;
    errno = reason;
}
