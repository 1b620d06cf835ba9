/* The wrappers of a library's calls, from rows that say which operands a call reads and which it writes (cublas.def, cudnn.def). Whoever
 * includes it defines `inside`, of the thread: what such a call passes on to others of its library was seen before. Private to
 * hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_CALLS_H
#define CASTOR_HOOKS_CUDA_CALLS_H

#include "events/gate.h"
#include "awaited.h"
#include "joined.h"
#include "observe.h"
#include "writers.h"

#define OPERANDS_MAX 5

/* What one call reads elsewhere. */
typedef struct operands {
    slot_use uses[OPERANDS_MAX];
    slots *of[OPERANDS_MAX];
    uint32_t count;
    uint64_t stream;
} operands;

/* Of cublasLtMatmul: addresses that its descriptor has it write: what an epilogue keeps for the backward pass, or adds up for a bias, and the
 * greatest values. They may be read instead: then a slot becomes stale for nothing. */
typedef struct beside {
    uintptr_t addresses[4];
    bool any; /* the result goes through an array of pointers */
} beside;

/* A function of a library that only this file calls; NULL: it has none. */
static inline void *function_of(void **known, hook_layer layer, const char *symbol) {
    void *function = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (!function) {
        function = hooks_layer_symbol(layer, symbol);
        __atomic_store_n(known, function, __ATOMIC_RELAXED);
    }
    return function;
}

/* Where the call shall read it. Streams and events of one device do not go with slots of another. */
static inline const void *operand_read(operands *o, const void *matrix, size_t extent) {
    int device = devices_find((uintptr_t)matrix);
    slots *s = devices_slots(device);
    if (!s || device != observe_thread.device)
        return matrix;
    slot_use use = slot_use_begin(s, (uintptr_t)matrix, extent, o->stream);
    if (use.storage != SLOT_USE_NONE) {
        o->uses[o->count] = use;
        o->of[o->count++] = s;
    }
    return (const void *)use.pointer;
}

static inline void operands_end(const operands *o) {
    for (uint32_t i = 0; i < o->count; i++)
        slot_use_end(o->of[i], &o->uses[i]);
}

/* EACH(act, ((READ, A, extent), ...)): act((READ, A, extent)) and so on; at most five. */
#define EACH(act, list)                              EACH_OF(act, EACH_FLAT list)
#define EACH_FLAT(...)                               __VA_ARGS__
#define EACH_OF(...)                                 EACH_COUNTED(__VA_ARGS__, 5, 4, 3, 2, 1, 0)(__VA_ARGS__)
#define EACH_COUNTED(act, a, b, c, d, e, count, ...) EACH_##count
#define EACH_1(act, a)                               act(a)
#define EACH_2(act, a, b)                            act(a) act(b)
#define EACH_3(act, a, b, c)                         act(a) act(b) act(c)
#define EACH_4(act, a, b, c, d)                      act(a) act(b) act(c) act(d)
#define EACH_5(act, a, b, c, d, e)                   act(a) act(b) act(c) act(d) act(e)
/* NAME_HOW(matrix, ...) of (HOW, matrix, ...). */
#define NAMED(name, ...)         NAMED_OF(name, __VA_ARGS__)
#define NAMED_OF(name, how, ...) name##how(__VA_ARGS__)

/* Whether there is anything to do. All of them are asked. */
#define ASK(entry)                         NAMED(ASK_, EACH_FLAT entry)
#define ASK_READ(matrix, extent)           devices_may_hold((uintptr_t)(matrix)) |
#define ASK_BESIDE(matrix, other, extent)  devices_may_hold((uintptr_t)(matrix)) |
#define ASK_WRITE(matrix, extent)          devices_may_hold((uintptr_t)(matrix)) |
#define ASK_ARRAY(matrices)                writers_matter() |
#define ASK_DESCRIPTOR(descriptor, layout) beside_homes(descriptor, layout, &beside_) |

/* Before the gate: what it may write leaves. */
#define LEAVE(entry) NAMED(LEAVE_, EACH_FLAT entry)
#define LEAVE_READ(matrix, extent)
#define LEAVE_BESIDE(matrix, other, extent)
#define LEAVE_WRITE(matrix, extent)          joined_leave(matrix, extent);
#define LEAVE_ARRAY(matrices)                joined_leave_all();
#define LEAVE_DESCRIPTOR(descriptor, layout) beside_leave(&beside_);

#define BEGIN(entry) NAMED(BEGIN_, EACH_FLAT entry)
#define BEGIN_READ(matrix, extent)                                                                           \
    if (devices_may_hold((uintptr_t)(matrix)))                                                               \
        (matrix) = operand_read(&operands_, matrix, extent);
#define BEGIN_BESIDE(matrix, other, extent)                                                                  \
    if ((const void *)(matrix) != (const void *)(other))                                                     \
    BEGIN_READ(matrix, extent)
#define BEGIN_WRITE(matrix, extent)
#define BEGIN_ARRAY(matrices)
#define BEGIN_DESCRIPTOR(descriptor, layout)

/* What the call then touches at home. */
#define AWAIT(entry)                         NAMED(AWAIT_, EACH_FLAT entry)
#define AWAIT_READ(matrix, extent)           awaited((const void *)(matrix), extent, operands_.stream);
#define AWAIT_BESIDE(matrix, other, extent)  awaited((const void *)(matrix), extent, operands_.stream);
#define AWAIT_WRITE(matrix, extent)          awaited((const void *)(matrix), extent, operands_.stream);
#define AWAIT_ARRAY(matrices)                awaited_all(operands_.stream);
#define AWAIT_DESCRIPTOR(descriptor, layout) beside_await(&beside_, operands_.stream);

#define END(entry) NAMED(END_, EACH_FLAT entry)
#define END_READ(matrix, extent)
#define END_BESIDE(matrix, other, extent)
#define END_WRITE(matrix, extent)                                                                            \
    if (devices_may_hold((uintptr_t)(matrix)))                                                               \
        writers_note(matrix, extent, operands_.stream);
#define END_ARRAY(matrices)                writers_note_all(operands_.stream);
#define END_DESCRIPTOR(descriptor, layout) beside_note(&beside_, operands_.stream);

/* Slots are asked for and given back inside of the gate, since that copies homes; the call itself passes it where it calls CUDA, and may
 * wait for the device. A call that has failed may have written. */
#define CALL(result, function, parameters, arguments, list, stream_of)                                       \
    static result operands_##function parameters {                                                           \
        result(*real_) parameters = hooks_real(HOOK_##function);                                             \
        beside beside_ __attribute__((unused));                                                              \
        if (inside || !(EACH(ASK, list) false))                                                              \
            return real_ arguments;                                                                          \
        operands operands_ = {.count = 0};                                                                   \
        inside = true;                                                                                       \
        if (joined_matter()) {                                                                               \
            EACH(LEAVE, list)                                                                                \
        }                                                                                                    \
        gate_enter();                                                                                        \
        const bool in_stream_ = stream_of;                                                                   \
        if (in_stream_) {                                                                                    \
            EACH(BEGIN, list)                                                                                \
        }                                                                                                    \
        gate_leave();                                                                                        \
        if (updates_matter()) {                                                                              \
            if (in_stream_) {                                                                                \
                EACH(AWAIT, list)                                                                            \
            } else {                                                                                         \
                awaited_by_host();                                                                           \
            }                                                                                                \
        }                                                                                                    \
        result status_ = real_ arguments;                                                                    \
        gate_enter();                                                                                        \
        operands_end(&operands_);                                                                            \
        EACH(END, list)                                                                                      \
        gate_leave();                                                                                        \
        inside = false;                                                                                      \
        return status_;                                                                                      \
    }

#endif
