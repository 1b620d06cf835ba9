/* The wrapper of an observed C function: passes the call on and records it. Made from a row by OBSERVED.
 *
 * Each call of the script's is counted once: a driver call inside a runtime call is part of it, and so is an NCCL call
 * inside another one. Private to hooks/. */
#ifndef CASTOR_HOOKS_TABLE_OBSERVE_H
#define CASTOR_HOOKS_TABLE_OBSERVE_H

#include "trace/device.h"
#include "trace/trace.h"
#include "wrapper.h"

#define OBSERVE_NOT_READY 600 /* cudaErrorNotReady, CUDA_ERROR_NOT_READY */

/* The levels that a thread is inside of. */
typedef enum observe_level { OBSERVE_RUNTIME = 1, OBSERVE_DRIVER = 2, OBSERVE_NCCL = 4 } observe_level;

/* The recorded facts of a call. */
typedef struct observe_facts {
    uint64_t bytes, stream, object;
} observe_facts;

#define OBSERVE_STREAM_PER_THREAD 2 /* stream 0 in the variants per thread: cudaStreamPerThread */

typedef struct observe_thread_state {
    unsigned inside; /* levels */
    int device;      /* of this thread, as set in the runtime */
} observe_thread_state;

extern __thread observe_thread_state observe_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The real functions of the rows whose wrapper was called; NULL until the first call. */
extern void *observe_target[HOOK_COUNT];

/* Wakes the library and finds the real function. NULL: there is none. */
void *observe_target_find(hook_id id);

static inline void *observe_target_of(hook_id id) {
    void *target = __atomic_load_n(&observe_target[id], __ATOMIC_RELAXED);
    return __builtin_expect(target != NULL, 1) ? target : observe_target_find(id);
}

void observe_record(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts);
/* The same for a CUDA function. A result "not ready" is not recorded. */
void observe_cuda_end(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts);

static inline uint64_t observe_set_device(int device) {
    observe_thread.device = device;
    return (uint64_t)(unsigned)device;
}

#define OBSERVE_FACTS(bytes_, stream_, object_)                                                              \
    { .bytes = (uint64_t)(bytes_), .stream = (uint64_t)(stream_), .object = (uint64_t)(object_) }

/* Defines wrap_ID and exports it as SYMBOL.
 *   level, hides     the call's level, and those inside of which it is part of another call
 *   missing          the result where no real function exists
 *   default_stream   the meaning of stream 0 */
#define OBSERVED(level, hides, result, missing, id, symbol, parameters, arguments, facts_, default_stream)   \
    result wrap_##id parameters;                                                                             \
    HOOK_EXPORT extern __typeof__(wrap_##id) export_##id __asm__(symbol)                                     \
        __attribute__((alias("wrap_" #id)));                                                                 \
    result wrap_##id parameters {                                                                            \
        result(*target_) parameters = observe_target_of(HOOK_##id);                                          \
        if (__builtin_expect(!target_, 0))                                                                   \
            return missing;                                                                                  \
        unsigned inside_ = observe_thread.inside;                                                            \
        if (inside_ & (hides))                                                                               \
            return target_ arguments;                                                                        \
        observe_thread.inside = inside_ | (level);                                                           \
        uint64_t begin_ns_ = trace_now_ns();                                                                 \
        if ((level) != OBSERVE_NCCL)                                                                         \
            device_call_begin(hook_table[HOOK_##id].name, observe_thread.device, begin_ns_);                 \
        result status_ = target_ arguments;                                                                  \
        observe_thread.inside = inside_;                                                                     \
        observe_facts observed_ = {0};                                                                       \
        if (status_ == 0 || (int)status_ == OBSERVE_NOT_READY) {                                             \
            observed_ = (observe_facts)OBSERVE_FACTS facts_;                                                 \
            if (!observed_.stream)                                                                           \
                observed_.stream = (default_stream);                                                         \
        }                                                                                                    \
        ((level) == OBSERVE_NCCL ? observe_record : observe_cuda_end)(HOOK_##id, begin_ns_, (int)status_,    \
                                                                      &observed_);                           \
        return status_;                                                                                      \
    }

#endif
