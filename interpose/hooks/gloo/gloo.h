/* A thread that waits for its own collective spins before it sleeps (base/spin.h) if the collective goes through the node's
 * memory. Waking a halted processor takes longer than a small collective, and the worker thread wakes sooner on a processor
 * that is awake. */
#ifndef CASTOR_HOOKS_GLOO_GLOO_H
#define CASTOR_HOOKS_GLOO_GLOO_H

/* From now on until gloo_wait_unwatch, this thread's new process groups are candidates. Drops the earlier candidates. */
void gloo_wait_watch(void);
/* The candidates' collectives go through the node's memory from now on. */
void gloo_wait_bind(void);
void gloo_wait_unwatch(void);

#endif
