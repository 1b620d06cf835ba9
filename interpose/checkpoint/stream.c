#include "stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file_bytes.h"
#include "base/log.h"

#define DIRECT_ALIGNMENT 4096ul
/* Of a smaller file the direct write costs more than the page cache. */
#define DIRECT_BYTES_MIN (1ul << 20)
#define PREFIX           ".castor-"
#define SUFFIX           ".partial"
#define DIGITS           16

/* The directory of a path, with its last slash; "" for a name alone. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static void folder_of(const char *path, char out[PATH_MAX]) {
    size_t length = folder_length(path);
    memcpy(out, path, length);
    out[length] = 0;
    if (!length)
        memcpy(out, ".", 2);
}

bool stream_find(const char *path, char place[PATH_MAX], failure *failed) {
    char folder[PATH_MAX];
    struct stat found;
    const char *name = path + folder_length(path);
    if (strlen(path) >= PATH_MAX)
        return failure_set(failed, ENAMETOOLONG, path);
    if (lstat(path, &found) == 0 && S_ISLNK(found.st_mode) && realpath(path, place))
        return true; /* a link that leads to a file; one that leads nowhere is replaced */
    folder_of(path, folder);
    if (!*name || !realpath(folder, place))
        return failure_set(failed, *name ? errno : EISDIR, path);
    size_t length = strlen(place);
    if (length + 1 + strlen(name) >= PATH_MAX)
        return failure_set(failed, ENAMETOOLONG, path);
    log_format(place + length, PATH_MAX - length, "%s%s", place[length - 1] == '/' ? "" : "/", name);
    return true;
}

/* A temporary file beside the place, locked. */
static int temporary_open(stream *s, int flags) {
    struct stat found;
    uint64_t number;
    for (;;) {
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
            return -1;
        size_t at = log_format(s->temporary, sizeof s->temporary, PREFIX);
        for (int digit = 0; digit < DIGITS; digit++, number >>= 4)
            s->temporary[at++] = "0123456789abcdef"[number & 15];
        memcpy(s->temporary + at, SUFFIX, sizeof SUFFIX);
        int fd = openat(s->folder, s->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        /* Another process may have taken it for a leftover before it was locked. */
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &found) == 0 && found.st_nlink == 0) {
            close(fd);
            continue;
        }
        return fd;
    }
}

bool stream_open(stream *s, const char *place, failure *failed) {
    struct stat found;
    char folder[PATH_MAX];
    memset(s, 0, sizeof *s);
    memcpy(s->path, place, strlen(place) + 1);
    s->name = s->path + folder_length(s->path);
    s->fd = -1;
    checksum_begin(&s->sum);
    folder_of(place, folder);
    s->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0)
        return failure_set(failed, errno, place);
    s->existed = fstatat(s->folder, s->name, &found, AT_SYMLINK_NOFOLLOW) == 0;
    if (s->existed && S_ISDIR(found.st_mode))
        return failure_set(failed, EISDIR, place);
    if (s->existed && faccessat(s->folder, s->name, W_OK, 0) != 0)
        return failure_set(failed, errno, place);
    s->fd = temporary_open(s, O_DIRECT);
    s->direct = s->fd >= 0;
    if (s->fd < 0 && errno == EINVAL)
        s->fd = temporary_open(s, 0);
    if (s->fd < 0)
        return failure_set(failed, errno, place);
    if (s->existed && S_ISREG(found.st_mode) && fchmod(s->fd, found.st_mode & 07777) != 0)
        return failure_set(failed, errno, place);
    s->buffer = mmap(NULL, STREAM_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->buffer == MAP_FAILED) {
        s->buffer = NULL;
        return failure_set(failed, ENOMEM, place);
    }
    return true;
}

static void direct_end(stream *s) {
    int flags = fcntl(s->fd, F_GETFL);
    if (s->direct && flags >= 0)
        fcntl(s->fd, F_SETFL, flags & ~O_DIRECT);
    s->direct = false;
}

static bool flush(stream *s, bool last, failure *failed) {
    size_t bytes = s->filled;
    if (last && s->bytes + bytes < DIRECT_BYTES_MIN)
        direct_end(s);
    if (s->direct && bytes % DIRECT_ALIGNMENT) { /* the last one: what is beyond the end is cut off below */
        size_t whole = (bytes / DIRECT_ALIGNMENT + 1) * DIRECT_ALIGNMENT;
        memset(s->buffer + bytes, 0, whole - bytes);
        bytes = whole;
    }
    int error = file_bytes_write(s->fd, s->buffer, bytes, s->bytes);
    if (error == EINVAL && s->direct) {
        direct_end(s);
        error = file_bytes_write(s->fd, s->buffer, bytes, s->bytes);
    }
    if (error)
        return failure_set(failed, error, s->path);
    s->bytes += s->filled;
    if (bytes != s->filled && ftruncate(s->fd, (off_t)s->bytes) != 0)
        return failure_set(failed, errno, s->path);
    s->filled = 0;
    return true;
}

bool stream_advance(stream *s, size_t bytes, failure *failed) {
    if (s->summed)
        checksum_add(&s->sum, s->buffer + s->filled, bytes);
    s->filled += bytes;
    return s->filled < STREAM_BUFFER_BYTES || flush(s, false, failed);
}

bool stream_put(stream *s, const void *data, size_t bytes, failure *failed) {
    for (const char *at = data; bytes > 0;) {
        size_t room;
        char *to = stream_room(s, &room);
        if (room > bytes)
            room = bytes;
        memcpy(to, at, room);
        if (!stream_advance(s, room, failed))
            return false;
        at += room;
        bytes -= room;
    }
    return true;
}

static void buffer_free(stream *s) {
    if (s->buffer)
        munmap(s->buffer, STREAM_BUFFER_BYTES);
    s->buffer = NULL;
}

void stream_sum_begin(stream *s, const void *text, size_t bytes) {
    checksum_begin(&s->sum);
    checksum_add(&s->sum, text, bytes);
    s->summed = true;
}

bool stream_end(stream *s, failure *failed) {
    bool good = !s->filled || flush(s, true, failed);
    buffer_free(s);
    return good;
}

bool stream_fill_in(stream *s, const void *data, size_t bytes, uint64_t at, failure *failed) {
    direct_end(s); /* the place is no whole block */
    int error = file_bytes_write(s->fd, data, bytes, at);
    return !error || failure_set(failed, error, s->path);
}

bool stream_finish(stream *s, failure *failed) {
    return fsync(s->fd) == 0 || failure_set(failed, errno, s->path);
}

bool stream_show(stream *s, failure *failed) {
    if (renameat(s->folder, s->temporary, s->folder, s->name) != 0)
        return failure_set(failed, errno, s->path);
    s->shown = true;
    return true;
}

void stream_hide(stream *s) {
    if (s->shown && !s->existed)
        unlinkat(s->folder, s->name, 0);
}

bool stream_folder_sync(const stream *s, failure *failed) {
    /* A file system that cannot do this (EINVAL) has nothing to write. */
    return fsync(s->folder) == 0 || errno == EINVAL || failure_set(failed, errno, s->path);
}

void stream_drop(stream *s) {
    if (s->fd >= 0) {
        if (!s->shown)
            unlinkat(s->folder, s->temporary, 0);
        close(s->fd);
    }
    if (s->folder >= 0)
        close(s->folder);
    s->fd = s->folder = -1;
    buffer_free(s);
}

static bool is_temporary(const char *name) {
    size_t before = strlen(PREFIX);
    return strlen(name) == before + DIGITS + strlen(SUFFIX) && memcmp(name, PREFIX, before) == 0 &&
           strspn(name + before, "0123456789abcdef") == DIGITS && strcmp(name + before + DIGITS, SUFFIX) == 0;
}

void stream_leftovers_remove(const char *place) {
    char folder[PATH_MAX];
    folder_of(place, folder);
    DIR *names = opendir(folder);
    for (struct dirent *entry; names && (entry = readdir(names)) != NULL;) {
        if (!is_temporary(entry->d_name))
            continue;
        int fd = openat(dirfd(names), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(names), entry->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (names)
        closedir(names);
}
