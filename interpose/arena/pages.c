#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"
#include "events/held.h"

/* PAGEMAP_SCAN (Linux 6.7): declared here, because the headers of older systems lack it. */
struct pagemap_region {
    uint64_t start, end, categories;
};
struct pagemap_scan_argument {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
        category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct pagemap_scan_argument)
#define CATEGORY_FILE        (1u << 2)
#define CATEGORY_PRESENT     (1u << 3)
#define CATEGORY_SWAPPED     (1u << 4)

/* Bits of a pagemap entry. */
#define ENTRY_PRESENT (1ull << 63)
#define ENTRY_SWAPPED (1ull << 62)
#define ENTRY_FILE    (1ull << 61)

/* One descriptor per process: a child must not use its parent's, which shows the parent's pages. */
static int pagemap_descriptor(void) {
    static _Atomic int descriptor = -1;
    static _Atomic pid_t opened_by;
    if (atomic_load(&descriptor) >= 0 && atomic_load(&opened_by) == getpid())
        return atomic_load(&descriptor);
    int old = atomic_exchange(&descriptor, -1);
    if (old >= 0)
        close(old); /* first: a child may have no other descriptor left */
    int fresh = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    old = atomic_exchange(&descriptor, fresh);
    if (old >= 0)
        close(old);
    atomic_store(&opened_by, getpid());
    return fresh;
}

/* Edited pages, or the store's own that are in the page tables. */
typedef enum page_sort { PAGES_EDITED, PAGES_OF_STORE } page_sort;

/* 1: found, 0: none, -1: the kernel has no PAGEMAP_SCAN. */
static int scan_by_ioctl(int fd, char *start, size_t bytes, page_sort sort, page_run *out) {
    struct pagemap_region region;
    struct pagemap_scan_argument argument = {
        .size = sizeof argument,
        .start = (uintptr_t)start,
        .end = (uintptr_t)start + bytes,
        .vec = (uintptr_t)&region,
        .vec_len = 1,
        .max_pages = sort == PAGES_OF_STORE, /* one is enough; 0: all */
        .category_inverted = sort == PAGES_EDITED ? CATEGORY_FILE : 0,
        .category_mask = sort == PAGES_EDITED ? CATEGORY_FILE : CATEGORY_FILE | CATEGORY_PRESENT,
        .category_anyof_mask = CATEGORY_PRESENT | CATEGORY_SWAPPED,
        .return_mask = CATEGORY_FILE,
    };
    long found = ioctl(fd, PAGEMAP_SCAN_REQUEST, &argument);
    if (found < 0)
        return -1;
    if (found == 0)
        return 0;
    *out = (page_run){(char *)(uintptr_t)region.start, region.end - region.start};
    return 1;
}

static bool entry_is(uint64_t entry, page_sort sort) {
    if (sort == PAGES_OF_STORE)
        return (entry & ENTRY_PRESENT) && (entry & ENTRY_FILE);
    return (entry & (ENTRY_PRESENT | ENTRY_SWAPPED)) && !(entry & ENTRY_FILE);
}

static bool scan_by_entries(int fd, char *start, size_t bytes, page_sort sort, page_run *out) {
    uint64_t entries[512];
    size_t pages = bytes / PAGE_BYTES;
    out->bytes = 0;
    for (size_t page = 0; page < pages;) {
        size_t want = pages - page < 512 ? pages - page : 512;
        off_t at = (off_t)(((uintptr_t)start / PAGE_BYTES + page) * sizeof *entries);
        ssize_t got = pread(fd, entries, want * sizeof *entries, at);
        if (got < (ssize_t)sizeof *entries) {
            /* Nothing is known about the rest: it counts as such. */
            if (!out->bytes)
                out->start = start + page * PAGE_BYTES;
            out->bytes = (size_t)(start + bytes - out->start);
            return true;
        }
        for (size_t i = 0; i < (size_t)got / sizeof *entries; i++, page++) {
            if (entry_is(entries[i], sort)) {
                if (!out->bytes)
                    out->start = start + page * PAGE_BYTES;
                out->bytes += PAGE_BYTES;
            } else if (out->bytes) {
                return true;
            }
        }
    }
    return out->bytes != 0;
}

static bool pages_next(char *start, size_t bytes, page_sort sort, page_run *out) {
    static _Atomic bool no_ioctl;
    if (!bytes)
        return false;
    int fd = pagemap_descriptor();
    if (fd < 0) {
        *out = (page_run){start, bytes};
        return true;
    }
    if (!atomic_load_explicit(&no_ioctl, memory_order_relaxed)) {
        int found = scan_by_ioctl(fd, start, bytes, sort, out);
        if (found >= 0)
            return found;
        if (errno == ENOTTY || errno == EINVAL)
            atomic_store_explicit(&no_ioctl, true, memory_order_relaxed);
    }
    return scan_by_entries(fd, start, bytes, sort, out);
}

bool pages_told(void) {
    return pagemap_descriptor() >= 0;
}

bool pages_edited_next(char *start, size_t bytes, page_run *out) {
    return pages_next(start, bytes, PAGES_EDITED, out);
}

bool pages_of_store(char *view, size_t bytes) {
    page_run found;
    return pages_next(view, bytes, PAGES_OF_STORE, &found);
}

/* Walks the edited runs of a view: for (page_run r = {0}; next_run(view, bytes, &r);) */
static bool next_run(char *view, size_t bytes, page_run *run) {
    char *from = run->start ? run->start + run->bytes : view;
    return from < view + bytes && pages_edited_next(from, (size_t)(view + bytes - from), run);
}

size_t pages_edited_bytes(char *view, size_t bytes) {
    size_t total = 0;
    for (page_run run = {0}; next_run(view, bytes, &run);)
        total += run.bytes;
    return total;
}

size_t pages_edited_copy(char *view, char *alias, size_t bytes) {
    size_t total = 0;
    for (page_run run = {0}; next_run(view, bytes, &run);) {
        memcpy(alias + (run.start - view), run.start, run.bytes);
        total += run.bytes;
    }
    return total;
}

/* A page that stays would hide what owners publish: training would go on with old values. */
static castor_status let_go(char *start, size_t bytes) {
    int tries = 0, failed;
    do {
        held_before_replacing(start, bytes);
        failed = madvise(start, bytes, MADV_DONTNEED) == 0 ? 0 : errno;
        if (failed == EINVAL &&
            madvise(start, bytes, MADV_DONTNEED_LOCKED) == 0) /* the script locks its memory */
            failed = 0;
    } while ((failed == EINTR || failed == EAGAIN) && ++tries < 1000);
    if (failed == 0)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_SYSTEM,
                     "cannot free %B that this rank has written (errno %d): locked memory (mlock, mlockall) "
                     "needs Linux 5.18 for that",
                     (uint64_t)bytes, failed);
}

castor_status pages_edited_drop(char *view, size_t bytes) {
    castor_status status = CASTOR_OK;
    for (page_run run = {0}; !status && next_run(view, bytes, &run);)
        status = let_go(run.start, run.bytes);
    return status;
}

void pages_unedited_drop(char *view, size_t bytes) {
    char *from = view;
    for (page_run run = {0}; next_run(view, bytes, &run); from = run.start + run.bytes)
        if (run.start > from)
            madvise(from, (size_t)(run.start - from), MADV_DONTNEED);
    if (from < view + bytes)
        madvise(from, (size_t)(view + bytes - from), MADV_DONTNEED);
}

castor_status pages_edited_drop_equal(char *view, const char *alias, size_t bytes) {
    castor_status status = CASTOR_OK;
    for (page_run run = {0}; !status && next_run(view, bytes, &run);) {
        char *equal = run.start; /* start of the pages before `page` that were found equal */
        for (char *page = run.start;; page += PAGE_BYTES) {
            bool end = page == run.start + run.bytes;
            if (!end && memcmp(page, alias + (page - view), PAGE_BYTES) == 0)
                continue;
            if (page > equal)
                status = let_go(equal, (size_t)(page - equal));
            if (end || status)
                break;
            equal = page + PAGE_BYTES;
        }
    }
    return status;
}

castor_status pages_privatize(char *view, size_t bytes) {
    if (madvise(view, bytes, MADV_POPULATE_WRITE) == 0)
        return CASTOR_OK;
    if (errno == ENOMEM || errno == EFAULT)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a private copy of %B", (uint64_t)bytes);
    /* Before Linux 5.14: write each page with what it holds. The script may be writing too, hence the atomic. */
    for (size_t at = 0; at < bytes; at += PAGE_BYTES)
        atomic_fetch_or((_Atomic char *)(view + at), 0);
    return CASTOR_OK;
}

static castor_status map(int fd, uint64_t offset, size_t bytes, void *at, int flags, char **out) {
    if (at)
        held_before_replacing(at, bytes);
    void *got = mmap(at, bytes, PROT_READ | PROT_WRITE, flags | (at ? MAP_FIXED : 0), fd, (off_t)offset);
    if (got == MAP_FAILED)
        return error_set(
            CASTOR_ERR_MEMORY,
            "cannot map %B of a chunk (errno %d): raise the limit on address space (ulimit -v) or on "
            "mappings (vm.max_map_count)",
            (uint64_t)bytes, errno);
    if (out)
        *out = got;
    return CASTOR_OK;
}

castor_status pages_map_view(int fd, uint64_t offset, size_t bytes, void *at, char **out) {
    return map(fd, offset, bytes, at, MAP_PRIVATE | MAP_NORESERVE, out);
}

castor_status pages_map_alias(int fd, uint64_t offset, size_t bytes, void *at, char **out) {
    return map(fd, offset, bytes, at, MAP_SHARED, out);
}

castor_status pages_map_zero(void *at, size_t bytes) {
    return map(-1, 0, bytes, at, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, NULL);
}
