#include "sample.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../core/log.h"
#include "live.h"
#include "trace.h"

#define SAMPLE_CALLBACKS       16
#define SAMPLE_INTERVAL_MIN_NS UINT64_C(200000000)
#define SAMPLE_INTERVAL_MAX_NS UINT64_C(60000000000)
#define SAMPLE_LOOK_NS         UINT64_C(1000000000) /* how often the live file is looked at */
#define SAMPLE_COST_FACTOR     500 /* the interval is at least so many times the cost of a sample */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* on CLOCK_MONOTONIC; made by sample_start */
static enum { SAMPLE_IDLE, SAMPLE_RUNNING, SAMPLE_STOPPING, SAMPLE_ENDED } state; /* lock */
static void (*callbacks[SAMPLE_CALLBACKS])(void);                                 /* fixed once running */
static int callback_count;

castor_status sample_register(void (*callback)(void)) {
    castor_status status = CASTOR_ERR_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    if (state == SAMPLE_IDLE && callback_count < SAMPLE_CALLBACKS) {
        callbacks[callback_count++] = callback;
        status = CASTOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

uint64_t sample_read_pss(void) {
    int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char text[4096];
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *at = strstr(text, "\nPss:");
    if (at == NULL)
        return 0;
    for (at += 5; *at == ' '; at++)
        ;
    uint64_t kib = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        kib = kib * 10 + (uint64_t)(*at - '0');
    return kib * 1024;
}

static void sample_pss(void) {
    uint64_t pss = sample_read_pss();
    if (pss > 0)
        trace_gauge_set(GAUGE_PSS_BYTES, pss);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Waits for `wait_ns`; false when the sampler must end. */
static bool wait_part(uint64_t wait_ns) {
    uint64_t deadline_ns = clock_ns(CLOCK_MONOTONIC) + wait_ns;
    struct timespec deadline = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&lock);
    while (state == SAMPLE_RUNNING && pthread_cond_timedwait(&changed, &lock, &deadline) == 0)
        ;
    bool running = state == SAMPLE_RUNNING;
    pthread_mutex_unlock(&lock);
    return running;
}

/* Waits for `interval_ns`, and looks meanwhile whether somebody wants to know where this process is. */
static bool wait_interval(uint64_t interval_ns) {
    for (;;) {
        live_stack_look();
        uint64_t part_ns = interval_ns < SAMPLE_LOOK_NS ? interval_ns : SAMPLE_LOOK_NS;
        if (!wait_part(part_ns))
            return false;
        interval_ns -= part_ns;
        if (interval_ns == 0)
            return true;
    }
}

static void *sample_main(void *unused) {
    (void)unused;
    uint64_t interval_ns;
    do {
        uint64_t begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        sample_pss();
        for (int i = 0; i < callback_count; i++)
            callbacks[i]();
        interval_ns = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns) * SAMPLE_COST_FACTOR;
        if (interval_ns < SAMPLE_INTERVAL_MIN_NS)
            interval_ns = SAMPLE_INTERVAL_MIN_NS;
        if (interval_ns > SAMPLE_INTERVAL_MAX_NS)
            interval_ns = SAMPLE_INTERVAL_MAX_NS;
    } while (wait_interval(interval_ns));
    sample_pss();
    pthread_mutex_lock(&lock);
    state = SAMPLE_ENDED;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

castor_status sample_start(void) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&lock);
    if (state != SAMPLE_IDLE)
        goto out;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, sample_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        LOG_W("cannot start the thread that samples memory (error %d): the report has no set sizes", error);
        status = CASTOR_ERR_SYSTEM;
        goto out;
    }
    pthread_setname_np(thread, "castor-sample");
    state = SAMPLE_RUNNING;
out:
    pthread_mutex_unlock(&lock);
    return status;
}

void sample_stop(void) {
    uint64_t deadline_ns = clock_ns(CLOCK_MONOTONIC) + 1000000000u;
    struct timespec deadline = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&lock);
    if (state == SAMPLE_RUNNING) {
        state = SAMPLE_STOPPING;
        pthread_cond_broadcast(&changed);
    }
    while (state == SAMPLE_STOPPING && pthread_cond_timedwait(&changed, &lock, &deadline) == 0)
        ;
    pthread_mutex_unlock(&lock);
}

void sample_fork_child(void) {
    pthread_mutex_init(&lock, NULL);
    state = SAMPLE_IDLE;
}
