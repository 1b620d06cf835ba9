/* The library's own threads. */
#ifndef CASTOR_CORE_THREAD_H
#define CASTOR_CORE_THREAD_H

/* Starts a detached thread that no signal reaches: handlers are the script's and run on its threads. Returns 0, or
 * pthread_create's error. */
int thread_start(void *(*body)(void *), void *context);

#endif
