/* Moving ranges of mapped files between memory and disk while the program runs on.
 *
 * Vocabulary
 *   evict      write a range's changed pages back, then give up their memory
 *   bring      read a range into memory ahead of its use
 *   operation  one of both for one range; its record is the caller's and stays where it is until it has ended
 *   piece      what a thread works on at a time: at most PIECE bytes, ending at a multiple of that in the file, since the
 *              kernel's large pages are given up only as a whole
 *   engine     the threads `castor-io`; an io_uring was measured too, and was slower (docs/decisions.md)
 *
 * Invariants
 *   - no operation changes what any mapping of the file shows, whenever it runs, whatever fails, in whichever order two of
 *     them meet: a page that was written again, or that some page table still holds, is not given up
 *   - a range whose write-back failed keeps its memory and counts as written again, so that the kernel does not give up what
 *     the disk has not got
 *   - each operation ends once: done, failed or cancelled. Its `done` is called, without locks, on the engine's thread or
 *     that of who cancels, before anybody who waits for it returns
 *   - pieces in work are at most `in_flight_bytes` together; evicting and bringing share them evenly while both wait
 *
 * To be given up, pages must be in no page table: `alias` is taken out of this process's, but views and the aliases of other
 * processes are their owners' to take out first. What could not be given up is counted (left_bytes), no error. */
#ifndef CASTOR_DISK_QUEUE_H
#define CASTOR_DISK_QUEUE_H

#include "calls.h"

#define DISK_PIECE_BYTES (8ul << 20)
#define DISK_PIECES_MAX  16

typedef enum disk_action { DISK_EVICT, DISK_BRING } disk_action;
#define DISK_ACTIONS 2

typedef enum disk_state { DISK_IDLE, DISK_WAITING, DISK_RUNNING, DISK_ENDED } disk_state;

typedef struct disk_operation {
    /* The caller's, unchanged until the operation has ended: */
    disk_action action;
    int fd;
    uint64_t offset, bytes; /* whole pages */
    char *alias;            /* shared mapping of the range, or NULL */
    disk_map map;           /* of a range that is brought; needs `alias` */
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
/* Whether it has ended. Never blocks. */
/* It was submitted, and has not ended. */
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
/* What has not begun of it is left out. false: nothing was left to cancel. It ends, as cancelled, with its pieces in work, or
 * within this call. */
bool disk_queue_cancel(disk_queue *q, disk_operation *operation);

void disk_queue_statistics(disk_queue *q, disk_statistics *out);

#endif
