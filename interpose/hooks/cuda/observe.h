/* The wrapper of an observed C function: passes the call on and records it. Made from a row by OBSERVED.
 *
 * Each call of the script's is counted once: a driver call inside a runtime call is part of it, and so is an NCCL call
 * inside another one. So is a call of cuBLAS or cuBLASLt inside of another one, and one of cuDNN; what it launches is recorded besides. Such an inner call goes to the real function at once.
 *
 * A thread's outermost call of the runtime or the driver passes the gate (events/gate.h), unless it only waits for the device: the work
 * that it waits for may need a call of another thread. Calls of NCCL, cuBLAS and cuDNN do not pass it, since they may wait for other ranks
 * or for the device; those of the runtime and the driver inside of them do. Private to hooks/. */
#ifndef CASTOR_HOOKS_CUDA_OBSERVE_H
#define CASTOR_HOOKS_CUDA_OBSERVE_H

#include "events/gate.h"
#include "hooks/lookup/wrapper.h"
#include "hooks/table/effect.h"
#include "trace/trace.h"

#define OBSERVE_NOT_READY 600 /* cudaErrorNotReady, CUDA_ERROR_NOT_READY */

/* The levels that a thread is inside of. */
typedef enum observe_level {
    OBSERVE_RUNTIME = 1,
    OBSERVE_DRIVER = 2,
    OBSERVE_NCCL = 4,
    OBSERVE_BLAS = 8,
    OBSERVE_DNN = 16,
    OBSERVE_LIBRARIES = OBSERVE_NCCL | OBSERVE_BLAS | OBSERVE_DNN, /* whose calls are made of those of CUDA */
} observe_level;

/* The recorded facts of a call. */
typedef struct observe_facts {
    uint64_t bytes, stream, object;
    uint64_t source; /* of a copy; OBSERVE_ANYWHERE: the row does not say */
} observe_facts;

#define OBSERVE_ANYWHERE          UINT64_MAX
#define OBSERVE_STREAM_PER_THREAD 2 /* stream 0 in the variants per thread: cudaStreamPerThread */

typedef struct observe_thread_state {
    unsigned inside; /* levels */
    int device;      /* of this thread, as set in the runtime */
} observe_thread_state;

extern __thread observe_thread_state observe_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* What the wrappers call, by row: the real function or its replacement; NULL until the first call. */
extern void *observe_target[HOOK_COUNT];

/* Wakes the library and finds the real function. NULL: there is none. */
void *observe_target_find(hook_id id);

/* From now on the row's wrapper calls `replacement`, which has the type of the real function, inside the gate and with the call
 * counted once, as before. It reaches the real function by hooks_find(id), and never by the exported name. Inner calls
 * (above) do not come to it. Returns the real function; NULL: its library is not loaded yet, and the replacement counts from
 * then on. One replacement for each row. */
void *observe_target_replace(hook_id id, void *replacement);

/* Called after an observed call has succeeded, before its wrapper returns and still inside the gate; NULL: nobody wants it. Between
 * ncclGroupStart and ncclGroupEnd a call of NCCL has enqueued nothing yet. `facts` are those of the row; of a collective or
 * message of NCCL the bytes of `count` elements, the stream and the communicator. Set once. */
typedef void (*observe_enqueued_function)(hook_id id, const observe_facts *facts);
extern observe_enqueued_function observe_enqueued;
void observe_tell(hook_id id, const observe_facts *facts); /* calls it */

/* Called before a call that writes or reads as its row says, outside of the gate; NULL: nobody wants it. */
typedef void (*observe_announced_function)(effect_writes writes, effect_reads reads,
                                           const observe_facts *facts);
extern observe_announced_function observe_announced;

static inline void *observe_target_of(hook_id id) {
    void *target = __atomic_load_n(&observe_target[id], __ATOMIC_RELAXED);
    return __builtin_expect(target != NULL, 1) ? target : observe_target_find(id);
}

/* Records a call of NCCL that has returned. */
void observe_record(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts);

/* Around a call of CUDA. A result "not ready" is not recorded. */
uint64_t observe_cuda_begin(hook_id id, bool gated);
void observe_cuda_end(hook_id id, bool gated, uint64_t begin_ns, int status, const observe_facts *facts);

static inline uint64_t observe_set_device(int device) {
    observe_thread.device = device;
    return (uint64_t)(unsigned)device;
}

#define OBSERVE_FACTS(bytes_, stream_, ...)                                                                  \
    {                                                                                                        \
        .bytes = (uint64_t)(bytes_), .stream = (uint64_t)(stream_),                                          \
        .object = (uint64_t)(OBSERVE_FIRST(__VA_ARGS__, OBSERVE_ANYWHERE)),                                  \
        .source = (uint64_t)(OBSERVE_SECOND(__VA_ARGS__, OBSERVE_ANYWHERE, ))                                \
    }
#define OBSERVE_FIRST(first, ...)          first
#define OBSERVE_SECOND(first, second, ...) second

/* Defines wrap_ID and exports it as SYMBOL.
 *   level, hides     the call's level, and those inside of which it is part of another call
 *   only_waits       for the device: constant
 *   writes, reads    as effect.h says: constant
 *   missing          the result where no real function exists
 *   default_stream   the meaning of stream 0 */
#define OBSERVED(level, hides, result, missing, id, symbol, only_waits, writes, reads, parameters,           \
                 arguments, facts_, default_stream)                                                          \
    result wrap_##id parameters;                                                                             \
    HOOK_EXPORT extern __typeof__(wrap_##id) export_##id __asm__(symbol)                                     \
        __attribute__((alias("wrap_" #id)));                                                                 \
    result wrap_##id parameters {                                                                            \
        result(*target_) parameters = observe_target_of(HOOK_##id);                                          \
        if (__builtin_expect(!target_, 0))                                                                   \
            return missing;                                                                                  \
        unsigned inside_ = observe_thread.inside;                                                            \
        if (inside_ & (hides)) {                                                                             \
            target_ = hooks_real(HOOK_##id);                                                                 \
            return target_ arguments;                                                                        \
        }                                                                                                    \
        const bool gated_ = !((level)&OBSERVE_LIBRARIES) && !(only_waits) &&                                 \
                            !(inside_ & (OBSERVE_RUNTIME | OBSERVE_DRIVER));                                 \
        if ((writes) != EFFECT_WRITES_NOTHING || (reads) != EFFECT_READS_NOTHING) {                          \
            observe_announced_function announced_ = __atomic_load_n(&observe_announced, __ATOMIC_ACQUIRE);   \
            if (__builtin_expect(announced_ != NULL, 0)) {                                                   \
                observe_facts coming_ = OBSERVE_FACTS facts_;                                                \
                if (!coming_.stream)                                                                         \
                    coming_.stream = (default_stream);                                                       \
                announced_((writes), (reads), &coming_);                                                     \
            }                                                                                                \
        }                                                                                                    \
        observe_thread.inside = inside_ | (level);                                                           \
        uint64_t begin_ns_ =                                                                                 \
            (level)&OBSERVE_LIBRARIES ? trace_now_ns() : observe_cuda_begin(HOOK_##id, gated_);              \
        result status_ = target_ arguments;                                                                  \
        observe_thread.inside = inside_;                                                                     \
        observe_facts observed_ = {0};                                                                       \
        if (status_ == 0 || (int)status_ == OBSERVE_NOT_READY) {                                             \
            observed_ = (observe_facts)OBSERVE_FACTS facts_;                                                 \
            if (!observed_.stream)                                                                           \
                observed_.stream = (default_stream);                                                         \
        }                                                                                                    \
        if ((level)&OBSERVE_LIBRARIES)                                                                       \
            observe_record(HOOK_##id, begin_ns_, (int)status_, &observed_);                                  \
        else                                                                                                 \
            observe_cuda_end(HOOK_##id, gated_, begin_ns_, (int)status_, &observed_);                        \
        return status_;                                                                                      \
    }

#endif
