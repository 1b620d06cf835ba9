#include "staging_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "job/rendezvous.h"
#include "base/thread.h"
#include "job/token.h"
#include "staging.h"

#define LOOK_MS       2
#define RETRY_NS      10000000l
#define RETRY_SECONDS 0.05
#define MEETING       "the staging area"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is guarded by `lock`. */
static bool started, running;
static int (*call_later)(int (*)(void *), void *);
static int (*call_sweep)(void *);
static bool scheduled;
static double not_before;
static uint64_t most_bytes, base_bytes; /* this process's own bytes after the last sweep, or fewer */

/* Set before the thread starts. */
static char job[TOKEN_MAX];
static int statm = -1, resumed = -1; /* resumed: an eventfd */

/* Bytes of this process's memory that are no file's: of private pages. */
static uint64_t own_bytes_now(void) {
    char text[128];
    ssize_t got = pread(statm, text, sizeof text - 1, 0);
    if (got <= 0)
        return 0;
    text[got] = 0;
    char *at = text;
    strtoul(at, &at, 10);
    unsigned long resident = strtoul(at, &at, 10), of_files = strtoul(at, &at, 10);
    return resident > of_files ? (resident - of_files) * PAGE_BYTES : 0;
}

static void look(void) {
    uint64_t now = own_bytes_now();
    pthread_mutex_lock(&lock);
    if (now < base_bytes || !base_bytes)
        base_bytes = now;
    if (running && !scheduled && now - base_bytes > most_bytes && clock_seconds() >= not_before)
        scheduled = call_later(call_sweep, NULL) == 0;
    pthread_mutex_unlock(&lock);
}

/* Returns the socket on which others ask; -1: another process answers them. */
static int staging_find(int fds[2]) {
    for (;;) {
        int listener = rendezvous_listen(job, MEETING);
        if (listener >= 0 && staging_index_make(fds))
            return listener;
        if (listener >= 0)
            close(listener);
        else if (rendezvous_ask(job, MEETING, fds, 2))
            return -1;
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
}

static void *watch_main(void *context) {
    (void)context;
    prctl(PR_SET_NAME, "castor-staging");
    int fds[2], listener = staging_find(fds);
    if (staging_join(fds) != CASTOR_OK) {
        LOG_W("CASTOR_LAZY_INIT: %s; parameters are made as without it", error_text());
        return NULL;
    }
    for (;;) {
        struct pollfd polled[2] = {{.fd = resumed, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        pthread_mutex_lock(&lock);
        bool idle = !running;
        pthread_mutex_unlock(&lock);
        if (poll(polled, 2, idle ? -1 : LOOK_MS) > 0 && polled[1].revents)
            rendezvous_answer(listener, job, fds, 2);
        uint64_t count;
        if (polled[0].revents && read(resumed, &count, sizeof count) < 0)
            idle = true;
        if (!idle && staging_is_shared())
            look();
    }
    return NULL;
}

castor_status staging_watch_start(const char *token, uint64_t own_bytes,
                                  int (*schedule)(int (*)(void *), void *), int (*sweep)(void *)) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&lock);
    call_later = schedule;
    call_sweep = sweep;
    most_bytes = own_bytes;
    if (!running)
        base_bytes = 0;
    running = true;
    if (!started) {
        token_copy(job, token);
        statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        resumed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        int failed = thread_start(watch_main, NULL);
        started = !failed;
        if (failed)
            status =
                error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-staging (error %d)", failed);
    } else if (write(resumed, &(uint64_t){1}, sizeof(uint64_t)) < 0) {
        LOG_D("castor-staging goes on with its next look");
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void staging_watch_stop(void) {
    pthread_mutex_lock(&lock);
    running = false;
    pthread_mutex_unlock(&lock);
}

void staging_watch_done(int swept) {
    uint64_t now = swept ? own_bytes_now() : 0;
    pthread_mutex_lock(&lock);
    scheduled = false;
    if (swept)
        base_bytes = now;
    else
        not_before = clock_seconds() + RETRY_SECONDS;
    pthread_mutex_unlock(&lock);
}
