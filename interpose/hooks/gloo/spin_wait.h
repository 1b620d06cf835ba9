/* A thread that waits for its own collective spins before it sleeps (base/spin.h) if the collective goes through the node's
 * memory. Waking a halted processor takes longer than a small collective, and the worker thread wakes sooner on a processor
 * that is awake. */
#ifndef CASTOR_HOOKS_GLOO_SPIN_WAIT_H
#define CASTOR_HOOKS_GLOO_SPIN_WAIT_H

/* From now on until gloo_wait_unwatch, this thread's new process groups are candidates. Drops the earlier candidates. */
void gloo_wait_watch(void);
/* This thread has made a process group. */
void gloo_wait_made(const void *group);
/* The candidates' collectives go through the node's memory from now on. */
void gloo_wait_bind(void);
void gloo_wait_unwatch(void);
/* The group ends: its address may be reused for another. */
void gloo_wait_end(const void *group);

/* This thread hands `work` to the group's worker threads. */
void gloo_wait_enqueued(const void *group, const void *work);
/* Before this thread waits for `work`: spins, if `work` is the one that it has just handed over. */
void gloo_wait_spin(void *work);

#endif
