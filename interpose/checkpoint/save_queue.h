/* Saves in the background: the thread `castor-save` writes them one after the other, in the order of their begin.
 *
 * An error of one is kept until it is told, once: by the next save or wait. What follows it in the queue is written all the same. */
#ifndef CASTOR_CHECKPOINT_SAVE_QUEUE_H
#define CASTOR_CHECKPOINT_SAVE_QUEUE_H

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

#endif
