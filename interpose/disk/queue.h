/* The disk queue: moves ranges of mapped files between memory and disk while the program runs.
 *
 * Vocabulary
 *   evict      write a range's changed pages back, then give up their memory
 *   load       read a range into memory ahead of its use
 *   operation  an eviction or a load of one range. The caller owns its record, which must not move until the operation ends
 *   piece      what a thread works on at a time: at most PIECE bytes, up to a multiple of PIECE in the file, because the
 *              kernel frees large pages only as a whole
 *   engine     the threads `castor-io`; an io_uring was measured too, and was slower (docs/decisions.md)
 *
 * Invariants
 *   - no operation changes what any mapping of the file shows, in whatever order operations run and whatever fails: a page that
 *     was written again, or that is in a page table, stays
 *   - a range whose write-back failed keeps its memory and counts as written again, so that the kernel does not free what the
 *     disk lacks
 *   - each operation ends once: done, failed or cancelled. Then its `done` is called, without locks, on an engine's thread or on
 *     the thread that cancels, before any wait for the operation returns
 *   - the pieces in work have at most `in_flight_bytes` together; evictions and loads share them evenly while both wait
 *
 * The kernel frees only pages that are in no page table. The queue takes `alias` out of this process's; views, and other
 * processes' aliases, must be taken out before by their owners. Pages that stay are counted (left_bytes); that is no error. */
#ifndef CASTOR_DISK_QUEUE_H
#define CASTOR_DISK_QUEUE_H

#include "calls.h"

#define DISK_PIECE_BYTES (8ul << 20)
#define DISK_PIECES_MAX  16

typedef enum disk_action { DISK_EVICT, DISK_LOAD } disk_action;
#define DISK_ACTIONS 2

typedef enum disk_state { DISK_IDLE, DISK_WAITING, DISK_RUNNING, DISK_ENDED } disk_state;

typedef struct disk_operation {
    /* The caller's, unchanged until the operation has ended: */
    disk_action action;
    int fd;
    uint64_t offset, bytes; /* whole pages */
    char *alias;            /* shared mapping of the range, or NULL */
    disk_map map;           /* of a range that is loaded; needs `alias` */
    void (*done)(struct disk_operation *operation,
                 void *context); /* may submit other operations; NULL: none */
    void *context;
    /* Found, valid once it has ended: */
    castor_status status; /* disk_operation_error gives the text */
    int error;            /* errno */
    const char *failed;   /* what failed, for the text */
    bool cancelled;       /* before all of it was done */
    uint64_t done_bytes;
    uint64_t left_bytes; /* evict: still in memory; UINT64_MAX: not known */
    /* The queue's, under its lock, but for `state`: */
    int state; /* disk_state; read without the lock, so by atomic built-ins alone */
    uint64_t taken_bytes;
    unsigned pieces; /* in work */
    struct disk_operation *next;
} disk_operation;

typedef struct disk_settings {
    uint64_t in_flight_bytes; /* 0: 4 pieces */
    const disk_calls *calls;  /* NULL: the system's */
} disk_settings;

typedef struct disk_statistics {
    struct disk_traffic {
        uint64_t operations, failed, cancelled, bytes;
        uint64_t busy_ns;       /* while at least one piece was in work: bytes / busy_ns is the bandwidth */
        uint64_t waiting_bytes; /* submitted and not yet in work */
        uint64_t running_bytes;
    } traffic[DISK_ACTIONS];
} disk_statistics;

typedef struct disk_queue disk_queue;

/* CASTOR_ERR_MEMORY, CASTOR_ERR_SYSTEM (no thread can be started). */
castor_status disk_queue_start(const disk_settings *settings, disk_queue **out);
/* Cancels what has not begun, waits for the rest for at most so many seconds, ends the engine. Nobody else may be in a
 * function of the queue. CASTOR_ERR_TIMEOUT: a disk does not answer; the queue's memory then stays, and the records of its running operations must. */
castor_status disk_queue_stop(disk_queue *q, double seconds);

/* From any thread; returns at once. CASTOR_ERR_ARGUMENT: no whole pages, or the operation has not ended yet.
 * CASTOR_ERR_UNSUPPORTED: this process was forked from the one that started the queue, or it stops. */
castor_status disk_queue_submit(disk_queue *q, disk_operation *operation);
/* It was submitted and has not ended. Neither this nor the next blocks. */
static inline bool disk_operation_busy(const disk_operation *operation) {
    int state = __atomic_load_n(&operation->state, __ATOMIC_ACQUIRE);
    return state != DISK_IDLE && state != DISK_ENDED;
}
static inline bool disk_operation_ended(const disk_operation *operation) {
    return __atomic_load_n(&operation->state, __ATOMIC_ACQUIRE) == DISK_ENDED;
}
/* The status of an operation that has ended, with this thread's error text. */
castor_status disk_operation_error(const disk_operation *operation);
/* Until it has ended, then as disk_operation_error. CASTOR_ERR_TIMEOUT: it goes on. Not from `done`. */
castor_status disk_queue_wait(disk_queue *q, disk_operation *operation, double seconds);
/* Leaves out the part that has not begun. false: nothing was left to cancel. The operation ends, as cancelled, with its pieces
 * in work, or within this call. */
bool disk_queue_cancel(disk_queue *q, disk_operation *operation);

void disk_queue_statistics(disk_queue *q, disk_statistics *out);

#endif
