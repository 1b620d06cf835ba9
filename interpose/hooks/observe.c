#include "observe.h"
#include "../core/start.h"

__thread observe_thread_state observe_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));
void *observe_target[HOOK_COUNT];

void *observe_target_find(hook_id id) {
    if (!start_is_awake())
        start_wake_by_hook();
    void *real = hooks_find(id);
    /* The first call into a library that was not loaded when the hooks were resolved. */
    static bool seen[HOOK_LAYER_COUNT]; /* atomic */
    if (real && !__atomic_exchange_n(&seen[hook_table[id].layer], true, __ATOMIC_RELAXED))
        hooks_resolve();
    __atomic_store_n(&observe_target[id], real, __ATOMIC_RELAXED);
    return real;
}

void observe_record(hook_id id, uint64_t begin_ns, int status, const observe_facts *facts) {
    trace_record_write(TRACE_CALL, id, begin_ns, trace_now_ns(), facts->bytes, facts->stream, facts->object,
                       (uint64_t)(unsigned)status << 32 | (unsigned)observe_thread.device);
}
