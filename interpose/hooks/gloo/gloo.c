/* c10d::ProcessGroupGloo and the two classes ProcessGroupNCCL: the wrappers of their collectives, made from the table, and those
 * that follow a collective of gloo on its worker thread. All of them observe: arguments and results pass through unchanged.
 *
 * A C++ function that returns an object with a destructor takes the address for it as a hidden first argument
 * and returns that address: on x86-64 this is a C function with a pointer in front. Elsewhere the address
 * travels in a register that C cannot name, so the layer exists on x86-64 only. */
#include "gloo.h"
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include "base/clock.h"
#include "base/spin.h"
#include "events/life.h"
#include "hooks/c10d/collective.h"
#include "hooks/c10d/process_group.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/stable.h"
#include "trace/live.h"
#include "trace/trace.h"

#define GROUPS_MAX     256u
#define CANDIDATES_MAX 4u

static _Atomic(const void *) groups[GROUPS_MAX];
static _Atomic uint32_t groups_end; /* entries from here on were never used */

typedef struct candidates {
    bool on;
    uint32_t count;
    const void *group[CANDIDATES_MAX];
} candidates;

HOOK_THREAD_LOCAL candidates seen;

/* Of this thread. */
HOOK_THREAD_LOCAL const void *last_work;
HOOK_THREAD_LOCAL spin_patience patience;

typedef bool (*completed_function)(void *work); /* c10d::Work::isCompleted */
static _Atomic(completed_function) is_completed;

void gloo_wait_watch(void) {
    seen = (candidates){.on = true};
}

/* This thread has made a process group. */
static void gloo_wait_made(const void *group) {
    if (seen.on && seen.count < CANDIDATES_MAX)
        seen.group[seen.count++] = group;
}

void gloo_wait_unwatch(void) {
    seen.on = false;
}

static void completed_resolve(void) {
    void *library = loader_library(TORCH_CPU_LIBRARY);
    void *found = library ? loader_symbol(library, "_ZN4c10d4Work11isCompletedEv") : NULL;
    completed_function function;
    memcpy(&function, &found, sizeof function);
    atomic_store(&is_completed, function);
}

static void group_add(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX; i++) {
        const void *none = NULL;
        if (!atomic_compare_exchange_strong(&groups[i], &none, group))
            continue;
        uint32_t end = atomic_load(&groups_end);
        while (end <= i && !atomic_compare_exchange_weak(&groups_end, &end, i + 1))
            ;
        return;
    }
}

void gloo_wait_bind(void) {
    if (!atomic_load(&is_completed))
        completed_resolve();
    for (uint32_t i = 0; i < seen.count; i++)
        group_add(seen.group[i]);
}

static _Atomic(const void *) *group_find(const void *group) {
    uint32_t end = atomic_load_explicit(&groups_end, memory_order_acquire);
    for (uint32_t i = 0; i < end; i++)
        if (atomic_load_explicit(&groups[i], memory_order_relaxed) == group)
            return &groups[i];
    return NULL;
}

/* The group ends: its address may be reused for another. */
static void gloo_wait_end(const void *group) {
    _Atomic(const void *) *found = group_find(group);
    if (found)
        atomic_store(found, NULL);
}

/* This thread hands `work` to the group's worker threads. */
static void gloo_wait_enqueued(const void *group, const void *work) {
    if (atomic_load_explicit(&groups_end, memory_order_relaxed))
        last_work = group_find(group) ? work : NULL;
}

/* Before this thread waits for `work`: spins, if `work` is the one that it has just handed over. */
static void gloo_wait_spin(void *work) {
    if (!last_work || last_work != work)
        return;
    last_work = NULL;
    completed_function completed = atomic_load_explicit(&is_completed, memory_order_relaxed);
    uint32_t microseconds = completed ? spin_begin(&patience) : 0;
    if (!microseconds)
        return;
    double before = clock_seconds(), now = before, end = before + microseconds * 1e-6, turn = 0;
    bool done;
    do {
        before = now;
        sched_yield();
        done = completed(work);
        now = clock_seconds();
        turn = now - before > turn ? now - before : turn;
    } while (!done && now < end);
    spin_end(&patience, done && now < end, turn);
}

#if HOOK_GLOO_WRAPPED

typedef void *hook_work; /* where the intrusive_ptr<Work> was put */

/* The real function of a row, in libtorch_cpu.so or libtorch_cuda.so. The library may be called before the agent attaches. */
static void *real_function(hook_id id) {
    if (__builtin_expect(!life_is_awake(), 0))
        life_wake();
    void *real = hooks_real(id);
    if (__builtin_expect(!real, 0)) {
        life_library_loaded();
        real = hooks_real(id);
    }
    return real;
}

#define CALL_REAL_hook_work(call, real, arguments)                                                           \
    hook_work result = real arguments;                                                                       \
    (call).returned = true;                                                                                  \
    (call).work = *(void **)result;                                                                          \
    return result
#define CALL_REAL_void(call, real, arguments)                                                                \
    real arguments;                                                                                          \
    (call).returned = true

#define TAKE_PEER_NONE    (void)0
#define TAKE_PEER_TENSOR  (void)0
#define TAKE_PEER_TENSORS (void)0
#define TAKE_PEER_LISTS   (void)0
#define TAKE_PEER_MESSAGE (call.peer = rank, call.tag = tag)

#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload_kind, source, doc)        \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    HOOK_EXPORT result wrap_##id parameters {                                                                \
        result(*real) parameters = real_function(HOOK_##id);                                                 \
        __attribute__((cleanup(collective_leave))) collective_call call;                                     \
        if (collective_enter(&call, HOOK_##id, self)) {                                                      \
            payload_measure_##payload_kind(&call.payload, source);                                           \
            TAKE_PEER_##payload_kind;                                                                        \
            collective_begin(&call);                                                                         \
        }                                                                                                    \
        CALL_REAL_##result(call, real, arguments);                                                           \
    }
#include "hooks/table/c10d_nccl.def"
#include "hooks/table/c10d_nccl2.def"
#include "hooks/table/gloo.def"
#undef HOOK

/* The wrappers of the works, declared from the table and written out below. */
#define HOOK(layer, mode, result, id, name, symbol, parameters, ...)                                         \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result function_##id parameters;
#include "hooks/table/c10d_nccl_end.def"
#include "hooks/table/gloo_work.def"
#undef HOOK

#define REAL(id) ((function_##id *)real_function(HOOK_##id))

void wrap_GLOO_ENQUEUE(void *self, void *work) {
    collective_work_enqueue(*(void **)work);
    gloo_wait_enqueued(self, *(void **)work);
    REAL(GLOO_ENQUEUE)(self, work);
}

void wrap_GLOO_WORK_EXECUTE(const void *work) {
    collective_work_begin(*(void *const *)work);
    REAL(GLOO_WORK_EXECUTE)(work);
}

/* Before the real function: it wakes those who wait for the work, and they may read the counters. */
void wrap_GLOO_WORK_FINISH(void *work) {
    collective_work_end(work);
    REAL(GLOO_WORK_FINISH)(work);
}

void wrap_GLOO_WORK_FINISH_ERROR(void *work, const void *exception) {
    collective_work_end(work);
    REAL(GLOO_WORK_FINISH_ERROR)(work, exception);
}

bool wrap_GLOO_WORK_WAIT(void *self, int64_t timeout_ms) {
    gloo_wait_spin(self);
    return REAL(GLOO_WORK_WAIT)(self, timeout_ms);
}

bool wrap_GLOO_SEND_WAIT(void *self, int64_t timeout_ms) {
    uint64_t begin = trace_now_ns();
    bool done = REAL(GLOO_SEND_WAIT)(self, timeout_ms);
    trace_record_write(TRACE_CALL, HOOK_GLOO_SEND_WAIT, begin, trace_now_ns(), 0, 0, 0, 0);
    return done;
}

static void receive_begin(live_wait **live, const void *work, uint64_t begin_ns) {
    live_message message = collective_message_of(work);
    *live = message.ordinal ? live_receive_begin(&message, "recv", begin_ns)
                            : live_wait_begin(LIVE_RECEIVE, "recv", begin_ns);
}

/* The real function throws when nothing comes in time. */
static void receive_end(live_wait **live) {
    live_wait_end(*live);
}

bool wrap_GLOO_RECV_WAIT(void *self, int64_t timeout_ms) {
    uint64_t begin = trace_now_ns();
    __attribute__((cleanup(receive_end))) live_wait *live = NULL;
    receive_begin(&live, self, begin);
    bool done = REAL(GLOO_RECV_WAIT)(self, timeout_ms);
    trace_record_write(TRACE_CALL, HOOK_GLOO_RECV_WAIT, begin, trace_now_ns(), 0, 0, 0, 0);
    return done;
}

/* The base of every backend: the thread has said before what group it makes (live.h). */
void wrap_BACKEND_CREATE(void *self, int rank, int size) {
    REAL(BACKEND_CREATE)(self, rank, size);
    gloo_wait_made(self);
    process_group_made(self, live_process_group_made(self, rank, size), rank, size);
}

/* What it hands to NCCL is part of the messages that were recorded when they were kept: the call is entered, so that NCCL's
 * functions know it, and is no collective of its own: never `returned`. */
hook_work wrap_C10D_NCCL2_COALESCING_END(void *slot, void *self) {
    function_C10D_NCCL2_COALESCING_END *real = REAL(C10D_NCCL2_COALESCING_END);
    __attribute__((cleanup(collective_leave))) collective_call call;
    collective_enter(&call, HOOK_C10D_NCCL2_COALESCING_END, self);
    return real(slot, self);
}

#define GROUP_END(id)                                                                                        \
    void wrap_##id(void *self) {                                                                             \
        process_group_end(self);                                                                             \
        gloo_wait_end(self);                                                                                 \
        REAL(id)(self);                                                                                      \
    }
GROUP_END(GLOO_DELETE)
GROUP_END(GLOO_DESTROY)
GROUP_END(C10D_NCCL_DELETE)
GROUP_END(C10D_NCCL_DESTROY)
GROUP_END(C10D_NCCL2_DELETE)
GROUP_END(C10D_NCCL2_DESTROY)

#endif
