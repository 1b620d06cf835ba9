#include "demand.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/thread.h"
#include "base/userfault.h"
#include "wait.h"

#define PIECE_BYTES (1ul << 20)
/* Faults on shared memory, and who faulted. Faults of system calls need no feature: they come unless
 * UFFD_USER_MODE_ONLY is asked for. */
#define FEATURES (UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_THREAD_ID)

typedef struct watched {
    char *address;
    tensor *tensor;
    chunk_kind kind;
} watched;

/* Of one process and store. */
typedef struct demand {
    store *store;
    int descriptor; /* userfaultfd */
    int kinds;
    demand_source source;
    uint64_t room;
    char *piece;          /* PIECE_BYTES, under the node's lock */
    pthread_mutex_t lock; /* of what follows; nothing is touched or waited for under it */
    watched *mappings;
    uint32_t count, capacity;
} demand;

/* ---- the node's lock */

#define LOCK_LOOKS  20
#define LOCK_NAP_NS 50000

/* Waits on a clock that nobody sets back, which glibc before 2.30 has no lock for; who has the lock has it for moments. */
static castor_status lock_take(store *s) {
    const struct timespec nap = {.tv_nsec = LOCK_NAP_NS};
    struct timespec until, now;
    int failed;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)s->timeout_seconds;
    for (unsigned looks = 0; (failed = pthread_mutex_trylock(&s->control->demand_lock)) == EBUSY; looks++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until.tv_sec) {
            failed = ETIMEDOUT;
            break;
        }
        if (looks < LOCK_LOOKS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    /* A range that a dead rank was loading is still away, and the pages that came are right. */
    if (failed == EOWNERDEAD)
        failed = pthread_mutex_consistent(&s->control->demand_lock);
    if (failed)
        return error_set(
            CASTOR_ERR_TIMEOUT,
            "rank %d waited %.0f s for another rank of its node, which loads what another node keeps; raise "
            "CASTOR_TIMEOUT if the network is only slow",
            store_job_rank(s, s->rank), s->timeout_seconds);
    return CASTOR_OK;
}

static void lock_give(store *s) {
    pthread_mutex_unlock(&s->control->demand_lock);
}

/* ---- ranges */

bool demand_worth(const store *s, size_t bytes) {
    size_t worth = s->chunks.chunk_bytes / 16;
    return bytes >= (worth < DEMAND_BYTES_WORTH ? worth : DEMAND_BYTES_WORTH);
}

bool demand_single(const tensor *t, chunk_kind kind) {
    const demand *d = t->store->demand;
    return d && t->single && (kind == CHUNK_GRAD || (kind == CHUNK_PARAM && d->kinds > 1));
}

bool demand_elsewhere(const tensor *t, chunk_kind kind) {
    return demand_single(t, kind) && t->node != t->store->node;
}

static uint64_t offset_of(const tensor *t, chunk_kind kind) {
    return kind == CHUNK_GRAD ? t->grad_offset : t->param_offset;
}

/* Callers hold the node's lock from here on, to `load`. */
static void residency_set(tensor *t, chunk_kind kind, demand_residency residency) {
    store_control *c = t->store->control;
    if (t->control->residency[kind] == DEMAND_LOADED)
        c->demand_bytes -= t->span;
    if (residency == DEMAND_LOADED) {
        c->demand_bytes += t->span;
        t->control->loaded_at[kind] = ++c->demand_clock;
    }
    t->control->residency[kind] = residency;
}

static void drop(tensor *t, chunk_kind kind) {
    residency_set(t, kind, DEMAND_AWAY);
    chunk_punch(&t->store->chunks, kind, offset_of(t, kind), t->span);
}

/* The range that was loaded first. */
static watched oldest(const demand *d) {
    watched found = {NULL, NULL, CHUNK_PARAM};
    for (uint32_t i = 0; i < d->count; i++) {
        const watched *w = &d->mappings[i];
        const tensor_control *c = w->tensor->control;
        if (c->residency[w->kind] == DEMAND_LOADED &&
            (!found.tensor || c->loaded_at[w->kind] < found.tensor->control->loaded_at[found.kind]))
            found = *w;
    }
    return found;
}

static castor_status load(tensor *t, chunk_kind kind) {
    store *s = t->store;
    demand *d = s->demand;
    if (t->control->residency[kind] != DEMAND_AWAY)
        return CASTOR_OK;
    for (size_t at = 0; at < t->span; at += PIECE_BYTES) {
        size_t bytes = t->span - at < PIECE_BYTES ? t->span - at : PIECE_BYTES;
        uint64_t offset = offset_of(t, kind) + at;
        castor_status status = d->source.read(d->source.context, t->node, kind, offset, d->piece, bytes);
        /* A page that is written by a system call is seen whole or not at all. */
        if (status == CASTOR_OK)
            status = chunk_write(&s->chunks, kind, offset, d->piece, bytes);
        if (status)
            return status;
    }
    residency_set(t, kind, DEMAND_LOADED);
    pthread_mutex_lock(&d->lock);
    while (s->control->demand_bytes > d->room) {
        watched w = oldest(d);
        if (!w.tensor || (w.tensor == t && w.kind == kind)) /* the last one stays */
            break;
        drop(w.tensor, w.kind);
    }
    pthread_mutex_unlock(&d->lock);
    return CASTOR_OK;
}

/* ---- the thread */

static bool find(demand *d, const char *address, watched *out) {
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = d->count; i-- > 0 && !found;) {
        const watched *w = &d->mappings[i];
        if (address >= w->address && address < w->address + w->tensor->span) {
            *out = *w;
            found = true;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

/* Whoever touched the page goes on when it is there. */
static castor_status resolve(demand *d, char *address) {
    watched w;
    if (!find(d, address, &w))
        return error_set(CASTOR_ERR_ARGUMENT, "a page fault at an address that nobody watches");
    castor_status status = lock_take(d->store);
    if (status == CASTOR_OK) {
        if (w.tensor->control->residency[w.kind] == DEMAND_HERE) {
            /* A page of a range that this node writes itself, which nobody has written yet. */
            uint64_t page = (uint64_t)(address - w.address) & ~(PAGE_BYTES - 1);
            if (fallocate(d->store->chunks.list[w.kind].fd, FALLOC_FL_KEEP_SIZE,
                          (off_t)(offset_of(w.tensor, w.kind) + page), PAGE_BYTES) != 0)
                status = error_set(CASTOR_ERR_MEMORY, "no room for a page of a chunk (errno %d)", errno);
        } else {
            status = load(w.tensor, w.kind);
        }
        lock_give(d->store);
    }
    if (status == CASTOR_OK) {
        struct uffdio_range range = {(uintptr_t)w.address, w.tensor->span};
        ioctl(d->descriptor, UFFDIO_WAKE, &range);
    }
    return status;
}

static void *demand_main(void *context) {
    demand *d = context;
    prctl(PR_SET_NAME, "castor-demand");
    for (;;) {
        struct uffd_msg message;
        ssize_t got = read(d->descriptor, &message, sizeof message);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got != sizeof message)
            return NULL;
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        castor_status status = resolve(d, (char *)(uintptr_t)message.arg.pagefault.address);
        if (status == CASTOR_OK)
            continue;
        /* The thread cannot go on without these bytes, and must not go on with others: as with a mapped file that
         * cannot be read. */
        LOG_E("%s", error_text());
        store_fail(d->store, status);
        syscall(SYS_tgkill, getpid(), (int)message.arg.pagefault.feat.ptid, SIGBUS);
    }
}

/* ---- starting */

castor_status demand_probe(void) {
    int fd = userfault_open(FEATURES);
    if (fd < 0)
        return error_set(
            CASTOR_ERR_UNSUPPORTED,
            "the kernel refuses userfaultfd (errno %d): vm.unprivileged_userfaultfd=1, CAP_SYS_PTRACE, or "
            "access to /dev/userfaultfd allows it",
            errno);
    close(fd);
    return CASTOR_OK;
}

castor_status demand_start(store *s, int kinds, const demand_source *source, uint64_t room) {
    if (s->tensor_count || s->node_count < 2)
        return error_set(CASTOR_ERR_ARGUMENT, "tensors are registered already, or there is one node only");
    demand *d = calloc(1, sizeof *d);
    if (!d || !(d->piece = malloc(PIECE_BYTES))) {
        free(d);
        return error_set(CASTOR_ERR_MEMORY, "no memory for the thread castor-demand");
    }
    d->store = s;
    d->kinds = kinds;
    d->source = *source;
    d->room = room;
    pthread_mutex_init(&d->lock, NULL);
    d->descriptor = userfault_open(FEATURES);
    int failed = d->descriptor < 0 ? errno : thread_start(demand_main, d);
    if (failed) {
        if (d->descriptor >= 0)
            close(d->descriptor);
        free(d->piece);
        free(d);
        return error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-demand (error %d)", failed);
    }
    s->demand = d;
    return CASTOR_OK;
}

const demand_source *demand_source_of(const store *s) {
    return s->demand ? &s->demand->source : NULL;
}

castor_status demand_watch(tensor *t, chunk_kind kind, char *address) {
    if (!demand_elsewhere(t, kind))
        return CASTOR_OK;
    demand *d = t->store->demand;
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&d->lock);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < d->count; i++) /* what was mapped there before is not there any more */
        if (d->mappings[i].address + d->mappings[i].tensor->span <= address ||
            d->mappings[i].address >= address + t->span)
            d->mappings[kept++] = d->mappings[i];
    d->count = kept;
    watched *mappings = table_room(d->mappings, &d->capacity, d->count, sizeof *mappings);
    if (mappings) {
        d->mappings = mappings;
        d->mappings[d->count++] = (watched){address, t, kind};
    } else {
        status = error_set(CASTOR_ERR_MEMORY, "no memory for the table of watched mappings");
    }
    pthread_mutex_unlock(&d->lock);
    struct uffdio_register range = {{(uintptr_t)address, t->span}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (status == CASTOR_OK && ioctl(d->descriptor, UFFDIO_REGISTER, &range) != 0)
        status = error_set(CASTOR_ERR_SYSTEM, "cannot watch the mapping of a parameter (errno %d)", errno);
    return status;
}

/* ---- what others call */

castor_status demand_drop(tensor *t, chunk_kind kind) {
    if (!demand_elsewhere(t, kind))
        return CASTOR_OK;
    castor_status status = lock_take(t->store);
    if (status)
        return status;
    if (t->control->residency[kind] != DEMAND_AWAY)
        drop(t, kind);
    /* Of the last generation that is complete, which this rank may not have taken note of yet. */
    if (kind == CHUNK_GRAD)
        atomic_store(&t->control->given_back,
                     atomic_load(&t->control->rank[t->store->world - 1].added) / t->blocks);
    lock_give(t->store);
    return CASTOR_OK;
}

castor_status demand_take_over(tensor *t) {
    castor_status status = lock_take(t->store);
    if (status)
        return status;
    residency_set(t, CHUNK_GRAD, DEMAND_HERE);
    lock_give(t->store);
    return CASTOR_OK;
}

castor_status demand_pin(tensor *t, chunk_kind kind) {
    if (!demand_elsewhere(t, kind))
        return CASTOR_OK;
    castor_status status = lock_take(t->store);
    if (status == CASTOR_OK && (status = load(t, kind)) != CASTOR_OK)
        lock_give(t->store);
    return status;
}

void demand_unpin(tensor *t, chunk_kind kind) {
    if (demand_elsewhere(t, kind))
        lock_give(t->store);
}
