/* The trace of this process from its start to its end, in a forked child as well: what it begins, resets and ends in every other
 * file of the trace. */
#include <unistd.h>
#include "base/clock.h"
#include "counters.h"
#include "device_blocks.h"
#include "device_memory.h"
#include "device_waits.h"
#include "file.h"
#include "live.h"
#include "phases.h"
#include "recorder.h"
#include "sampler.h"

castor_status trace_start(const char *directory, uint64_t max_bytes, int rank) {
    castor_status status = trace_file_set_directory(directory);
    counters_reset(false);
    live_reset();
    if (trace_file_directory()[0] == '\0')
        max_bytes = 0;
    counters_configure(max_bytes, rank);
    recorder_start(max_bytes);
    return status;
}

void trace_fork_child(void) {
    counters_reset(true);
    recorder_fork_child();
    live_reset();
    phases_fork_child();
    device_reset();
    device_memory_reset();
    device_blocks_reset();
    sample_fork_child();
}

static void mark_exit(trace_counters *counters) {
    __atomic_store_n(&counters->last_monotonic_ns, trace_now_ns(), __ATOMIC_RELAXED);
    if (counters->exit_realtime_ns == 0)
        counters->exit_realtime_ns = clock_ns(CLOCK_REALTIME);
    __atomic_store_n(&counters->exit_state, TRACE_PROCESS_EXITED, __ATOMIC_RELEASE);
}

void trace_exit(int status) {
    trace_counters *counters = counters_peek();
    if (counters == NULL || counters->pid != (uint32_t)getpid())
        return;
    counters->exit_status = status;
    mark_exit(counters);
}

void trace_flush(void) {
    trace_counters *counters = counters_peek();
    if (counters == NULL)
        return;
    sample_stop();
    device_blocks_write();
    phases_flush();
    mark_exit(counters);
}
