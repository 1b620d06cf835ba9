#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/log.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif
#define CACHESTAT_NUMBER                                                                                     \
    451 /* the same on every architecture but alpha; not in the headers of older systems */
#define SCRATCH_BYTES (64ul << 10)
#define MINCORE_PAGES 4096ul

struct cachestat_range {
    uint64_t offset, bytes;
};
struct cachestat_pages {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

static int result_of(long returned) {
    return returned < 0 ? -errno : (int)returned;
}

static int call_unmap(void *context, char *alias, uint64_t bytes) {
    (void)context;
    return result_of(madvise(alias, bytes, MADV_DONTNEED));
}

static int call_write_back(void *context, int fd, uint64_t offset, uint64_t bytes) {
    (void)context;
    return result_of(
        sync_file_range(fd, (off_t)offset, (off_t)bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
}

static int call_drop(void *context, int fd, uint64_t offset, uint64_t bytes) {
    (void)context;
    return -posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}

/* Without a place to send pages to, they are copied. */
static int64_t read_by_copy(int fd, uint64_t offset, uint64_t bytes) {
    char scratch[SCRATCH_BYTES];
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t want = bytes - done < sizeof scratch ? bytes - done : sizeof scratch;
        ssize_t got = pread(fd, scratch, want, (off_t)(offset + done));
        if (got < 0 && !done)
            return -errno;
        if (got <= 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

/* Faults in a mapping that wants huge pages read 2 MiB at a time into one page of that size, at a tenth of the CPU time of
 * single pages; and who writes to such a page faults once, not 512 times. */
static bool read_by_faults(int fd, uint64_t offset, uint64_t bytes) {
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (mapped == MAP_FAILED)
        return false;
    madvise(mapped, bytes, MADV_DONTFORK); /* in a child, pages would stay mapped */
    /* Random: no more than is asked for. What comes besides is not known to whoever counts what is in memory. */
    bool done = madvise(mapped, bytes, MADV_HUGEPAGE) == 0 && madvise(mapped, bytes, MADV_RANDOM) == 0 &&
                madvise(mapped, bytes, MADV_POPULATE_READ) == 0;
    munmap(mapped, bytes);
    return done;
}

/* Where that cannot be, or to learn what is wrong, pages go to /dev/null by reference: the kernel reads them as for any
 * sequential reader, and no byte is copied. readahead(2) and MADV_WILLNEED read single pages, at several times the CPU time. */
static int64_t call_read_ahead(void *context, int fd, uint64_t offset, uint64_t bytes) {
    (void)context;
    if (read_by_faults(fd, offset, bytes))
        return (int64_t)bytes;
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    /* An open file of its own, because the kernel's guess of what is read next belongs to the open file. */
    char path[32];
    log_format(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own >= 0)
        posix_fadvise(own, 0, 0, POSIX_FADV_SEQUENTIAL);
    int from = own >= 0 ? own : fd;
    uint64_t done = 0;
    int64_t result = -1;
    errno = ENODEV;
    while (nowhere >= 0 && done < bytes) {
        off_t at = (off_t)(offset + done);
        ssize_t got = sendfile(nowhere, from, &at, bytes - done);
        if (got <= 0) {
            result = got;
            break;
        }
        done += (uint64_t)got;
    }
    int error = errno;
    if (done)
        result = (int64_t)done;
    else if (result < 0)
        result = error == EINVAL || error == ENOSYS || error == ENODEV ? read_by_copy(from, offset, bytes)
                                                                       : -error;
    if (nowhere >= 0)
        close(nowhere);
    if (own >= 0)
        close(own);
    return result;
}

static int call_map(void *context, char *alias, uint64_t bytes, disk_map how) {
    (void)context;
    return result_of(madvise(alias, bytes, how == DISK_MAP_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ));
}

static int resident_by_mincore(const char *alias, uint64_t bytes, uint64_t *out) {
    unsigned char pages[MINCORE_PAGES];
    *out = 0;
    for (uint64_t at = 0; at < bytes; at += sizeof pages * PAGE_BYTES) {
        uint64_t piece = bytes - at < sizeof pages * PAGE_BYTES ? bytes - at : sizeof pages * PAGE_BYTES;
        if (mincore((char *)alias + at, piece, pages) < 0)
            return -errno;
        for (uint64_t i = 0; i < (piece + PAGE_BYTES - 1) / PAGE_BYTES; i++)
            *out += (pages[i] & 1) * PAGE_BYTES;
    }
    if (*out > bytes)
        *out = bytes;
    return 0;
}

static int resident(int fd, uint64_t offset, uint64_t bytes, const char *alias, uint64_t *out) {
    static _Atomic bool no_cachestat;
    *out = 0;
    if (!bytes) /* means the whole file to cachestat */
        return 0;
    if (!atomic_load_explicit(&no_cachestat, memory_order_relaxed)) {
        struct cachestat_range range = {offset, bytes};
        struct cachestat_pages pages;
        if (syscall(CACHESTAT_NUMBER, fd, &range, &pages, 0) == 0) {
            *out = pages.cached * PAGE_BYTES;
            return 0;
        }
        if (errno != ENOSYS && errno != EPERM && errno != EOPNOTSUPP)
            return -errno;
        atomic_store_explicit(&no_cachestat, errno != EOPNOTSUPP, memory_order_relaxed);
    }
    if (alias)
        return resident_by_mincore(alias, bytes, out);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (mapped == MAP_FAILED)
        return -errno;
    int result = resident_by_mincore(mapped, bytes, out);
    munmap(mapped, bytes);
    return result;
}

static int call_resident(void *context, int fd, uint64_t offset, uint64_t bytes, uint64_t *out) {
    (void)context;
    return resident(fd, offset, bytes, NULL, out);
}

const disk_calls disk_calls_system = {
    .unmap = call_unmap,
    .write_back = call_write_back,
    .drop = call_drop,
    .read_ahead = call_read_ahead,
    .map = call_map,
    .resident = call_resident,
};

castor_status disk_resident(int fd, uint64_t offset, uint64_t bytes, const char *alias, uint64_t *out) {
    int result = resident(fd, offset, bytes, alias, out);
    if (result == 0)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_SYSTEM,
                     "cannot tell how much of a file of the offload folder is in memory (errno %d)", -result);
}
