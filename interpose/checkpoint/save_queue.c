#include "save_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include "base/error.h"
#include "base/interrupt.h"
#include "base/thread.h"
#include "events/life.h"
#include "hold.h"
#include "pending.h"

#define LOOK_NS 50000000 /* for signals */

typedef struct entry {
    job *job;
    void *kept;
    struct entry *next;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static entry *first, **last = &first; /* the first is being written */
static entry *done;                   /* written, but something of it is still kept */
static bool running, forks_seen;
static failure untold;
static const char *untold_doing; /* NULL: no error is untold */
static int (*release_later)(int (*)(void *), void *);
static void (*release_drop)(void *);

void queue_release_set(int (*later)(int (*call)(void *), void *), void (*drop)(void *)) {
    release_later = later;
    release_drop = drop;
}

static int kept_drop(void *kept) {
    release_drop(kept);
    return 0;
}

/* Under the lock. The interpreter's list may be full: then at the next occasion. */
static void done_release(void) {
    for (entry *e; (e = done) != NULL;) {
        if (e->kept && (!release_later || release_later(kept_drop, e->kept) != 0))
            return;
        done = e->next;
        free(e);
    }
}

static void entry_write(entry *e) {
    failure failed = {0};
    const char *doing;
    bool good = job_write(e->job, &failed, &doing);
    pthread_mutex_lock(&lock);
    if (!good && !untold_doing) {
        untold = failed;
        untold_doing = doing;
    }
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; job_place(e->job, i); i++)
        pending_remove(job_place(e->job, i));
    job_drop(e->job);
}

static void *save_main(void *context) {
    (void)context;
    prctl(PR_SET_NAME, "castor-save");
    pthread_mutex_lock(&lock);
    while (running) {
        while (!first)
            pthread_cond_wait(&changed, &lock);
        entry *e = first;
        pthread_mutex_unlock(&lock);
        entry_write(e);
        pthread_mutex_lock(&lock);
        first = e->next;
        if (!first)
            last = &first;
        e->next = done;
        done = e;
        done_release();
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void fork_prepare(void) {
    pthread_mutex_lock(&lock);
}
static void fork_parent(void) {
    pthread_mutex_unlock(&lock);
}
/* The parent writes; the child has neither the thread nor the errors. */
static void fork_child(void) {
    hold_fork_child();
    for (entry *e = first; e; e = e->next)
        job_fork_child(e->job);
    first = NULL;
    last = &first;
    done = NULL;
    running = false;
    untold_doing = NULL;
    pthread_cond_init(&changed, NULL);
    pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static castor_status thread_run(void) {
    if (!forks_seen && life_fork_register(fork_prepare, fork_parent, fork_child) != CASTOR_OK)
        return error_set(CASTOR_ERR_MEMORY, "no room for a handler of fork");
    forks_seen = true;
    int failed = running ? 0 : thread_start(save_main, NULL);
    if (failed)
        return error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-save (errno %d)", failed);
    running = true;
    return CASTOR_OK;
}

/* Under the lock. */
static castor_status untold_take(void) {
    const char *doing = untold_doing;
    untold_doing = NULL;
    return doing ? job_error(&untold, doing) : CASTOR_OK;
}

castor_status queue_check(void) {
    pthread_mutex_lock(&lock);
    done_release();
    castor_status status = untold_take();
    pthread_mutex_unlock(&lock);
    return status;
}

castor_status queue_write(job *j) {
    failure failed = {0};
    const char *doing;
    castor_status status = queue_wait(); /* the names of an earlier save appear earlier */
    if (status == CASTOR_OK && !job_write(j, &failed, &doing))
        status = job_error(&failed, doing);
    job_drop(j);
    return status;
}

castor_status queue_start(job *j, void *kept, job_partial *partial) {
    entry *e = malloc(sizeof *e);
    castor_status status = e ? CASTOR_OK : error_set(CASTOR_ERR_MEMORY, "no memory for a save");
    uint32_t listed = 0;
    partial->inode = 0;
    pthread_mutex_lock(&lock);
    if (status == CASTOR_OK)
        status = thread_run();
    for (; status == CASTOR_OK && job_place(j, listed) && pending_add(job_place(j, listed));)
        listed++;
    bool full = status == CASTOR_OK && job_place(j, listed);
    pthread_mutex_unlock(&lock);
    if (status == CASTOR_OK && !full)
        status = job_hold(j, partial);
    if (status) {
        while (listed > 0)
            pending_remove(job_place(j, --listed));
        job_drop(j);
        free(e);
        return status;
    }
    if (full) { /* nobody could wait for so many files by name: they are there when this returns */
        while (listed > 0)
            pending_remove(job_place(j, --listed));
        status = queue_write(j);
        if (status) {
            free(e);
            return status;
        }
        pthread_mutex_lock(&lock);
        *e = (entry){NULL, kept, done};
        done = e;
        done_release();
        pthread_mutex_unlock(&lock);
        return CASTOR_OK;
    }
    *e = (entry){j, kept, NULL};
    pthread_mutex_lock(&lock);
    *last = e;
    last = &e->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CASTOR_OK;
}

castor_status queue_wait(void) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&lock);
    while (first && status == CASTOR_OK) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&changed, &lock, &until);
        pthread_mutex_unlock(&lock);
        if (interrupt_arrived())
            status = error_set(CASTOR_ERR_INTERRUPTED, "a signal's handler ended the wait for a save");
        pthread_mutex_lock(&lock);
    }
    done_release();
    if (status == CASTOR_OK)
        status = untold_take();
    pthread_mutex_unlock(&lock);
    return status;
}
