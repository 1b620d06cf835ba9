#include "sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "counters.h"
#include "device_waits.h"
#include "live.h"
#include "trace.h"

#define SAMPLE_CALLBACKS       16
#define SAMPLE_INTERVAL_MAX_NS UINT64_C(60000000000)
#define SAMPLE_LOOK_NS         UINT64_C(1000000000) /* how often the live file is looked at, and written */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* on CLOCK_MONOTONIC; made by sample_start */
static enum { SAMPLE_IDLE, SAMPLE_RUNNING, SAMPLE_STOPPING, SAMPLE_ENDED } state; /* lock */

/* Fixed once running. */
typedef struct sample_callbacks {
    void (*list[SAMPLE_CALLBACKS])(void);
    int count;
} sample_callbacks;
static sample_callbacks callbacks, often;

static castor_status add_callback(sample_callbacks *to, void (*callback)(void)) {
    castor_status status = CASTOR_ERR_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    if (state == SAMPLE_IDLE && to->count < SAMPLE_CALLBACKS) {
        to->list[to->count++] = callback;
        status = CASTOR_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

castor_status sample_register(void (*callback)(void)) {
    return add_callback(&callbacks, callback);
}
castor_status sample_register_often(void (*callback)(void)) {
    return add_callback(&often, callback);
}

static void call_all(const sample_callbacks *to_call) {
    for (int i = 0; i < to_call->count; i++)
        to_call->list[i]();
}

/* Of a line `KEY: N kB`; 0 when there is none. */
static uint64_t rollup_bytes(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (at == NULL)
        return 0;
    for (at += strlen(key); *at == ' '; at++)
        ;
    uint64_t kib = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        kib = kib * 10 + (uint64_t)(*at - '0');
    return kib * 1024;
}

sample_set sample_read_set(void) {
    int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return (sample_set){0};
    char text[4096];
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return (sample_set){0};
    text[length] = '\0';
    return (sample_set){rollup_bytes(text, "\nPss:"), rollup_bytes(text, "\nPss_File:"),
                        rollup_bytes(text, "\nPss_Anon:"), rollup_bytes(text, "\nAnonymous:")};
}

static uint64_t last_pss; /* atomic */
static void (*on_set)(const sample_set *set);

void sample_set_observe(void (*callback)(const sample_set *set)) {
    on_set = callback;
}

static void sample_pss(void) {
    sample_set set = sample_read_set();
    __atomic_store_n(&last_pss, set.pss, __ATOMIC_RELAXED);
    if (set.pss == 0)
        return;
    trace_gauge_set(GAUGE_PSS_BYTES, set.pss);
    if (on_set != NULL)
        on_set(&set);
}

uint64_t sample_last_pss(void) {
    return __atomic_load_n(&last_pss, __ATOMIC_RELAXED);
}

/* The gauges of memory.def over time: a record for each that has changed. Only the sampler's thread comes here. */
static void sample_record_memory(void) {
    static const trace_gauge kept[] = {
#define MEMORY(gauge, label, role, doc) GAUGE_##gauge,
#include "memory.def"
    };
    static uint64_t recorded[sizeof kept / sizeof *kept], recorded_uid;
    const trace_counters *counters = counters_peek();
    if (counters == NULL)
        return;
    if (recorded_uid != counters_process_uid())
        memset(recorded, 0, sizeof recorded);
    recorded_uid = counters_process_uid();
    uint64_t now = trace_now_ns();
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        uint64_t bytes = __atomic_load_n(&counters->gauges[kept[i]].last, __ATOMIC_RELAXED);
        if (bytes != recorded[i])
            trace_record_write(TRACE_MEMORY, kept[i], now, now, bytes, 0, 0, 0);
        recorded[i] = bytes;
    }
}

/* Waits for `wait_ns`; false when the sampler must end. */
static bool wait_for(uint64_t wait_ns) {
    uint64_t deadline_ns = clock_ns(CLOCK_MONOTONIC) + wait_ns;
    struct timespec deadline = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&lock);
    while (state == SAMPLE_RUNNING && pthread_cond_timedwait(&changed, &lock, &deadline) == 0)
        ;
    bool running = state == SAMPLE_RUNNING;
    pthread_mutex_unlock(&lock);
    return running;
}

/* Waits for `interval_ns`, and looks meanwhile whether somebody wants to know where this process is, or it waits for a device. */
static bool wait_interval(uint64_t interval_ns) {
    for (;;) {
        live_stack_update();
        device_update(clock_ns(CLOCK_MONOTONIC));
        uint64_t look_ns = interval_ns < SAMPLE_LOOK_NS ? interval_ns : SAMPLE_LOOK_NS;
        if (!wait_for(look_ns))
            return false;
        interval_ns -= look_ns;
        if (interval_ns == 0)
            return true;
    }
}

/* What is sampled, each at its own pace. The set size costs milliseconds in a large process, gauges cost microseconds. An
 * interval is at least `cost_factor` times the processor time of its sample: 0.16% and 0.04% of one core. */
typedef struct sampling {
    uint64_t interval_min_ns, cost_factor;
    uint64_t next_ns; /* CLOCK_MONOTONIC */
} sampling;

static void sample_rarely(void) {
    sample_pss();
    call_all(&callbacks);
}

static void sample_often(void) {
    call_all(&often);
    sample_record_memory();
}

static void sample_if_due(sampling *sampling, void (*sample)(void)) {
    if (clock_ns(CLOCK_MONOTONIC) < sampling->next_ns)
        return;
    uint64_t begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    sample();
    uint64_t interval_ns = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns) * sampling->cost_factor;
    if (interval_ns < sampling->interval_min_ns)
        interval_ns = sampling->interval_min_ns;
    if (interval_ns > SAMPLE_INTERVAL_MAX_NS)
        interval_ns = SAMPLE_INTERVAL_MAX_NS;
    sampling->next_ns = clock_ns(CLOCK_MONOTONIC) + interval_ns;
}

static void *sample_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "castor-sample");
    sampling rarely = {UINT64_C(200000000), 625, 0}, soon = {UINT64_C(100000000), 2500, 0};
    uint64_t next_ns, now_ns;
    do {
        sample_if_due(&rarely, sample_rarely);
        sample_if_due(&soon, sample_often);
        next_ns = rarely.next_ns < soon.next_ns ? rarely.next_ns : soon.next_ns;
        now_ns = clock_ns(CLOCK_MONOTONIC);
    } while (wait_interval(next_ns > now_ns ? next_ns - now_ns : 0));
    sample_pss();
    sample_record_memory();
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
    int error = thread_start(sample_main, NULL);
    if (error != 0) {
        LOG_W("cannot start the thread that samples memory (error %d): the report has no set sizes", error);
        status = CASTOR_ERR_SYSTEM;
        goto out;
    }
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
