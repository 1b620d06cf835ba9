/* The library's own threads, and memory of each thread. */
#ifndef CASTOR_BASE_THREAD_H
#define CASTOR_BASE_THREAD_H

/* Starts a detached thread that no signal reaches: handlers are the script's and run on its threads. Returns 0, or
 * pthread_create's error. */
int thread_start(void *(*body)(void *), void *context);

/* Texts of a thread, and what else is large. They are no thread-local variables: a process that loads the library when it runs
 * already has room for about 1.5 KiB of those (glibc's reserve), of all libraries that come so late. */
typedef enum thread_room_id {
    THREAD_ROOM_ERROR,   /* base/error.c */
    THREAD_ROOM_OPTION,  /* castor_option_get */
    THREAD_ROOM_FAILURE, /* checkpoint/job.c */
    THREAD_ROOM_PLACE,   /* dlopen, hooks/lookup/loader.c */
    THREAD_ROOMS
} thread_room_id;
#define THREAD_ROOM_BYTES 4608

/* The calling thread's memory for this purpose, THREAD_ROOM_BYTES, zero at first; it ends with the thread. Never NULL: where
 * the system has no memory, threads share one. */
void *thread_room(thread_room_id id);

#endif
