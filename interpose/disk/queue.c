#include "queue.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

/* Between the disk queue and its threads.
 *
 * A thread takes a piece, does its steps one after the other, and finishes it:
 *   evict   UNMAP, WRITE_BACK, DROP; after a failed write-back REDIRTY
 *   load    READ_AHEAD until the piece is read, MAP
 * Steps before and after the slow ones (WRITE_BACK, DROP, READ_AHEAD) are done by disk_piece_advance itself. */
typedef enum disk_step {
    DISK_STEP_WRITE_BACK,
    DISK_STEP_DROP,
    DISK_STEP_READ_AHEAD,
    DISK_STEP_END
} disk_step;

typedef struct disk_piece {
    disk_operation *operation; /* NULL: no piece */
    uint64_t offset, bytes;    /* in the file */
    uint64_t read_bytes;       /* of them, so far */
    disk_step step;
    unsigned retries;
    int error; /* errno of the step that failed */
    const char *failed;
} disk_piece;

struct disk_queue {
    pthread_mutex_t lock; /* guards all that follows, but for what is set before the threads start */
    pthread_cond_t work;  /* threads wait for pieces */
    pthread_cond_t ended; /* whoever waits for operations */
    const disk_calls *calls;
    pid_t process;
    unsigned pieces_max;
    unsigned workers;
    bool stopping;
    unsigned pieces; /* in work */
    struct disk_line {
        disk_operation *first, *last;
        unsigned pieces;   /* in work */
        uint64_t since_ns; /* when the first of them began */
    } lines[DISK_ACTIONS];
    disk_statistics statistics;
};

/* With the queue's lock free; false: none could be started, `why` says so (errno). */
static bool disk_threads_start(disk_queue *q, int *why);

#define RETRIES_MAX    16 /* of one piece, after results that may pass */
#define PIECES_DEFAULT 4

/* --- operations ------------------------------------------------------------------------------------------------- */

static struct disk_traffic *traffic_of(disk_queue *q, const disk_operation *o) {
    return &q->statistics.traffic[o->action];
}

/* Under the lock. Takes what has not begun of the operation out of its line. */
static void cut(disk_queue *q, disk_operation *o) {
    struct disk_line *line = &q->lines[o->action];
    disk_operation *before = NULL, *at = line->first;
    while (at && at != o) {
        before = at;
        at = at->next;
    }
    if (!at)
        return;
    if (before)
        before->next = o->next;
    else
        line->first = o->next;
    if (line->last == o)
        line->last = before;
    traffic_of(q, o)->waiting_bytes -= o->bytes - o->taken_bytes;
    o->taken_bytes = o->bytes;
}

/* Called and left with the lock; free meanwhile. Of an operation without pieces in work and out of its line. */
static void end_operation(disk_queue *q, disk_operation *o) {
    pthread_mutex_unlock(&q->lock);
    if (o->action == DISK_EVICT) {
        const disk_calls *calls = q->calls;
        if (calls->resident(calls->context, o->fd, o->offset, o->bytes, &o->left_bytes) < 0)
            o->left_bytes = UINT64_MAX;
    }
    o->status = !o->failed ? CASTOR_OK : o->error == ENOMEM ? CASTOR_ERR_MEMORY : CASTOR_ERR_SYSTEM;
    if (o->done)
        o->done(o, o->context);
    pthread_mutex_lock(&q->lock);
    struct disk_traffic *traffic = traffic_of(q, o);
    traffic->operations++;
    traffic->failed += o->status != CASTOR_OK;
    traffic->cancelled += o->cancelled;
    /* From here on the record may be gone. */
    __atomic_store_n(&o->state, DISK_ENDED, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&q->ended);
}

castor_status disk_operation_error(const disk_operation *o) {
    if (o->status == CASTOR_OK)
        return CASTOR_OK;
    const char *advice =
        "see the kernel's log (dmesg), or set CASTOR_OFFLOAD_DIR to a folder on another disk";
    if (o->error == ENOSPC || o->error == EDQUOT)
        advice = "the disk is full: free space there, or set CASTOR_OFFLOAD_DIR to a folder on another disk";
    else if (o->error == EFBIG)
        advice = "raise the limit on the size of files (ulimit -f), or make CASTOR_OFFLOAD_DIR a folder on "
                 "another file system";
    else if (o->error == ENOMEM)
        advice = "the kernel has no memory left for it: lower CASTOR_MEMORY_BUDGET or what else runs";
    else if (o->error == 0)
        advice = "the file is shorter than what was put into it: something else has changed it";
    const char *kept = o->action == DISK_EVICT ? "; nothing is lost, the bytes are still in memory" : "";
    return error_set(o->status, "%s %B of the offload folder failed (errno %d)%s: %s", o->failed, o->bytes,
                     o->error, kept, advice);
}

/* --- pieces ----------------------------------------------------------------------------------------------------- */

/* Under the lock. The next piece to work on, UNMAP done by the first disk_piece_begin; false: none, or too many in work. */
static bool disk_queue_take(disk_queue *q, disk_piece *out) {
    struct disk_line *line = &q->lines[DISK_LOAD], *other = &q->lines[DISK_EVICT];
    if (q->pieces >= q->pieces_max)
        return false;
    if (!line->first || (other->first && other->pieces < line->pieces))
        line = other;
    disk_operation *o = line->first;
    if (!o)
        return false;
    uint64_t begin = o->offset + o->taken_bytes, end = o->offset + o->bytes;
    uint64_t border = (begin / DISK_PIECE_BYTES + 1) * DISK_PIECE_BYTES;
    *out = (disk_piece){.operation = o, .offset = begin, .bytes = (border < end ? border : end) - begin};
    o->taken_bytes += out->bytes;
    o->pieces++;
    __atomic_store_n(&o->state, DISK_RUNNING, __ATOMIC_RELAXED);
    if (o->taken_bytes == o->bytes) {
        line->first = o->next;
        if (!line->first)
            line->last = NULL;
    }
    if (line->pieces++ == 0)
        line->since_ns = clock_ns(CLOCK_MONOTONIC);
    q->pieces++;
    traffic_of(q, o)->waiting_bytes -= out->bytes;
    traffic_of(q, o)->running_bytes += out->bytes;
    return true;
}

/* Without the lock. Ends the piece, and with the last one its operation. */
static void disk_queue_finish(disk_queue *q, disk_piece *piece) {
    disk_operation *o = piece->operation;
    pthread_mutex_lock(&q->lock);
    struct disk_line *line = &q->lines[o->action];
    struct disk_traffic *traffic = traffic_of(q, o);
    traffic->running_bytes -= piece->bytes;
    if (--line->pieces == 0)
        traffic->busy_ns += clock_ns(CLOCK_MONOTONIC) - line->since_ns;
    q->pieces--;
    o->pieces--;
    if (!piece->failed) {
        o->done_bytes += piece->bytes;
        traffic->bytes += piece->bytes;
    } else if (!o->failed) {
        o->failed = piece->failed;
        o->error = piece->error;
        cut(q, o);
    }
    if (o->pieces == 0 && o->taken_bytes == o->bytes)
        end_operation(q, o);
    pthread_mutex_unlock(&q->lock);
}

static char *alias_of(const disk_piece *piece) {
    const disk_operation *o = piece->operation;
    return o->alias ? o->alias + (piece->offset - o->offset) : NULL;
}

static void disk_piece_begin(disk_queue *q, disk_piece *piece) {
    if (piece->operation->action == DISK_LOAD) {
        piece->step = DISK_STEP_READ_AHEAD;
        return;
    }
    piece->step = DISK_STEP_WRITE_BACK;
    /* Where this fails, pages stay in memory; that is seen in left_bytes. */
    if (piece->operation->alias)
        q->calls->unmap(q->calls->context, alias_of(piece), piece->bytes);
}

static void piece_fail(disk_piece *piece, int error, const char *failed) {
    piece->error = error;
    piece->failed = failed;
    piece->step = DISK_STEP_END;
}

/* The kernel counts pages as clean after a failed write-back, and may give them up: written again, they stay. */
static void mark_written(disk_queue *q, disk_piece *piece) {
    char *alias = alias_of(piece), *mapped = NULL;
    if (!alias) {
        if (pages_map_alias(piece->operation->fd, piece->offset, piece->bytes, NULL, &mapped) != CASTOR_OK)
            return;
        alias = mapped;
    }
    q->calls->map(q->calls->context, alias, piece->bytes, DISK_MAP_WRITE);
    if (mapped)
        munmap(mapped, piece->bytes);
}

static void map_piece(disk_queue *q, disk_piece *piece) {
    const disk_operation *o = piece->operation;
    piece->step = DISK_STEP_END;
    if (!o->alias || o->map == DISK_MAP_NONE)
        return;
    int result = q->calls->map(q->calls->context, alias_of(piece), piece->bytes, o->map);
    /* Page tables that are not filled cost faults later, no more. The kernel's way of saying that a page cannot be read: */
    if (result == -EFAULT || result == -EIO || result == -EHWPOISON)
        piece_fail(piece, EIO, "reading");
}

static bool may_pass(int64_t result) {
    return result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ECANCELED ||
           result == -ENOMEM;
}

/* Judges the result of the piece's step and goes to the next one. */
static void disk_piece_advance(disk_queue *q, disk_piece *piece, int64_t result) {
    if (may_pass(result) && piece->retries++ < RETRIES_MAX)
        return;
    switch (piece->step) {
    case DISK_STEP_WRITE_BACK:
        piece->step = DISK_STEP_DROP;
        if (result < 0) {
            mark_written(q, piece);
            piece_fail(piece, (int)-result, "writing back");
        }
        break;
    case DISK_STEP_DROP:
        piece->step = DISK_STEP_END;
        if (result < 0)
            piece_fail(piece, (int)-result, "giving up the memory of");
        break;
    case DISK_STEP_READ_AHEAD:
        if (result <= 0) {
            piece_fail(piece, (int)-result, "reading");
            break;
        }
        piece->read_bytes += (uint64_t)result;
        if (piece->read_bytes >= piece->bytes)
            map_piece(q, piece);
        break;
    case DISK_STEP_END:
        break;
    }
}

/* --- the queue -------------------------------------------------------------------------------------------------- */

castor_status disk_queue_start(const disk_settings *settings, disk_queue **out) {
    disk_queue *q = mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (q == MAP_FAILED)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the queue of disk operations");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->ended, &clock);
    pthread_condattr_destroy(&clock);
    q->calls = settings->calls ? settings->calls : &disk_calls_system;
    q->process = getpid();
    uint64_t pieces = settings->in_flight_bytes / DISK_PIECE_BYTES;
    if (settings->in_flight_bytes == 0)
        pieces = PIECES_DEFAULT;
    q->pieces_max = pieces == 0 ? 1 : pieces > DISK_PIECES_MAX ? DISK_PIECES_MAX : (unsigned)pieces;
    int why = 0;
    if (!disk_threads_start(q, &why)) {
        munmap(q, sizeof *q);
        return error_set(CASTOR_ERR_SYSTEM,
                         "no thread for disk operations can be started (errno %d): raise the limit on "
                         "threads (ulimit -u, or pids.max of the cgroup)",
                         why);
    }
    *out = q;
    return CASTOR_OK;
}

static struct timespec deadline_after(double seconds) {
    uint64_t limit_ns = UINT64_C(1) << 60; /* decades */
    uint64_t ns = seconds <= 0 ? 0 : seconds > 1e9 ? limit_ns : (uint64_t)(seconds * 1e9);
    ns += clock_ns(CLOCK_MONOTONIC);
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

castor_status disk_queue_stop(disk_queue *q, double seconds) {
    if (!q || q->process != getpid())
        return CASTOR_OK; /* a child has no engine to end */
    struct timespec deadline = deadline_after(seconds);
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    for (int action = 0; action < DISK_ACTIONS; action++)
        for (disk_operation *o; (o = q->lines[action].first);) {
            cut(q, o);
            o->cancelled = true;
            if (o->pieces == 0)
                end_operation(q, o);
        }
    pthread_cond_broadcast(&q->work);
    int error = 0;
    while (q->workers && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&q->ended, &q->lock, &deadline);
    unsigned left = q->workers;
    pthread_mutex_unlock(&q->lock);
    if (left)
        return error_set(CASTOR_ERR_TIMEOUT,
                         "the disk of the offload folder did not finish its operations in time: see the "
                         "kernel's log (dmesg)");
    munmap(q, sizeof *q);
    return CASTOR_OK;
}

castor_status disk_queue_submit(disk_queue *q, disk_operation *o) {
    int state = __atomic_load_n(&o->state, __ATOMIC_ACQUIRE);
    if (!o->bytes || (o->offset | o->bytes | (uintptr_t)o->alias) % PAGE_BYTES || o->action >= DISK_ACTIONS ||
        o->offset + o->bytes < o->offset)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a disk operation on whole pages was expected, not %llu bytes at %llu",
                         (unsigned long long)o->bytes, (unsigned long long)o->offset);
    if (state == DISK_WAITING || state == DISK_RUNNING)
        return error_set(CASTOR_ERR_ARGUMENT, "a disk operation was submitted again before it had ended");
    if (q->process != getpid())
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "disk operations of a rank cannot be used in a process forked from it");
    pthread_mutex_lock(&q->lock);
    if (q->stopping) {
        pthread_mutex_unlock(&q->lock);
        return error_set(CASTOR_ERR_UNSUPPORTED, "disk operations are over: the process is about to end");
    }
    o->status = CASTOR_OK;
    o->error = 0;
    o->failed = NULL;
    o->cancelled = false;
    o->done_bytes = o->taken_bytes = 0;
    o->left_bytes = o->action == DISK_EVICT ? UINT64_MAX : 0;
    o->pieces = 0;
    o->next = NULL;
    __atomic_store_n(&o->state, DISK_WAITING, __ATOMIC_RELAXED);
    struct disk_line *line = &q->lines[o->action];
    if (line->last)
        line->last->next = o;
    else
        line->first = o;
    line->last = o;
    traffic_of(q, o)->waiting_bytes += o->bytes;
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    return CASTOR_OK;
}

castor_status disk_queue_wait(disk_queue *q, disk_operation *o, double seconds) {
    if (__atomic_load_n(&o->state, __ATOMIC_RELAXED) == DISK_IDLE)
        return error_set(CASTOR_ERR_ARGUMENT, "a disk operation was waited for that was never submitted");
    if (!disk_operation_ended(o)) {
        if (q->process != getpid())
            return error_set(CASTOR_ERR_UNSUPPORTED,
                             "disk operations of a rank cannot be used in a process forked from it");
        struct timespec deadline = deadline_after(seconds);
        int error = 0;
        pthread_mutex_lock(&q->lock);
        while (!disk_operation_ended(o) && error != ETIMEDOUT)
            error = pthread_cond_timedwait(&q->ended, &q->lock, &deadline);
        pthread_mutex_unlock(&q->lock);
        if (!disk_operation_ended(o))
            return error_set(
                CASTOR_ERR_TIMEOUT,
                "%s %B of the offload folder took longer than the time limit: see the kernel's log "
                "(dmesg), or set CASTOR_OFFLOAD_DIR to a folder on another disk",
                o->action == DISK_EVICT ? "writing back" : "reading", o->bytes);
    }
    return disk_operation_error(o);
}

bool disk_queue_cancel(disk_queue *q, disk_operation *o) {
    if (q->process != getpid())
        return false;
    pthread_mutex_lock(&q->lock);
    int state = __atomic_load_n(&o->state, __ATOMIC_RELAXED);
    bool found = (state == DISK_WAITING || state == DISK_RUNNING) && o->taken_bytes < o->bytes;
    if (found) {
        cut(q, o);
        o->cancelled = true;
        if (o->pieces == 0)
            end_operation(q, o);
    }
    pthread_mutex_unlock(&q->lock);
    return found;
}

void disk_queue_statistics(disk_queue *q, disk_statistics *out) {
    *out = (disk_statistics){0};
    if (q->process != getpid())
        return;
    pthread_mutex_lock(&q->lock);
    *out = q->statistics;
    for (int action = 0; action < DISK_ACTIONS; action++)
        if (q->lines[action].pieces)
            out->traffic[action].busy_ns += clock_ns(CLOCK_MONOTONIC) - q->lines[action].since_ns;
    pthread_mutex_unlock(&q->lock);
}

/* Threads that work on pieces by system calls that block. */

static void run_step(disk_queue *q, disk_piece *piece) {
    const disk_calls *calls = q->calls;
    int fd = piece->operation->fd;
    uint64_t at = piece->offset + piece->read_bytes, rest = piece->bytes - piece->read_bytes;
    int64_t result = 0;
    switch (piece->step) {
    case DISK_STEP_WRITE_BACK:
        result = calls->write_back(calls->context, fd, piece->offset, piece->bytes);
        break;
    case DISK_STEP_DROP:
        result = calls->drop(calls->context, fd, piece->offset, piece->bytes);
        break;
    case DISK_STEP_READ_AHEAD:
        result = calls->read_ahead(calls->context, fd, at, rest);
        break;
    case DISK_STEP_END:
        return;
    }
    disk_piece_advance(q, piece, result);
}

/* All steps of a piece. */
static void run_piece(disk_queue *q, disk_piece *piece) {
    while (piece->step != DISK_STEP_END)
        run_step(q, piece);
}

/* Takes pieces until the queue stops. */
static void *work(void *queue) {
    disk_queue *q = queue;
    prctl(PR_SET_NAME, "castor-io");
    pthread_mutex_lock(&q->lock);
    for (;;) {
        disk_piece piece;
        if (disk_queue_take(q, &piece)) {
            pthread_mutex_unlock(&q->lock);
            disk_piece_begin(q, &piece);
            run_piece(q, &piece);
            disk_queue_finish(q, &piece);
            pthread_mutex_lock(&q->lock);
        } else if (q->stopping) {
            break;
        } else {
            pthread_cond_wait(&q->work, &q->lock);
        }
    }
    q->workers--;
    pthread_cond_broadcast(&q->ended);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static bool disk_threads_start(disk_queue *q, int *why) {
    for (unsigned i = 0; i < q->pieces_max; i++) {
        pthread_mutex_lock(&q->lock);
        q->workers++;
        pthread_mutex_unlock(&q->lock);
        *why = thread_start(work, q);
        if (*why) {
            pthread_mutex_lock(&q->lock);
            q->workers--;
            pthread_mutex_unlock(&q->lock);
            return i != 0; /* fewer threads are slower, no more */
        }
    }
    return true;
}
