/* One thread that drives an io_uring, by raw system calls: the library links libc only.
 *
 * Only that thread submits: the kernel cancels a thread's requests when it ends, and threads of a script do. Others wake it
 * through an eventfd, which the ring reads. When the ring itself fails, the thread goes on as disk_threads.c's do. */
#include <errno.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "core/log.h"
#include "core/thread.h"
#include "engine.h"

#define ENTRIES       32u /* at least one for each piece, and one for the eventfd */
#define SCRATCH_BYTES (1ul << 20)
#define WAKE          UINT64_MAX
#define TRIES_MAX     1000 /* of entering the ring, in a row */

struct disk_ring {
    int fd, wake;
    uint64_t woken; /* what the eventfd held */
    char *scratch;  /* where what is read goes: only the page cache is meant */
    char *rings;
    size_t rings_bytes;
    struct io_uring_sqe *requests;
    unsigned *request_tail, *request_mask, *request_slots;
    unsigned *result_head, *result_tail, *result_mask;
    struct io_uring_cqe *results;
    unsigned submit; /* requests that the kernel has not taken */
    unsigned entries;
    disk_piece pieces[DISK_PIECES_MAX];
};

static bool supports(const disk_calls *calls, int fd) {
    struct {
        struct io_uring_probe head;
        struct io_uring_probe_op operations[256];
    } probe;
    memset(&probe, 0, sizeof probe);
    if (calls->ring_register(calls->context, fd, IORING_REGISTER_PROBE, &probe, 256) < 0)
        return false;
    static const unsigned char needed[] = {IORING_OP_SYNC_FILE_RANGE, IORING_OP_FADVISE, IORING_OP_READ};
    for (size_t i = 0; i < sizeof needed; i++)
        if (needed[i] > probe.head.last_op || !(probe.operations[needed[i]].flags & IO_URING_OP_SUPPORTED))
            return false;
    return true;
}

static void *map_ring(int fd, size_t bytes, uint64_t what) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)what);
    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, bytes, MADV_DONTFORK);
    return mapped;
}

static bool map_rings(struct disk_ring *r, const struct io_uring_params *p) {
    size_t requests = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t results = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    r->rings_bytes = requests > results ? requests : results;
    r->entries = p->sq_entries;
    r->rings = map_ring(r->fd, r->rings_bytes, IORING_OFF_SQ_RING);
    r->requests = map_ring(r->fd, r->entries * sizeof *r->requests, IORING_OFF_SQES);
    if (!r->rings || !r->requests)
        return false;
    r->request_tail = (unsigned *)(r->rings + p->sq_off.tail);
    r->request_mask = (unsigned *)(r->rings + p->sq_off.ring_mask);
    r->request_slots = (unsigned *)(r->rings + p->sq_off.array);
    r->result_head = (unsigned *)(r->rings + p->cq_off.head);
    r->result_tail = (unsigned *)(r->rings + p->cq_off.tail);
    r->result_mask = (unsigned *)(r->rings + p->cq_off.ring_mask);
    r->results = (struct io_uring_cqe *)(r->rings + p->cq_off.cqes);
    return true;
}

/* The rings alone: the kernel may still write into the scratch and read the eventfd. */
static void close_ring(struct disk_ring *r) {
    if (r->requests)
        munmap(r->requests, r->entries * sizeof *r->requests);
    if (r->rings)
        munmap(r->rings, r->rings_bytes);
    if (r->fd >= 0)
        close(r->fd);
    r->requests = NULL;
    r->rings = NULL;
    r->fd = -1;
}

void disk_ring_free(disk_queue *q) {
    struct disk_ring *r = q->ring;
    if (!r)
        return;
    bool idle = r->fd >= 0; /* no failure: all that was submitted but the eventfd's read has ended */
    close_ring(r);
    if (r->wake >= 0)
        close(r->wake);
    q->ring = NULL;
    if (!idle)
        return;
    munmap(r->scratch, SCRATCH_BYTES);
}

void disk_ring_wake(disk_queue *q) {
    uint64_t one = 1;
    while (write(q->ring->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static struct io_uring_sqe *next_request(struct disk_ring *r, uint64_t what) {
    unsigned tail = *r->request_tail, at = tail & *r->request_mask;
    struct io_uring_sqe *request = &r->requests[at];
    memset(request, 0, sizeof *request);
    request->user_data = what;
    r->request_slots[at] = at;
    __atomic_store_n(r->request_tail, tail + 1, __ATOMIC_RELEASE);
    r->submit++;
    return request;
}

static void request_wake(struct disk_ring *r) {
    struct io_uring_sqe *request = next_request(r, WAKE);
    request->opcode = IORING_OP_READ;
    request->fd = r->wake;
    request->addr = (uintptr_t)&r->woken;
    request->len = sizeof r->woken;
}

static void request_step(struct disk_ring *r, unsigned slot) {
    const disk_piece *piece = &r->pieces[slot];
    struct io_uring_sqe *request = next_request(r, slot);
    request->fd = piece->operation->fd;
    request->off = piece->offset;
    request->len = (unsigned)piece->bytes;
    switch (piece->step) {
    case DISK_STEP_WRITE_BACK:
        request->opcode = IORING_OP_SYNC_FILE_RANGE;
        request->sync_range_flags = 1 | 2 | 4; /* SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER */
        break;
    case DISK_STEP_DROP:
        request->opcode = IORING_OP_FADVISE;
        request->fadvise_advice = 4; /* POSIX_FADV_DONTNEED */
        break;
    case DISK_STEP_READ_AHEAD:
        request->opcode = IORING_OP_READ;
        request->off = piece->offset + piece->read_bytes;
        request->addr = (uintptr_t)r->scratch;
        if (piece->bytes - piece->read_bytes < SCRATCH_BYTES)
            request->len = (unsigned)(piece->bytes - piece->read_bytes);
        else
            request->len = SCRATCH_BYTES;
        break;
    case DISK_STEP_END:
        request->opcode = IORING_OP_NOP;
        break;
    }
}

static const int step_operations[] = {
    [DISK_STEP_WRITE_BACK] = IORING_OP_SYNC_FILE_RANGE,
    [DISK_STEP_DROP] = IORING_OP_FADVISE,
    [DISK_STEP_READ_AHEAD] = IORING_OP_READ,
};

static void reap(disk_queue *q) {
    struct disk_ring *r = q->ring;
    while (*r->result_head != __atomic_load_n(r->result_tail, __ATOMIC_ACQUIRE)) {
        struct io_uring_cqe result = r->results[*r->result_head & *r->result_mask];
        __atomic_store_n(r->result_head, *r->result_head + 1, __ATOMIC_RELEASE);
        if (result.user_data == WAKE) {
            request_wake(r);
            continue;
        }
        disk_piece *piece = &r->pieces[result.user_data];
        int code = q->calls->ring_result(q->calls->context, step_operations[piece->step], result.res);
        disk_piece_advance(q, piece, code);
        if (piece->step != DISK_STEP_END) {
            request_step(r, (unsigned)result.user_data);
            continue;
        }
        disk_piece done = *piece;
        piece->operation = NULL;
        disk_queue_finish(q, &done);
    }
}

/* false: the queue stops and all pieces are done. */
static bool fill(disk_queue *q) {
    struct disk_ring *r = q->ring;
    for (unsigned slot = 0; slot < q->pieces_max; slot++) {
        if (r->pieces[slot].operation)
            continue;
        disk_piece piece;
        pthread_mutex_lock(&q->lock);
        bool taken = disk_queue_take(q, &piece), over = q->stopping && q->pieces == 0;
        pthread_mutex_unlock(&q->lock);
        if (over)
            return false;
        if (!taken)
            break;
        r->pieces[slot] = piece;
        disk_piece_begin(q, &r->pieces[slot]);
        request_step(r, slot);
    }
    return true;
}

static void fall_back(disk_queue *q, int error) {
    struct disk_ring *r = q->ring;
    LOG_W("io_uring failed (errno %d): a thread moves chunks to and from disk", -error);
    pthread_mutex_lock(&q->lock);
    q->engine = DISK_ENGINE_THREADS;
    pthread_mutex_unlock(&q->lock);
    close_ring(r);
    /* Steps that the kernel goes on with do no harm when they are done twice. */
    for (unsigned slot = 0; slot < q->pieces_max; slot++)
        if (r->pieces[slot].operation) {
            disk_piece_run(q, &r->pieces[slot]);
            disk_queue_finish(q, &r->pieces[slot]);
        }
}

static void *drive(void *queue) {
    disk_queue *q = queue;
    struct disk_ring *r = q->ring;
    prctl(PR_SET_NAME, "castor-io");
    request_wake(r);
    int tries = 0;
    while (fill(q)) {
        int entered = q->calls->ring_enter(q->calls->context, r->fd, r->submit, 1);
        if (entered >= 0) {
            r->submit -= (unsigned)entered;
            tries = 0;
        } else if ((entered != -EINTR && entered != -EAGAIN && entered != -EBUSY) || ++tries > TRIES_MAX) {
            fall_back(q, entered);
            return disk_threads_work(q);
        }
        reap(q);
    }
    pthread_mutex_lock(&q->lock);
    q->workers--;
    pthread_cond_broadcast(&q->ended);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

bool disk_ring_start(disk_queue *q, int *why) {
    size_t bytes = (sizeof(struct disk_ring) + 4095) & ~4095ul;
    char *memory =
        mmap(NULL, bytes + SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *why = errno;
        return false;
    }
    struct disk_ring *r = (struct disk_ring *)memory;
    r->scratch = memory + bytes;
    r->wake = -1;
    struct io_uring_params parameters = {0};
    r->fd = q->calls->ring_setup(q->calls->context, ENTRIES, &parameters);
    *why = r->fd < 0 ? -r->fd : ENOSYS;
    if (r->fd < 0 || !(parameters.features & IORING_FEAT_SINGLE_MMAP) || !supports(q->calls, r->fd))
        goto failed;
    r->wake = eventfd(0, EFD_CLOEXEC);
    if (r->wake < 0 || !map_rings(r, &parameters)) {
        *why = errno;
        goto failed;
    }
    q->ring = r;
    q->workers = 1;
    *why = thread_start(drive, q);
    if (*why == 0)
        return true;
    q->ring = NULL;
    q->workers = 0;
failed:
    close_ring(r);
    if (r->wake >= 0)
        close(r->wake);
    munmap(memory, bytes + SCRATCH_BYTES);
    return false;
}
