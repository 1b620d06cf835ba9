#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/log.h"

#define PATH_BYTES       4096
#define PAGES_MADE_BYTES 1048576 /* files of this size are written to at once */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; EINVAL before */
#endif

static char directory_path[PATH_BYTES];

castor_status trace_file_set_directory(const char *directory) {
    directory_path[0] = '\0';
    if (directory == NULL || directory[0] == '\0')
        return CASTOR_OK;
    size_t length = 0;
    if (directory[0] != '/') {
        /* The script may change its working directory before the first file is made. */
        if (getcwd(directory_path, sizeof directory_path) == NULL) {
            directory_path[0] = '\0';
            return CASTOR_ERR_SYSTEM;
        }
        length = strlen(directory_path);
    }
    size_t more = strlen(directory);
    if (length + more + 2 > sizeof directory_path) {
        directory_path[0] = '\0';
        return CASTOR_ERR_ARGUMENT;
    }
    if (length > 0)
        directory_path[length++] = '/';
    memcpy(directory_path + length, directory, more + 1);
    return CASTOR_OK;
}

const char *trace_file_directory(void) {
    return directory_path;
}

static bool path_of(char path[PATH_BYTES], const char *name) {
    size_t length = strlen(directory_path), more = strlen(name);
    if (length == 0 || length + more + 2 > PATH_BYTES) {
        errno = length == 0 ? ENOENT : ENAMETOOLONG;
        return false;
    }
    memcpy(path, directory_path, length);
    path[length] = '/';
    memcpy(path + length + 1, name, more + 1);
    return true;
}

/* A page of a sparse file that cannot get its block when it is touched is a SIGBUS in the script, and growing
 * beyond RLIMIT_FSIZE a SIGXFSZ: both must be an errno here. */
static bool reserve_blocks(int fd, uint64_t bytes, bool in_use) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
        errno = EFBIG;
        return false;
    }
    int result, tries = 0;
    do
        result = fallocate(fd, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR && ++tries < 100);
    if (result == 0)
        return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return false;
    /* No such operation on this file system: writing gets the blocks as well. A file in use is one block, of
     * which nobody uses the last byte. */
    static const char zeros[4096];
    if (in_use)
        return pwrite(fd, zeros, 1, (off_t)bytes - 1) == 1;
    for (uint64_t offset = 0; offset < bytes;) {
        size_t piece = bytes - offset < sizeof zeros ? (size_t)(bytes - offset) : sizeof zeros;
        ssize_t written = pwrite(fd, zeros, piece, (off_t)offset);
        if (written <= 0) {
            if (written < 0 && errno == EINTR && ++tries < 100)
                continue;
            return false;
        }
        offset += (uint64_t)written;
    }
    return true;
}

/* Page faults cost more than the records of their pages: a large file's pages are made at once. Those that were
 * written before are the file system's cheapest to map; the blocks are reserved, so that a failure means nothing. */
static void pages_write(int fd, uint64_t bytes) {
    static const char zeros[4096];
    struct iovec vectors[64];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        vectors[i] = (struct iovec){.iov_base = (void *)zeros, .iov_len = sizeof zeros};
    for (uint64_t offset = 0; offset + sizeof zeros <= bytes;) {
        uint64_t left = (bytes - offset) / sizeof zeros, most = sizeof vectors / sizeof *vectors;
        ssize_t written = pwritev(fd, vectors, (int)(left < most ? left : most), (off_t)offset);
        if (written <= 0)
            return;
        offset += (uint64_t)written;
    }
}

static void *map(int fd, uint64_t bytes) {
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return address == MAP_FAILED ? NULL : address;
}

void *trace_file_create(const char *name, uint64_t bytes) {
    char path[PATH_BYTES];
    if (!path_of(path, name))
        return NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    bool reserved = reserve_blocks(fd, bytes, false), large = bytes >= PAGES_MADE_BYTES;
    int error = errno;
    if (reserved && large)
        pages_write(fd, bytes);
    void *address = reserved ? map(fd, bytes) : NULL;
    error = reserved ? errno : error;
    if (address && large)
        madvise(address, bytes, MADV_POPULATE_WRITE);
    if (address == NULL)
        unlink(path);
    /* Not kept: a script that closes descriptors by number would leave us writing into somebody else's file. */
    close(fd);
    errno = error;
    return address;
}

void *trace_file_share(const char *name, uint64_t bytes) {
    char path[PATH_BYTES];
    if (!path_of(path, name))
        return NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return NULL;
    struct stat status;
    void *address = NULL;
    if (fstat(fd, &status) == 0) {
        if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
            errno = EPERM;
        else if (reserve_blocks(fd, bytes, true))
            address = map(fd, bytes);
    }
    int error = errno;
    close(fd);
    errno = error;
    return address;
}

const char *trace_file_error(int error) {
    switch (error) {
    case EACCES:
    case EPERM:
        return "permission denied";
    case ENOENT:
        return "no such directory";
    case ENOTDIR:
        return "not a directory";
    case ENOSPC:
        return "no space left on the device";
    case EDQUOT:
        return "disk quota exceeded";
    case EROFS:
        return "read-only file system";
    case EFBIG:
        return "file size limit (ulimit -f)";
    case EMFILE:
    case ENFILE:
        return "too many open files";
    case ENOMEM:
        return "out of memory";
    case EEXIST:
        return "all file names of this process are taken";
    default:
        return "input/output error";
    }
}
