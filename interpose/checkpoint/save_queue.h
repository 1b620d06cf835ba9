/* Saves in the background: the thread `castor-save` writes them one after the other, in the order of their begin.
 *
 * An error of one is kept until it is told, once: by the next save or wait. What follows it in the queue is written all the same. */
#ifndef CASTOR_CHECKPOINT_SAVE_QUEUE_H
#define CASTOR_CHECKPOINT_SAVE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "job.h"

/* Writes the job on this thread, and frees it. */
castor_status queue_write(job *j);
/* Holds the job's memory and returns; frees the job in the end. `kept`: what the memory belongs to; it is let go when the job
 * has been freed, unless this returns an error. *partial: by which others see its end; inode 0: it is written already. */
castor_status queue_start(job *j, void *kept, job_partial *partial);
/* The first error that was not told yet, without a wait. */
castor_status queue_check(void);
/* Until all are written. The first error that was not told yet. CASTOR_ERR_INTERRUPTED. */
castor_status queue_wait(void);
/* How to let go of what was kept: `later` makes some thread of the interpreter call drop(kept), and returns 0 if it will. */
void queue_release_set(int (*later)(int (*call)(void *), void *), void (*drop)(void *));

/* Files that a save in the background has not written yet. Whoever uses one of them by its name waits until it is there.
 *
 * The list lies in memory that forked children share, so that they wait as well. The wrappers of libc's file functions call
 * pending_await: no allocation, no lock. */

typedef enum pending_use {
    PENDING_FILE, /* the file of that name */
    PENDING_TREE, /* or one below that directory */
} pending_use;

typedef struct pending_list pending_list;
extern pending_list *pending_now; /* NULL: there never was one */
bool pending_any(void);

/* Waits while the path, relative to `folder`, is one that is pending. NULL: any. Not for the
 * library's own calls. */
void pending_await_slow(int folder, const char *path, pending_use use);
static inline void pending_await(int folder, const char *path, pending_use use) {
    if (__builtin_expect(__atomic_load_n(&pending_now, __ATOMIC_RELAXED) != NULL, 0))
        pending_await_slow(folder, path, use);
}

#endif
