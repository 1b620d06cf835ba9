#include "counters.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "file.h"

#define COUNTERS_NAME_TRIES 100

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* This thread holds `lock`: a signal handler that records must not wait for it. */
static __thread bool lock_held __attribute__((tls_model("initial-exec")));

static trace_counters *current; /* written under lock, read with acquire */
static bool memory_failed;      /* lock */
static uint64_t trace_max_bytes;
static int rank_known = -1; /* atomic */
static uint64_t process_uid, parent_uid;
static void (*on_made)(trace_counters *counters);

/* Known before the file is: written into it when it is made. Guarded by lock. */
static const char *staged_names[TRACE_SLOT_MAX];
static char staged_plugin[TRACE_PLUGIN_MAX];

static bool counters_lock(void) {
    if (lock_held)
        return false;
    lock_held = true;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock);
    return true;
}

static void counters_unlock(void) {
    pthread_mutex_unlock(&lock);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    lock_held = false;
}

void counters_copy_text(char *out, size_t out_bytes, const char *text) {
    size_t length = strnlen(text, out_bytes - 1);
    memcpy(out, text, length);
    memset(out + length, 0, out_bytes - length);
}

static void read_command(char out[TRACE_COMMAND_MAX]) {
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, out, TRACE_COMMAND_MAX - 1);
    if (fd >= 0)
        close(fd);
    while (length > 0 && out[length - 1] == '\0')
        length--;
    for (ssize_t i = 0; i < length; i++)
        if (out[i] == '\0')
            out[i] = ' ';
    out[length > 0 ? length : 0] = '\0';
}

void counters_clocks(uint64_t *monotonic_ns, uint64_t *realtime_ns) {
    enum { TRIES = 8, CLOSE_NS = 2000 };
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < TRIES && closest > CLOSE_NS; i++) {
        uint64_t before = clock_ns(CLOCK_MONOTONIC), real = clock_ns(CLOCK_REALTIME),
                 after = clock_ns(CLOCK_MONOTONIC);
        if (after - before >= closest)
            continue;
        closest = after - before;
        *monotonic_ns = before + closest / 2;
        *realtime_ns = real;
    }
}

static uint64_t draw_uid(void) {
    uint64_t uid = 0;
    if (getrandom(&uid, sizeof uid, GRND_NONBLOCK) != (ssize_t)sizeof uid)
        uid = clock_ns(CLOCK_REALTIME) ^ ((uint64_t)getpid() << 40);
    return uid == 0 ? 1 : uid;
}

void counters_reset(bool forked) {
    pthread_mutex_init(&lock, NULL);
    lock_held = false;
    memory_failed = false;
    parent_uid = forked ? process_uid : 0;
    process_uid = draw_uid();
    __atomic_store_n(&current, NULL, __ATOMIC_RELEASE);
}

void counters_configure(uint64_t max_bytes, int rank) {
    trace_max_bytes = max_bytes;
    __atomic_store_n(&rank_known, rank, __ATOMIC_RELAXED);
}

void counters_observe(void (*made)(trace_counters *counters)) {
    on_made = made;
}

uint64_t counters_process_uid(void) {
    return process_uid;
}
int counters_rank(void) {
    return __atomic_load_n(&rank_known, __ATOMIC_RELAXED);
}

void counters_rank_text(char out[16]) {
    int rank = counters_rank();
    if (rank < 0)
        counters_copy_text(out, 16, "unknown");
    else
        log_format(out, 16, "%d", rank);
}

/* Holds lock. A pool that is full leaves the id without a name. */
static void write_name(trace_counters *counters, uint32_t slot, const char *name) {
    size_t bytes = strlen(name) + 1;
    if (bytes > TRACE_NAMES_BYTES - counters->names_used)
        return;
    memcpy(counters->names + counters->names_used, name, bytes);
    __atomic_store_n(&counters->name_offsets[slot], counters->names_used, __ATOMIC_RELEASE);
    counters->names_used += (uint32_t)bytes;
}

static trace_counters *map_counters(void) {
    int error = 0;
    if (trace_file_directory()[0] != '\0') {
        char name[96], rank[16], number[16] = "";
        counters_rank_text(rank);
        for (unsigned tries = 0; tries < COUNTERS_NAME_TRIES; tries++) {
            if (tries > 0)
                log_format(number, sizeof number, ".%u", tries);
            log_format(name, sizeof name, "rank-%s.pid-%u%s" TRACE_COUNTERS_SUFFIX, rank, (unsigned)getpid(),
                       number);
            trace_counters *file = trace_file_create(name, sizeof(trace_counters));
            if (file != NULL)
                return file;
            error = errno;
            if (error != EEXIST)
                break;
        }
        static bool logged;
        if (!logged) {
            logged = true;
            LOG_W(
                "cannot write the trace to %s: %s; this process leaves no report (choose another --log-dir)",
                trace_file_directory(), trace_file_error(error));
        }
    }
    void *memory =
        mmap(NULL, sizeof(trace_counters), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    ((trace_counters *)memory)->recording = error != 0 ? TRACE_RECORDING_FAILED : TRACE_RECORDING_OFF;
    return memory;
}

/* Holds lock. */
static trace_counters *counters_create(void) {
    trace_counters *counters = map_counters();
    if (counters == NULL) {
        memory_failed = true;
        return NULL;
    }
    counters->version = TRACE_VERSION;
    counters->file_bytes = sizeof(trace_counters);
    counters->slot_count = TRACE_SLOT_MAX;
    counters->gauge_count = GAUGE_COUNT;
    counters->pid = (uint32_t)getpid();
    counters->rank = counters_rank();
    counters->uid = process_uid;
    counters->parent_uid = parent_uid;
    counters->start_clock_ticks = process_start_ticks(0);
    counters_clocks(&counters->start_monotonic_ns, &counters->start_realtime_ns);
    counters->last_monotonic_ns = counters->start_monotonic_ns;
    counters->trace_max_bytes = trace_max_bytes;
    if (trace_max_bytes == 0 && counters->recording == TRACE_RECORDING_ON)
        counters->recording = TRACE_RECORDING_OFF;
    counters->names_used = 1;
    struct utsname system;
    if (uname(&system) == 0)
        counters_copy_text(counters->host, sizeof counters->host, system.nodename);
    counters_copy_text(counters->plugin, sizeof counters->plugin, staged_plugin);
    read_command(counters->command);
    for (uint32_t slot = 0; slot < TRACE_SLOT_MAX; slot++)
        if (staged_names[slot] != NULL)
            write_name(counters, slot, staged_names[slot]);
    if (on_made != NULL)
        on_made(counters);
    __atomic_store_n(&counters->magic, TRACE_COUNTERS_MAGIC, __ATOMIC_RELEASE);
    __atomic_store_n(&current, counters, __ATOMIC_RELEASE);
    return counters;
}

trace_counters *counters_peek(void) {
    return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

trace_counters *counters_get(void) {
    trace_counters *counters = counters_peek();
    if (__builtin_expect(counters != NULL, 1))
        return counters;
    int saved_errno = errno;
    if (!counters_lock())
        return NULL;
    counters = counters_peek();
    if (counters == NULL && !memory_failed)
        counters = counters_create();
    counters_unlock();
    errno = saved_errno;
    return counters;
}

void counters_add(trace_counters *counters, uint32_t kind, uint32_t id, uint64_t bytes, uint64_t ns) {
    trace_counter *counter = &counters->counters[trace_slot(kind, id)];
    __atomic_fetch_add(&counter->count, 1, __ATOMIC_RELAXED);
    if (bytes != 0)
        __atomic_fetch_add(&counter->bytes, bytes, __ATOMIC_RELAXED);
    if (ns != 0)
        __atomic_fetch_add(&counter->ns, ns, __ATOMIC_RELAXED);
}

static void gauge_raise(trace_counters *counters, trace_gauge gauge, uint64_t value) {
    uint64_t *max = &counters->gauges[gauge].max;
    uint64_t seen = __atomic_load_n(max, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(max, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&counters->last_monotonic_ns, trace_now_ns(), __ATOMIC_RELAXED);
}

void trace_gauge_set(trace_gauge gauge, uint64_t value) {
    trace_counters *counters = (uint32_t)gauge < GAUGE_COUNT ? counters_get() : NULL;
    if (counters == NULL)
        return;
    __atomic_store_n(&counters->gauges[gauge].last, value, __ATOMIC_RELAXED);
    gauge_raise(counters, gauge, value);
}

void trace_counter_add(trace_gauge gauge, uint64_t value) {
    trace_counters *counters = (uint32_t)gauge < GAUGE_COUNT ? counters_get() : NULL;
    if (counters == NULL)
        return;
    gauge_raise(counters, gauge, __atomic_add_fetch(&counters->gauges[gauge].last, value, __ATOMIC_RELAXED));
}

void counters_rank_set(int rank) {
    if (!counters_lock())
        return;
    __atomic_store_n(&rank_known, rank, __ATOMIC_RELAXED);
    trace_counters *counters = counters_peek();
    if (counters != NULL)
        __atomic_store_n(&counters->rank, rank, __ATOMIC_RELAXED);
    counters_unlock();
}

void trace_name_set(trace_record_kind kind, uint32_t id, const char *name) {
    if ((uint32_t)kind >= TRACE_RECORD_KIND_COUNT || id >= trace_slot_ids(kind) || name == NULL ||
        !counters_lock())
        return;
    uint32_t slot = trace_slot(kind, id);
    trace_counters *counters = counters_peek();
    bool known = staged_names[slot] != NULL && strcmp(staged_names[slot], name) == 0;
    staged_names[slot] = name;
    if (counters != NULL && !known)
        write_name(counters, slot, name);
    counters_unlock();
}

void trace_plugin_set(const char *plugin) {
    if (!counters_lock())
        return;
    counters_copy_text(staged_plugin, sizeof staged_plugin, plugin);
    trace_counters *counters = counters_peek();
    if (counters != NULL)
        counters_copy_text(counters->plugin, sizeof counters->plugin, plugin);
    counters_unlock();
}

void trace_outcome_set(const char *outcome) {
    trace_counters *counters = counters_get();
    if (counters == NULL || !counters_lock())
        return;
    counters_copy_text(counters->outcome, sizeof counters->outcome, outcome);
    counters_unlock();
}

void trace_exception_set(const char *type, const char *message, const char *place, bool by_other) {
    trace_counters *counters = counters_get();
    if (counters == NULL || !counters_lock())
        return;
    trace_exception *exception = &counters->exception;
    counters_copy_text(exception->type, sizeof exception->type, type);
    counters_copy_text(exception->message, sizeof exception->message, message);
    counters_copy_text(exception->place, sizeof exception->place, place);
    exception->by_other = by_other;
    __atomic_store_n(&exception->realtime_ns, clock_ns(CLOCK_REALTIME), __ATOMIC_RELEASE);
    counters_unlock();
}
