#include "node_buffers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "job/rendezvous.h"

#define POLL_SECONDS 0.1 /* between two checks whether the rank that is waited for lives */
#define PAUSES       100 /* checks without a yield: about what a step of a running rank takes */
#define BUFFER_BYTES ((size_t)2 * NODE_CELLS * NODE_CELL_BYTES)
#define PAGE         4096u
#define MOVE_SECONDS 0.0002 /* at least, between two moves of a rank to another processor */

typedef struct node_rank {
    int32_t pid; /* by its rank before `joined` */
    uint64_t start_ticks;
    _Atomic uint32_t joined, left;
    _Atomic uint32_t event, waiters;
    _Atomic int32_t processor; /* on which it last said something */
} __attribute__((aligned(128))) node_rank;

struct node_control {
    uint32_t cell_bytes;     /* by rank 0 before it has joined */
    _Atomic uint32_t failed; /* 1: somebody writes `failure`, 2: it is written */
    char failure[508];
    node_rank rank[NODE_RANKS_MAX];
    node_buffer buffer[]; /* [world][NODE_BUFFERS] */
};

static size_t control_bytes(int world) {
    size_t bytes = sizeof(node_control) + sizeof(node_buffer) * NODE_BUFFERS * (size_t)world;
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

node_buffer *node_buffer_of(const node_group *g, int rank, int index) {
    return &g->control->buffer[rank * NODE_BUFFERS + index];
}

uint8_t *node_buffer_offer(const node_group *g, int rank, int index) {
    return g->data + (size_t)(rank * NODE_BUFFERS + index) * BUFFER_BYTES;
}

uint8_t *node_buffer_reduced(const node_group *g, int rank, int index) {
    return node_buffer_offer(g, rank, index) + (size_t)NODE_CELLS * NODE_CELL_BYTES;
}

/* Where every rank has a processor, small cells stay in the caches; else large ones give each rank longer turns. */
static uint32_t cell_bytes_for(int pauses) {
    return pauses > 0 ? NODE_CELL_BYTES / 2 : NODE_CELL_BYTES;
}

/* A spin without yields pays only while the rank that is waited for runs. */
static int pauses_for(int world) {
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) >= world ? PAUSES : 0;
}

static int memory_file(size_t bytes) {
    int fd = memfd_create("castor-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || (ftruncate(fd, (off_t)bytes) == 0 &&
                   fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0))
        return fd;
    close(fd);
    return -1;
}

struct joining {
    node_group *g;
    int rank;
};

static bool has_joined(void *context) {
    struct joining *j = context;
    return atomic_load(&j->g->control->rank[j->rank].joined);
}

castor_status node_group_open(const char *token, const char *name, int rank, int world,
                              double timeout_seconds, node_group **out) {
    if (world < 2 || world > NODE_RANKS_MAX || rank < 0 || rank >= world)
        return error_set(CASTOR_ERR_ARGUMENT, "rank %d of %d: 2 to %d ranks of a node can share memory", rank,
                         world, NODE_RANKS_MAX);
    castor_status status;
    int fd = -1;
    node_group *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a group's tables");
    double deadline = clock_seconds() + timeout_seconds;
    g->rank = rank;
    g->world = world;
    g->pauses = pauses_for(world);
    for (int peer = 0; peer < world; peer++)
        g->called[peer] = peer;
    g->bytes = control_bytes(world) + BUFFER_BYTES * NODE_BUFFERS * (size_t)world;
    if (rank == 0 && (fd = memory_file(g->bytes)) < 0) {
        status = error_set(CASTOR_ERR_SYSTEM, "cannot make a group's memory file (errno %d)", errno);
        goto fail;
    }
    if ((status = rendezvous_share(token, name, rank, world, &fd, 1, timeout_seconds, NULL)) != CASTOR_OK)
        goto fail;
    void *memory = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) {
        status = error_set(CASTOR_ERR_MEMORY, "cannot map a group's memory (errno %d)", errno);
        goto fail;
    }
    close(fd);
    fd = -1;
    madvise(memory, g->bytes, MADV_DONTFORK); /* a child has no part in it */
    g->control = memory;
    g->data = (uint8_t *)memory + control_bytes(world);
    node_rank *own = &g->control->rank[rank];
    own->pid = getpid();
    own->start_ticks = process_start_ticks(own->pid);
    if (rank == 0)
        g->control->cell_bytes = cell_bytes_for(g->pauses);
    atomic_store(&own->joined, 1);
    node_notify(g, rank);
    for (int peer = 0; peer < world && status == CASTOR_OK; peer++) {
        struct joining j = {g, peer};
        node_wait w = {has_joined, &j, peer, deadline, "the opening of a group's memory"};
        status = node_wait_until(g, &w);
    }
    if (status != CASTOR_OK) {
        node_group_leave(g);
        return status;
    }
    g->cell_bytes = g->control->cell_bytes;
    *out = g;
    return CASTOR_OK;
fail:
    if (fd >= 0)
        close(fd);
    free(g);
    return status;
}

void node_group_leave(node_group *g) {
    atomic_store(&g->control->rank[g->rank].left, 1);
    node_notify(g, g->rank);
    munmap(g->control, g->bytes);
    free(g);
}

void node_group_call_ranks(node_group *g, const int32_t *names) {
    memcpy(g->called, names, (size_t)g->world * sizeof *names);
}

int node_group_rank(const node_group *g) {
    return g->rank;
}

int node_group_world(const node_group *g) {
    return g->world;
}

castor_status node_thread_find(node_group *g, node_thread **thread, int *first) {
    uintptr_t self = (uintptr_t)pthread_self();
    for (int i = 0; i < NODE_THREADS_MAX; i++) {
        uintptr_t found = atomic_load_explicit(&g->thread[i].self, memory_order_relaxed);
        /* Only this thread writes its own name, and names are taken from the front: none of its own comes later. */
        if (found == 0 && atomic_compare_exchange_strong(&g->thread[i].self, &found, self))
            found = self;
        if (found == self) {
            *thread = &g->thread[i];
            *first = 2 * i;
            return CASTOR_OK;
        }
    }
    return node_fail(g, error_set(CASTOR_ERR_UNSUPPORTED,
                                  "more than %d threads run collectives of one process group: set "
                                  "CASTOR_NODE_COLLECTIVES=off",
                                  NODE_THREADS_MAX));
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

void node_notify(node_group *g, int rank) {
    node_rank *r = &g->control->rank[rank];
    if (rank == g->rank)
        atomic_store_explicit(&r->processor, sched_getcpu(), memory_order_relaxed);
    atomic_fetch_add(&r->event, 1);
    if (atomic_load(&r->waiters))
        syscall(SYS_futex, &r->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

castor_status node_fail(node_group *g, castor_status status) {
    node_control *c = g->control;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&c->failed, &none, 1))
        return status;
    log_message(c->failure, sizeof c->failure, "%s", error_text());
    atomic_store(&c->failed, 2);
    for (int rank = 0; rank < g->world; rank++)
        node_notify(g, rank);
    return status;
}

castor_status node_check(node_group *g) {
    if (atomic_load_explicit(&g->control->failed, memory_order_acquire) != 2)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_PEER, "%s", g->control->failure);
}

/* Only the rank that is waited for: another may be gone because it has done its part of everything. */
static castor_status peer_check(node_group *g, const node_wait *w) {
    node_rank *peer = &g->control->rank[w->rank];
    castor_status status = node_check(g);
    if (status != CASTOR_OK || !atomic_load(&peer->joined) || w->rank == g->rank)
        return status;
    if (atomic_load(&peer->left))
        return error_set(CASTOR_ERR_PEER,
                         "rank %d (pid %d) has left the process group while rank %d waits for it in %s; "
                         "connection closed by peer",
                         g->called[w->rank], peer->pid, g->called[g->rank], w->what);
    if (peer->start_ticks && process_state(peer->pid, peer->start_ticks) == 0)
        return error_set(
            CASTOR_ERR_PEER,
            "rank %d (pid %d) died (killed, or out of memory?) while rank %d waits for it in %s; "
            "connection closed by peer",
            g->called[w->rank], peer->pid, g->called[g->rank], w->what);
    return CASTOR_OK;
}

static castor_status wait_asleep(node_group *g, const node_wait *w) {
    node_rank *peer = &g->control->rank[w->rank];
    castor_status status = CASTOR_OK;
    double poll = clock_seconds() + POLL_SECONDS;
    atomic_fetch_add(&peer->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&peer->event);
        if (w->ready(w->context))
            break;
        double now = clock_seconds(), left = w->deadline - now;
        if (left <= 0) {
            status = error_set(CASTOR_ERR_TIMEOUT, "Timed out: rank %d waited for rank %d (pid %d) in %s",
                               g->called[g->rank], g->called[w->rank], peer->pid, w->what);
            break;
        }
        if (now >= poll || atomic_load(&g->control->failed) == 2) {
            poll = now + POLL_SECONDS;
            status = peer_check(g, w);
            if (status != CASTOR_OK)
                break;
        }
        futex_wait(&peer->event, seen, left < POLL_SECONDS ? left : POLL_SECONDS);
    }
    atomic_fetch_sub(&peer->waiters, 1);
    /* One that left may have done its part before it did. */
    if (status == CASTOR_OK || w->ready(w->context))
        return CASTOR_OK;
    return node_fail(g, status);
}

static void relax(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Two threads that spin and yield in turns may share a processor for milliseconds while another one is idle: the kernel's
 * balancing does not part them. A rank that waits on a processor with more ranks than an even share moves to another one. It
 * may still run anywhere afterwards. */
static void processors_share(node_group *g) {
    double now = clock_seconds();
    if (now < atomic_load_explicit(&g->moves_from, memory_order_relaxed))
        return;
    atomic_store_explicit(&g->moves_from, now + (g->pauses > 0 ? MOVE_SECONDS : NODE_CROWDED_SECONDS),
                          memory_order_relaxed);
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    int processors = CPU_COUNT(&allowed), own = sched_getcpu(), here = 1;
    for (int rank = 0; rank < g->world; rank++)
        here += rank != g->rank &&
                atomic_load_explicit(&g->control->rank[rank].processor, memory_order_relaxed) == own;
    others = allowed;
    CPU_CLR((size_t)own, &others);
    if (here <= (g->world + processors - 1) / processors || CPU_COUNT(&others) == 0)
        return;
    if (sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
    atomic_store_explicit(&g->control->rank[g->rank].processor, sched_getcpu(), memory_order_relaxed);
}

/* Spins until the condition holds, or the patience ends. Returns whether it holds. */
static bool wait_spinning(node_group *g, const node_wait *w, spin_patience *patience) {
    processors_share(g);
    for (int i = 0; i < g->pauses; i++) {
        relax();
        if (w->ready(w->context))
            return true;
    }
    uint32_t microseconds = spin_begin(patience);
    if (!microseconds)
        return false;
    double before = clock_seconds(), now = before, end = before + microseconds * 1e-6, turn = 0;
    bool ready;
    do {
        before = now;
        sched_yield();
        ready = w->ready(w->context);
        now = clock_seconds();
        turn = now - before > turn ? now - before : turn;
    } while (!ready && now < end);
    spin_end(patience, ready && now < end, turn);
    return ready;
}

castor_status node_wait_until(node_group *g, const node_wait *w) {
    if (w->ready(w->context) || wait_spinning(g, w, &g->patience))
        return CASTOR_OK;
    return wait_asleep(g, w);
}
