/* Threads that work on pieces by system calls that block. */
#include <errno.h>
#include <sys/prctl.h>
#include "base/thread.h"
#include "threads.h"

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

bool disk_threads_start(disk_queue *q, int *why) {
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
