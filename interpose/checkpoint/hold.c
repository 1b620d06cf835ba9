#include "hold.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/table.h"
#include "base/thread.h"
#include "base/userfault.h"
#include "events/held.h"

/* What is mapped where in this process, as the kernel lists it (/proc/self/maps). */
typedef enum maps_kind {
    MAPS_OWN,   /* private memory: only this process's threads and system calls write to it */
    MAPS_STORE, /* private views of parameters and states in the store's files */
    MAPS_OTHER,
} maps_kind;

#define GRAINS 16u

typedef struct slab {
    char *grains, *mapping;
    uint32_t used; /* a bit for each grain */
    struct slab *next;
} slab;

static pthread_mutex_t saved_grains_lock = PTHREAD_MUTEX_INITIALIZER;
static slab *slabs;
static uint64_t bytes_now, bytes_most;

/* A grain more than it holds: they begin at a multiple of their size, and the record of the slab lies behind them. */
#define MAPPING_BYTES ((GRAINS + 1) * GRAIN_BYTES + 4096)

static slab *slab_new(void) {
    char *mapping =
        mmap(NULL, MAPPING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    char *grains = (char *)(((uintptr_t)mapping + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES);
    madvise(grains, GRAINS * GRAIN_BYTES, MADV_HUGEPAGE);
    slab *s = (slab *)(grains + GRAINS * GRAIN_BYTES);
    *s = (slab){grains, mapping, 0, slabs};
    slabs = s;
    return s;
}

/* Room for a grain; NULL: none. Neither allocates by malloc. */
static char *saved_grains_take(void) {
    char *found = NULL;
    pthread_mutex_lock(&saved_grains_lock);
    slab *s = slabs;
    while (s && s->used == (1u << GRAINS) - 1)
        s = s->next;
    if (s || (s = slab_new()) != NULL) {
        unsigned index = (unsigned)__builtin_ctz(~s->used);
        s->used |= 1u << index;
        found = s->grains + index * GRAIN_BYTES;
        bytes_now += GRAIN_BYTES;
        bytes_most = bytes_now > bytes_most ? bytes_now : bytes_most;
    }
    pthread_mutex_unlock(&saved_grains_lock);
    return found;
}

static void saved_grains_give(char *copy) {
    slab *empty = NULL;
    pthread_mutex_lock(&saved_grains_lock);
    for (slab **at = &slabs; *at; at = &(*at)->next) {
        slab *s = *at;
        if (copy < s->grains || copy >= s->grains + GRAINS * GRAIN_BYTES)
            continue;
        s->used &= ~(1u << (size_t)(copy - s->grains) / GRAIN_BYTES);
        bytes_now -= GRAIN_BYTES;
        if (!s->used) {
            *at = s->next;
            empty = s;
        }
        break;
    }
    pthread_mutex_unlock(&saved_grains_lock);
    if (empty)
        munmap(empty->mapping, MAPPING_BYTES);
}

void saved_grains_bytes(uint64_t *now, uint64_t *most) {
    pthread_mutex_lock(&saved_grains_lock);
    *now = bytes_now;
    *most = bytes_most;
    pthread_mutex_unlock(&saved_grains_lock);
}

/* The parent's saved grains are not the child's. */
static void saved_grains_fork_child(void) {
    pthread_mutex_init(&saved_grains_lock, NULL);
    slabs = NULL;
    bytes_now = 0;
}

typedef struct mapping {
    uintptr_t begin, end;
    maps_kind kind;
} mapping;

struct hold_maps {
    mapping *list; /* by address */
    uint32_t count, capacity;
};

static const char *const store_files[] = {"/memfd:castor-param", "/memfd:castor-optim"};

/* The fields of a line: range, permissions, offset, device, inode, name. */
static maps_kind kind_of(const char *permissions, const char *name) {
    if (permissions[0] != 'r' || permissions[1] != 'w' || permissions[3] != 'p')
        return MAPS_OTHER;
    if (!*name || strcmp(name, "[heap]") == 0 || strncmp(name, "[anon:", 6) == 0)
        return MAPS_OWN;
    for (unsigned i = 0; i < sizeof store_files / sizeof *store_files; i++)
        if (strncmp(name, store_files[i], strlen(store_files[i])) == 0)
            return MAPS_STORE;
    return MAPS_OTHER;
}

static bool line_add(hold_maps *maps, const char *line) {
    char *at;
    uintptr_t begin = strtoull(line, &at, 16);
    if (*at != '-')
        return true;
    uintptr_t end = strtoull(at + 1, &at, 16);
    const char *permissions = ++at, *name = permissions;
    for (int field = 0; field < 4 && *name; field++) {
        name += strcspn(name, " ");
        name += strspn(name, " ");
    }
    maps_kind kind = kind_of(permissions, name);
    mapping *before = maps->count ? &maps->list[maps->count - 1] : NULL;
    if (before && before->end == begin && before->kind == kind) {
        before->end = end;
        return true;
    }
    mapping *list = table_room(maps->list, &maps->capacity, maps->count, sizeof *list);
    if (!list)
        return false;
    maps->list = list;
    list[maps->count++] = (mapping){begin, end, kind};
    return true;
}

#define TEXT_BYTES (64u << 10)

hold_maps *hold_maps_read(void) {
    hold_maps *maps = calloc(1, sizeof *maps);
    char *text = malloc(TEXT_BYTES + 1);
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    bool good = maps && text && fd >= 0;
    for (size_t held = 0; good;) {
        ssize_t got = read(fd, text + held, TEXT_BYTES - held);
        if (got < 0 && errno == EINTR)
            continue;
        good = got >= 0;
        if (got <= 0)
            break;
        char *line = text, *end;
        text[held += (size_t)got] = 0;
        for (; good && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = 0;
            good = line_add(maps, line);
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
        good = good && held < TEXT_BYTES;
    }
    if (fd >= 0)
        close(fd);
    free(text);
    if (good)
        return maps;
    hold_maps_free(maps);
    return NULL;
}

void hold_maps_free(hold_maps *maps) {
    if (maps)
        free(maps->list);
    free(maps);
}

/* Of the whole range; MAPS_OTHER where it is not all of one kind. */
static maps_kind maps_kind_of(const hold_maps *maps, uintptr_t begin, uintptr_t end) {
    uint32_t low = 0, high = maps->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (maps->list[middle].end <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    const mapping *m = low < maps->count ? &maps->list[low] : NULL;
    return m && m->begin <= begin && end <= m->end ? m->kind : MAPS_OTHER;
}

#define PAGE_BYTES 4096ul

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM /* Linux 5.19 */
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED /* Linux 6.4 */
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
/* Writes of system calls are stopped as well, unless UFFD_USER_MODE_ONLY is asked for. Without the last feature a page that nobody
 * has touched would not be guarded. */
#define FEATURES                                                                                             \
    (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED)

typedef enum grain_state { GRAIN_GUARDED, GRAIN_COPIED, GRAIN_RELEASED, GRAIN_LOST } grain_state;

typedef struct grain {
    char *copy;
    grain_state state;
} grain;

struct hold {
    const char *address;
    size_t bytes, read;
    size_t head, guarded; /* bytes before the guarded pages, and in them */
    char *edges;          /* what is not guarded: before and behind */
    bool of_store;
    bool listed;     /* under the lock, as all that follows */
    uint32_t intact; /* grains that are guarded */
    grain *grains;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hold **listed; /* holds with guarded grains, by address */
static uint32_t listed_count, listed_capacity;
static int descriptor = -1;
static bool tried;
static hold_statistics statistics;

/* ---- the kernel's side */

static bool guard(const char *address, size_t bytes) {
    struct uffdio_register range = {{(uintptr_t)address, bytes}, UFFDIO_REGISTER_MODE_WP, 0};
    if (ioctl(descriptor, UFFDIO_REGISTER, &range) != 0)
        return false;
    struct uffdio_writeprotect protect = {{(uintptr_t)address, bytes}, UFFDIO_WRITEPROTECT_MODE_WP};
    if (ioctl(descriptor, UFFDIO_WRITEPROTECT, &protect) == 0)
        return true;
    ioctl(descriptor, UFFDIO_UNREGISTER, &range.range);
    return false;
}

/* Whoever waits to write goes on. False: these are not the pages that were guarded. */
static bool unguard(const char *address, size_t bytes) {
    struct uffdio_writeprotect protect = {{(uintptr_t)address, bytes}, 0};
    int done;
    do
        done = ioctl(descriptor, UFFDIO_WRITEPROTECT, &protect);
    while (done != 0 && errno == EAGAIN);
    return done == 0;
}

/* Copies guarded memory. ThreadSanitizer does not know that the kernel stops who writes to it, and must not look. */
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"))) static void guarded_copy(char *to, const char *from, size_t bytes) {
    for (const volatile char *at = from; bytes > 0; bytes--)
        *to++ = *at++;
}
#else
static void guarded_copy(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
}
#endif

/* ---- grains, under the lock */

static const char *grain_address(const hold *h, size_t index, size_t *bytes) {
    /* Grains end at multiples of their size, so that large pages stay whole. */
    const char *begin = h->address + h->head, *end = begin + h->guarded;
    uintptr_t first = (uintptr_t)begin / GRAIN_BYTES;
    const char *from = index ? (const char *)((first + index) * GRAIN_BYTES) : begin;
    const char *to = (const char *)((first + index + 1) * GRAIN_BYTES);
    *bytes = (size_t)((to < end ? to : end) - from);
    return from;
}

static size_t grain_index(const hold *h, const char *address) {
    return (uintptr_t)address / GRAIN_BYTES - (uintptr_t)(h->address + h->head) / GRAIN_BYTES;
}

static size_t grain_count(const hold *h) {
    return h->guarded ? grain_index(h, h->address + h->head + h->guarded - 1) + 1 : 0;
}

static uint32_t listed_at(const char *address) { /* the first hold that ends behind the address */
    uint32_t low = 0, high = listed_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const hold *h = listed[middle];
        if (h->address + h->head + h->guarded <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void list_remove(hold *h) {
    uint32_t at = listed_at(h->address + h->head);
    memmove(listed + at, listed + at + 1, (listed_count - at - 1) * sizeof *listed);
    __atomic_store_n(&held_count, (int)--listed_count, __ATOMIC_RELEASE);
    h->listed = false;
    struct uffdio_range range = {(uintptr_t)(h->address + h->head), h->guarded};
    ioctl(descriptor, UFFDIO_UNREGISTER, &range);
}

static void grain_ended(hold *h) {
    if (--h->intact == 0)
        list_remove(h);
}

/* The bytes are copied, if memory still has them; then its pages may change. */
static void grain_copy(hold *h, size_t index) {
    grain *g = &h->grains[index];
    size_t bytes;
    const char *address = grain_address(h, index, &bytes);
    if (g->state != GRAIN_GUARDED)
        return;
    if ((g->copy = saved_grains_take()) != NULL)
        guarded_copy(g->copy, address, bytes);
    g->state = unguard(address, bytes) && g->copy ? GRAIN_COPIED : GRAIN_LOST;
    statistics.copied_later_bytes += bytes;
    grain_ended(h);
}

/* The guarded grains of the range; of holds in the store alone if `store`. */
static void range_copy(const char *begin, const char *end, bool store) {
    for (uint32_t at = listed_at(begin); at < listed_count && listed[at]->address + listed[at]->head < end;) {
        hold *h = listed[at];
        const char *from = h->address + h->head, *to = from + h->guarded;
        if (store && !h->of_store) {
            at++;
            continue;
        }
        size_t first = grain_index(h, begin > from ? begin : from);
        size_t last = grain_index(h, (end < to ? end : to) - 1);
        for (size_t index = first; index <= last; index++)
            grain_copy(h, index);
        if (h->listed)
            at++;
    }
}

static void replaced(const void *address, size_t bytes) {
    int saved_errno = errno;
    pthread_mutex_lock(&lock);
    range_copy(address, (const char *)address + bytes, false);
    pthread_mutex_unlock(&lock);
    errno = saved_errno;
}

static void store_written(void) {
    pthread_mutex_lock(&lock);
    range_copy(NULL, (const char *)UINTPTR_MAX, true);
    pthread_mutex_unlock(&lock);
}

static const held_calls calls = {replaced, store_written};

/* ---- the thread */

static void *hold_main(void *context) {
    int fd = (int)(intptr_t)context;
    prctl(PR_SET_NAME, "castor-hold");
    for (;;) {
        struct uffd_msg message;
        ssize_t got = read(fd, &message, sizeof message);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got != sizeof message)
            return NULL;
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        const char *address = (const char *)(uintptr_t)message.arg.pagefault.address;
        struct uffdio_range page = {(uintptr_t)address & ~(PAGE_BYTES - 1), PAGE_BYTES};
        pthread_mutex_lock(&lock);
        range_copy(address, address + 1, false);
        pthread_mutex_unlock(&lock);
        ioctl(fd, UFFDIO_WAKE, &page); /* its grain was released meanwhile */
    }
}

/* Under the lock. */
static bool started(void) {
    if (tried)
        return descriptor >= 0;
    tried = true;
    int fd = userfault_open(FEATURES);
    if (fd < 0)
        return false;
    if (thread_start(hold_main, (void *)(intptr_t)fd) != 0) {
        close(fd);
        return false;
    }
    descriptor = fd;
    held_now = &calls;
    return true;
}

void hold_fork_child(void) {
    if (descriptor >= 0)
        close(descriptor); /* the parent's memory */
    descriptor = -1;
    tried = false;
    listed_count = 0;
    held_count = 0;
    pthread_mutex_init(&lock, NULL);
    saved_grains_fork_child();
}

/* ---- holds */

/* Room for one more hold in the list, allocated without the lock. */
static bool room_make(void) {
    pthread_mutex_lock(&lock);
    uint32_t capacity = listed_capacity, wanted = 2 * listed_count + 256;
    bool enough = listed_count < capacity;
    pthread_mutex_unlock(&lock);
    hold **other = enough ? NULL : malloc(wanted * sizeof(hold *));
    if (enough || !other)
        return enough;
    pthread_mutex_lock(&lock);
    if (listed_capacity == capacity) { /* else another thread has made room */
        hold **before = listed;
        if (before)
            memcpy(other, before, listed_count * sizeof(hold *));
        listed = other;
        listed_capacity = wanted;
        other = before;
    }
    pthread_mutex_unlock(&lock);
    free(other);
    return true;
}

/* Guards the whole pages of the range; false: it must be copied. */
static bool hold_guard(hold *h, const hold_maps *maps) {
    uintptr_t from = ((uintptr_t)h->address + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    uintptr_t to = ((uintptr_t)h->address + h->bytes) & ~(PAGE_BYTES - 1);
    if (h->bytes < HELD_BYTES_MIN + 2 * PAGE_BYTES || !maps)
        return false;
    maps_kind kind = maps_kind_of(maps, from, to);
    if (kind == MAPS_OTHER)
        return false;
    h->of_store = kind == MAPS_STORE;
    h->head = from - (uintptr_t)h->address;
    h->guarded = to - from;
    h->edges = malloc(h->bytes - h->guarded + 1);
    h->grains = calloc(grain_count(h) + 1, sizeof *h->grains);
    if (!h->edges || !h->grains || !room_make())
        return false;
    size_t tail = h->bytes - h->head - h->guarded;
    memcpy(h->edges, h->address, h->head);
    memcpy(h->edges + h->head, h->address + h->bytes - tail, tail);
    pthread_mutex_lock(&lock);
    range_copy((const char *)from, (const char *)to, false);
    bool good = listed_count < listed_capacity && started() && guard((const char *)from, h->guarded);
    if (good) {
        uint32_t at = listed_at((const char *)from);
        memmove(listed + at + 1, listed + at, (listed_count - at) * sizeof *listed);
        listed[at] = h;
        h->listed = true;
        h->intact = (uint32_t)grain_count(h);
        statistics.guarded_bytes += h->guarded;
        __atomic_store_n(&held_count, (int)++listed_count, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return good;
}

hold *hold_take(const hold_maps *maps, const void *address, size_t bytes) {
    hold *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->address = address;
    h->bytes = bytes;
    if (hold_guard(h, maps))
        return h;
    free(h->edges);
    free(h->grains);
    *h = (hold){.address = address, .bytes = bytes, .edges = malloc(bytes + 1)};
    if (!h->edges) {
        free(h);
        return NULL;
    }
    memcpy(h->edges, address, bytes);
    __atomic_fetch_add(&statistics.copied_at_once_bytes, bytes, __ATOMIC_RELAXED);
    return h;
}

/* Bytes of one grain, from the position on; the grain is released with its last one. */
static size_t grain_read(hold *h, size_t position, char *out, size_t bytes, bool *good) {
    const char *at = h->address + h->head + position;
    size_t index = grain_index(h, at), size;
    const char *begin = grain_address(h, index, &size);
    size_t before = (size_t)(at - begin), taken = size - before < bytes ? size - before : bytes;
    char *copy = NULL;
    pthread_mutex_lock(&lock);
    grain *g = &h->grains[index];
    if (g->state == GRAIN_GUARDED)
        guarded_copy(out, at, taken);
    else if (g->state == GRAIN_COPIED)
        memcpy(out, g->copy + before, taken);
    if (before + taken == size && g->state == GRAIN_GUARDED) {
        g->state = unguard(begin, size) ? GRAIN_RELEASED : GRAIN_LOST;
        grain_ended(h);
    }
    if (before + taken == size || g->state == GRAIN_LOST) {
        copy = g->copy;
        g->copy = NULL;
    }
    *good = g->state != GRAIN_LOST;
    pthread_mutex_unlock(&lock);
    if (copy)
        saved_grains_give(copy);
    return taken;
}

bool hold_read(hold *h, char *out, size_t bytes) {
    bool good = true;
    while (bytes > 0 && good) {
        size_t taken = bytes, guarded_end = h->head + h->guarded;
        if (h->read < h->head || !h->guarded) {
            size_t left = (h->guarded ? h->head : h->bytes) - h->read;
            taken = left < bytes ? left : bytes;
            memcpy(out, h->edges + h->read, taken);
        } else if (h->read < guarded_end) {
            taken = grain_read(h, h->read - h->head, out, bytes, &good);
        } else {
            memcpy(out, h->edges + (h->read - h->guarded), taken);
        }
        h->read += taken;
        out += taken;
        bytes -= taken;
    }
    return good;
}

void hold_drop(hold *h) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < grain_count(h) && h->listed; i++) {
        size_t bytes;
        const char *address = grain_address(h, i, &bytes);
        if (h->grains[i].state != GRAIN_GUARDED)
            continue;
        unguard(address, bytes);
        h->grains[i].state = GRAIN_RELEASED;
        grain_ended(h);
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; h->grains && i < grain_count(h); i++)
        if (h->grains[i].copy)
            saved_grains_give(h->grains[i].copy);
    free(h->grains);
    free(h->edges);
    free(h);
}

void hold_statistics_get(hold_statistics *out) {
    pthread_mutex_lock(&lock);
    *out = statistics;
    pthread_mutex_unlock(&lock);
}
