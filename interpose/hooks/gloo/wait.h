/* A thread that waits for the collective that it has just handed to a worker thread, in a process group whose collectives
 * go through the node's memory, looks for its end before it sleeps: waking a processor that has halted takes longer
 * than a small collective, and the worker thread wakes sooner on one that has not. */
#ifndef CASTOR_HOOKS_GLOO_WAIT_H
#define CASTOR_HOOKS_GLOO_WAIT_H

/* From now on this thread's new process groups are candidates; again, they are none. */
void gloo_wait_watch(void);
/* This thread has made a process group. */
void gloo_wait_made(const void *group);
/* The candidates' collectives go through the node's memory from now on. */
void gloo_wait_bind(void);
void gloo_wait_unwatch(void);
/* The group's address may come back as another one. */
void gloo_wait_end(const void *group);

/* This thread hands `work` to the group's worker threads. */
void gloo_wait_enqueued(const void *group, const void *work);
/* Before this thread waits for `work`: looks, and lets others run between the looks. */
void gloo_wait_look(void *work);

#endif
