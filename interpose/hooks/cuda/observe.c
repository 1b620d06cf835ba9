#include "observe.h"
#include "events/life.h"

__thread observe_thread_state observe_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));
void *observe_target[HOOK_COUNT];
observe_enqueued_function observe_enqueued;
observe_announced_function observe_announced;
static void *replacements[HOOK_COUNT]; /* atomic */

void *observe_target_find(hook_id id) {
    if (!life_is_awake())
        life_wake();
    void *real = hooks_find(id);
    /* The first call into a library that was not loaded when the hooks were resolved. */
    static bool seen[HOOK_LAYER_COUNT]; /* atomic */
    if (real && !__atomic_exchange_n(&seen[hook_table[id].layer], true, __ATOMIC_RELAXED))
        life_library_loaded();
    if (!real)
        return NULL;
    void *replacement = __atomic_load_n(&replacements[id], __ATOMIC_ACQUIRE),
         *target = replacement ? replacement : real, *known = NULL;
    return __atomic_compare_exchange_n(&observe_target[id], &known, target, false, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED)
               ? target
               : known;
}

void *observe_target_replace(hook_id id, void *replacement) {
    __atomic_store_n(&replacements[id], replacement, __ATOMIC_RELEASE);
    if (!observe_target_find(id))
        return NULL;
    __atomic_store_n(&observe_target[id], replacement, __ATOMIC_RELEASE);
    return hooks_find(id);
}

static void record(hook_id id, uint64_t begin_ns, uint64_t end_ns, int status, const observe_facts *facts) {
    trace_record_write(TRACE_CALL, id, begin_ns, end_ns, facts->bytes, facts->stream, facts->object,
                       (uint64_t)(unsigned)status << 32 | (unsigned)observe_thread.device);
}

void observe_tell(hook_id id, const observe_facts *facts) {
    observe_enqueued_function enqueued = __atomic_load_n(&observe_enqueued, __ATOMIC_ACQUIRE);
    if (enqueued)
        enqueued(id, facts);
}

void observe_record(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts) {
    if (status == 0)
        observe_tell(id, facts);
    record(id, begin_ns, trace_now_ns(), status, facts);
}

uint64_t observe_cuda_begin(hook_id id, bool gated) {
    uint64_t begin_ns = trace_now_ns();
    device_call_begin(hook_table[id].name, observe_thread.device, begin_ns);
    if (gated)
        gate_enter();
    return begin_ns;
}

void observe_cuda_end(hook_id id, bool gated, uint64_t begin_ns, int status, const observe_facts *facts) {
    if (status == 0)
        observe_tell(id, facts);
    if (gated)
        gate_leave();
    const effect *e = effect_of(id);
    if (e->memory != DEVICE_MEMORY_NONE && status == 0)
        device_memory_note(e->memory, facts->object, facts->bytes);
    uint64_t end_ns = trace_now_ns();
    uint64_t handle = 0;
    if (e->action >= DEVICE_ASK) { /* `object` of another call may be what a failed one has left unset */
        handle = facts->object ? facts->object : facts->stream;
        if (handle == 0) /* of a default stream */
            handle = (uint64_t)(unsigned)observe_thread.device + 1;
    }
    /* What NCCL launches is part of its own call, which says what was enqueued. */
    bool inside = e->action == DEVICE_ENQUEUE && (observe_thread.inside & OBSERVE_NCCL);
    device_call_end(inside ? DEVICE_NONE : e->action,
                    status == 0                   ? DEVICE_DONE
                    : status == OBSERVE_NOT_READY ? DEVICE_NOT_READY
                                                  : DEVICE_FAILED,
                    end_ns, facts->bytes, facts->stream, handle);
    if (status != OBSERVE_NOT_READY)
        record(id, begin_ns, end_ns, status, facts);
}
