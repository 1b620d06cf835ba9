#include "observe.h"
#include "core/start.h"

__thread observe_thread_state observe_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));
void *observe_target[HOOK_COUNT];
static uint8_t actions[HOOK_COUNT]; /* device_action; written before observe_target */

void *observe_target_find(hook_id id) {
    if (!start_is_awake())
        start_wake_by_hook();
    void *real = hooks_find(id);
    /* The first call into a library that was not loaded when the hooks were resolved. */
    static bool seen[HOOK_LAYER_COUNT]; /* atomic */
    if (real && !__atomic_exchange_n(&seen[hook_table[id].layer], true, __ATOMIC_RELAXED))
        hooks_resolve();
    actions[id] = (uint8_t)device_action_of(hook_table[id].name);
    __atomic_store_n(&observe_target[id], real, __ATOMIC_RELAXED);
    return real;
}

static void record(hook_id id, uint64_t begin_ns, uint64_t end_ns, int status, const observe_facts *facts) {
    trace_record_write(TRACE_CALL, id, begin_ns, end_ns, facts->bytes, facts->stream, facts->object,
                       (uint64_t)(unsigned)status << 32 | (unsigned)observe_thread.device);
}

void observe_record(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts) {
    record(id, begin_ns, trace_now_ns(), status, facts);
}

void observe_cuda_end(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts) {
    uint64_t end_ns = trace_now_ns();
    uint64_t handle = 0;
    if (actions[id] >= DEVICE_ASK) { /* `object` of another call may be what a failed one has left unset */
        handle = facts->object ? facts->object : facts->stream;
        if (handle == 0) /* of a default stream */
            handle = (uint64_t)(unsigned)observe_thread.device + 1;
    }
    /* What NCCL launches is part of its own call, which says what was enqueued. */
    bool inside = actions[id] == DEVICE_ENQUEUE && (observe_thread.inside & OBSERVE_NCCL);
    device_call_end(inside ? DEVICE_NONE : actions[id],
                    status == 0                   ? DEVICE_DONE
                    : status == OBSERVE_NOT_READY ? DEVICE_NOT_READY
                                                  : DEVICE_FAILED,
                    end_ns, facts->bytes, facts->stream, handle);
    if (status != OBSERVE_NOT_READY)
        record(id, begin_ns, end_ns, status, facts);
}
