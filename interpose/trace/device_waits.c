#include "device_waits.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "counters.h"
#include "live.h"

#define THREADS_MAX 64u
#define SETS        64u
#define WAYS        4u
#define WAITED_NS   UINT64_C(1000000)    /* a shorter call found nothing to wait for */
#define SHOWN_NS    UINT64_C(200000000)  /* a shorter wait is no news to anybody */
#define ASKED_NS    UINT64_C(5000000000) /* who has not asked again since then does not wait */

static device_thread threads[THREADS_MAX];
static device_thread unlisted; /* of threads that find no free entry; nothing reads it */
__thread device_thread *device_own __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Handles by hash. Of a full set the one goes that was longest not heard of: then its progress is not seen. */
typedef struct device_handle {
    uint64_t handle;             /* 0: free */
    uint64_t asked_ns, heard_ns; /* first and last answer that it is not done, or its record */
    const char *call;            /* that asks */
    int32_t device;              /* of the thread that recorded it */
} device_handle;

static device_handle handles[SETS][WAYS];
static uint32_t handles_busy; /* atomic; who finds it taken does without */
static uint64_t progress_ns;  /* atomic */

static bool thread_is_gone(uint32_t tid) {
    return syscall(SYS_tgkill, getpid(), (int)tid, 0) != 0 && errno == ESRCH;
}

device_thread *device_thread_claim(void) {
    int saved_errno = errno;
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    device_own = &unlisted;
    for (int round = 0; round < 2 && device_own == &unlisted;
         round++) /* free ones, then of threads that ended */
        for (uint32_t i = 0; i < THREADS_MAX && device_own == &unlisted; i++) {
            uint32_t holder = __atomic_load_n(&threads[i].tid, __ATOMIC_RELAXED);
            if ((round == 0 ? holder == 0 : thread_is_gone(holder)) &&
                __atomic_compare_exchange_n(&threads[i].tid, &holder, tid, false, __ATOMIC_ACQUIRE,
                                            __ATOMIC_RELAXED))
                device_own = &threads[i];
        }
    __atomic_store_n(&device_own->begin_ns, 0, __ATOMIC_RELAXED); /* of who ended in a call */
    errno = saved_errno;
    return device_own;
}

static device_handle *handle_find(uint64_t handle, bool add) {
    device_handle *set = handles[(handle >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 58], *oldest = set;
    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].handle == handle)
            return &set[i];
        if (set[i].handle == 0 || (oldest->handle != 0 && set[i].heard_ns < oldest->heard_ns))
            oldest = &set[i];
    }
    if (!add)
        return NULL;
    *oldest = (device_handle){.handle = handle};
    return oldest;
}

static void handle_end(device_action action, device_result result, uint64_t now_ns, uint64_t handle) {
    if (handle == 0 || result == DEVICE_FAILED || __atomic_exchange_n(&handles_busy, 1, __ATOMIC_ACQUIRE))
        return;
    bool open = action == DEVICE_RECORD || result == DEVICE_NOT_READY;
    device_handle *at = handle_find(handle, open);
    if (action == DEVICE_RECORD) {
        *at = (device_handle){.handle = handle, .heard_ns = now_ns, .device = device_own->device};
    } else if (open) {
        if (at->call == NULL)
            at->device = at->heard_ns ? at->device : device_own->device;
        if (at->call == NULL || now_ns - at->heard_ns > ASKED_NS)
            at->asked_ns = now_ns;
        at->call = device_own->call;
        at->heard_ns = now_ns;
    } else if (at != NULL) {
        at->handle = 0;
        if (action == DEVICE_ASK)
            __atomic_store_n(&progress_ns, now_ns, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&handles_busy, 0, __ATOMIC_RELEASE);
}

void device_enqueued(const char *function, uint64_t now_ns, uint64_t bytes, uint64_t stream) {
    device_thread *own = device_own != NULL ? device_own : device_thread_claim();
    __atomic_store_n(&own->enqueued, function, __ATOMIC_RELAXED);
    __atomic_store_n(&own->enqueued_bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&own->stream, stream, __ATOMIC_RELAXED);
    __atomic_store_n(&own->enqueued_ns, now_ns, __ATOMIC_RELEASE);
}

void device_call_end(device_action action, device_result result, uint64_t end_ns, uint64_t bytes,
                     uint64_t stream, uint64_t handle) {
    device_thread *own = device_own;
    if (action == DEVICE_ENQUEUE && result == DEVICE_DONE)
        device_enqueued(own->call, end_ns, bytes, stream);
    /* A call that enqueues waits too: for room in the queue, or for a copy from or to memory that is not pinned. */
    if ((action == DEVICE_WAIT || action == DEVICE_ENQUEUE) && result == DEVICE_DONE &&
        end_ns - own->begin_ns >= WAITED_NS)
        __atomic_store_n(&progress_ns, end_ns, __ATOMIC_RELAXED);
    if (action >= DEVICE_ASK)
        handle_end(action, result, end_ns, handle);
    __atomic_store_n(&own->begin_ns, 0, __ATOMIC_RELEASE);
}

static void wait_note(live_device *found, uint64_t begin_ns, const char *call, int device) {
    if (found->begin_ns != 0 && found->begin_ns <= begin_ns)
        return;
    found->begin_ns = begin_ns;
    found->device = device;
    counters_copy_text(found->call, sizeof found->call, call);
}

/* Fields that change meanwhile may be of two calls: castor believes what it has seen twice. */
static void threads_scan(live_device *found, uint64_t now_ns) {
    for (uint32_t i = 0; i < THREADS_MAX; i++) {
        device_thread *thread = &threads[i];
        uint32_t tid = __atomic_load_n(&thread->tid, __ATOMIC_ACQUIRE);
        uint64_t begin_ns = __atomic_load_n(&thread->begin_ns, __ATOMIC_ACQUIRE);
        uint64_t enqueued_ns = __atomic_load_n(&thread->enqueued_ns, __ATOMIC_ACQUIRE);
        if (begin_ns != 0 && begin_ns + SHOWN_NS < now_ns && !thread_is_gone(tid))
            wait_note(found, begin_ns, __atomic_load_n(&thread->call, __ATOMIC_RELAXED),
                      __atomic_load_n(&thread->device, __ATOMIC_RELAXED));
        if (enqueued_ns > found->enqueued_ns) {
            found->enqueued_ns = enqueued_ns;
            found->enqueued_bytes = __atomic_load_n(&thread->enqueued_bytes, __ATOMIC_RELAXED);
            found->stream = __atomic_load_n(&thread->stream, __ATOMIC_RELAXED);
            counters_copy_text(found->enqueued, sizeof found->enqueued,
                               __atomic_load_n(&thread->enqueued, __ATOMIC_RELAXED));
        }
    }
}

static void handles_update(live_device *found, uint64_t now_ns) {
    if (__atomic_exchange_n(&handles_busy, 1, __ATOMIC_ACQUIRE))
        return;
    for (uint32_t i = 0; i < SETS * WAYS; i++) {
        const device_handle *at = &handles[i / WAYS][i % WAYS];
        if (at->handle != 0 && at->call != NULL && now_ns - at->heard_ns <= ASKED_NS)
            wait_note(found, at->asked_ns, at->call, at->device);
    }
    __atomic_store_n(&handles_busy, 0, __ATOMIC_RELEASE);
}

void device_update(uint64_t now_ns) {
    live_device found = {.progress_ns = __atomic_load_n(&progress_ns, __ATOMIC_RELAXED)};
    threads_scan(&found, now_ns);
    if (found.enqueued_ns == 0)
        return; /* a call that does not return waits for something else */
    if (found.begin_ns == 0)
        handles_update(&found, now_ns);
    live_device_set(&found);
}

void device_reset(void) {
    memset(threads, 0, sizeof threads);
    memset(handles, 0, sizeof handles);
    handles_busy = 0;
    progress_ns = 0;
    device_own = NULL;
}
