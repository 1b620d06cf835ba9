/* Between the disk queue and its threads.
 *
 * A thread takes a piece, does its steps one after the other, and finishes it:
 *   evict   UNMAP, WRITE_BACK, DROP; after a failed write-back REDIRTY
 *   load    READ_AHEAD until the piece is read, MAP
 * Steps before and after the slow ones (WRITE_BACK, DROP, READ_AHEAD) are done by disk_piece_advance itself. */
#ifndef CASTOR_DISK_THREADS_H
#define CASTOR_DISK_THREADS_H

#include <pthread.h>
#include <sys/types.h>
#include "queue.h"

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

/* Under the lock. The next piece to work on, UNMAP done by the first disk_piece_begin; false: none, or too many in work. */
bool disk_queue_take(disk_queue *q, disk_piece *out);
/* Without the lock. Ends the piece, and with the last one its operation. */
void disk_queue_finish(disk_queue *q, disk_piece *piece);

void disk_piece_begin(disk_queue *q, disk_piece *piece);
/* Judges the result of the piece's step and goes to the next one. */
void disk_piece_advance(disk_queue *q, disk_piece *piece, int64_t result);

/* With the queue's lock free; false: none could be started, `why` says so (errno). */
bool disk_threads_start(disk_queue *q, int *why);

#endif
