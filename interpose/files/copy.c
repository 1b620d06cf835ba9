/* Copies of files and trees, from what lies below to layer 0. */
#include "overlay.h"

#include <errno.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include "base/log.h"
#include "calls.h"

static void say_full(const char *place) {
    static int said;
    if (errno != ENOSPC && errno != EDQUOT)
        return;
    int reason = errno;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        LOG_E("the disk is full at %s, where this rank keeps its own copies of files that it changes: set "
              "castor run --log-dir to a folder on a larger disk",
              place);
    errno = reason;
}

int files_make_parents(int layer, const char *path) {
    char place[FILES_PATH_MAX];
    if (files_place_in(layer, path, place) != 0)
        return -1;
    char *end = strrchr(place, '/');
    *end = '\0';
    if (end == place || call_mkdir(place, 0700) == 0 || errno == EEXIST)
        return 0;
    for (char *at = place + 1; errno == ENOENT || errno == EEXIST;
         at++) { /* from the top, the layer's own folder too */
        at += strcspn(at, "/");
        *at = '\0';
        if (call_mkdir(place, 0700) != 0 && errno != EEXIST)
            break;
        if (at == end)
            return 0;
        *at = '/';
        errno = ENOENT;
    }
    say_full(place);
    return -1;
}

static int copy_bytes(int from, int to, off_t size) {
    char buffer[16384];
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    while (size > 0) {
        ssize_t done = syscall(SYS_copy_file_range, from, NULL, to, NULL, (size_t)size, 0);
        if (done <= 0)
            break;
        size -= done;
    }
    for (;;) { /* the rest, where the kernel does not copy */
        ssize_t got = read(from, buffer, sizeof buffer);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -1;
        for (ssize_t done = 0; done < got;) {
            ssize_t written = write(to, buffer + done, (size_t)(got - done));
            if (written < 0 && errno != EINTR)
                return -1;
            done += written > 0 ? written : 0;
        }
    }
}

/* A name beside `to` that nobody else has. */
static int temporary_name(const char *to, char *out) {
    static unsigned number;
    const char *slash = strrchr(to, '/');
    size_t length = log_format(out, FILES_PATH_MAX, "%.*s/" FILES_MARK "new.%d.%u", (int)(slash - to), to,
                               (int)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    if (length + 1 < FILES_PATH_MAX)
        return 0;
    errno = ENAMETOOLONG;
    return -1;
}

/* Gives a whole file its name. Another thread may have made the same meanwhile. */
static int put_in_place(const char *made, const char *to, bool replaces) {
    int done = call_rename(made, to, replaces ? 0 : RENAME_NOREPLACE);
    if (done != 0 && errno == EINVAL && !replaces) { /* a file system that cannot */
        done = call_link(made, to, 0);
        if (done == 0 || errno == EEXIST)
            call_unlink(made, 0);
    }
    if (done == 0 || errno != EEXIST || replaces)
        return done;
    call_unlink(made, 0);
    return 0;
}

static int copy_regular(const char *from, const char *to, const struct stat *info, bool replaces) {
    char made[FILES_PATH_MAX];
    struct timespec times[2] = {info->st_atim, info->st_mtim};
    int result = -1, source = call_open(from, O_RDONLY | O_CLOEXEC, 0);
    if (source < 0)
        return -1;
    if (temporary_name(to, made) != 0)
        goto close_source;
    int copy = call_open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (copy < 0)
        goto close_source;
    if (copy_bytes(source, copy, info->st_size) == 0) {
        fchmod(copy, info->st_mode & 07777);
        syscall(SYS_utimensat, copy, NULL, times, 0);
        result = put_in_place(made, to, replaces);
    }
    int reason = errno;
    close(copy);
    if (result != 0)
        call_unlink(made, 0);
    errno = reason;
close_source:
    reason = errno;
    close(source);
    errno = reason;
    if (result != 0)
        say_full(to);
    return result;
}

int files_copy(const char *from, const char *to, const struct stat *info) {
    char target[FILES_PATH_MAX];
    if (S_ISREG(info->st_mode))
        return copy_regular(from, to, info, false);
    if (S_ISDIR(info->st_mode))
        return call_mkdir(to, info->st_mode & 07777) == 0 || errno == EEXIST ? 0 : -1;
    if (!S_ISLNK(info->st_mode)) {
        errno = EXDEV; /* sockets, pipes and devices stay where they are */
        return -1;
    }
    ssize_t length = call_readlink(from, target, sizeof target - 1);
    if (length < 0)
        return -1;
    target[length] = '\0';
    return call_symlink(target, to) == 0 || errno == EEXIST ? 0 : -1;
}

int files_copy_entry(const char *from, const char *to, const struct stat *info) {
    if (S_ISREG(info->st_mode) && info->st_size >= FILES_SHARED_BYTES && call_link(from, to, 0) == 0)
        return 0;
    return files_copy(from, to, info);
}

/* A file of layer 0 that shares its data with another name gets data of its own. */
static int copy_apart(const files_found *found) {
    char place[FILES_PATH_MAX];
    if (!S_ISREG(found->info.st_mode) || found->info.st_nlink < 2)
        return 0;
    return files_place_in(0, found->path, place) == 0 ? copy_regular(place, place, &found->info, true) : -1;
}

int files_copy_up(const files_found *found) {
    char from[FILES_PATH_MAX], to[FILES_PATH_MAX];
    if (found->layer == 0)
        return copy_apart(found);
    if (files_place_of(found, from) != 0 || files_place_in(0, found->path, to) != 0 ||
        files_make_parents(0, found->path) != 0)
        return -1;
    return files_copy(from, to, &found->info);
}

/* The names of a folder of a layer, all of it; recursion as deep as the tree. */
int files_clear(const char *place) {
    char entries[2048], name[FILES_PATH_MAX];
    if (call_unlink(place, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    int folder = call_open(place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (folder < 0)
        return -1;
    for (bool again = true; again;) { /* names that were removed may have hidden others from the first look */
        long size;
        again = false;
        lseek(folder, 0, SEEK_SET);
        while ((size = call_entries(folder, entries, sizeof entries)) > 0)
            for (long at = 0; at < size;) {
                const call_entry *entry = (const call_entry *)(entries + at);
                at += entry->size;
                if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
                    continue;
                if (log_format(name, sizeof name, "%s/%s", place, entry->name) + 1 < sizeof name &&
                    files_clear(name) == 0)
                    again = true;
            }
    }
    close(folder);
    return call_unlink(place, AT_REMOVEDIR);
}
