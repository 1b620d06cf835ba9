#include "trace.h"

#include <errno.h>
#include <stddef.h>
#include "counters.h"
#include "device_waits.h"
#include "device_memory.h"
#include "file.h"
#include "live.h"
#include "phases.h"
#include "sampler.h"
#include "segment.h"

static __thread segment_cursor this_thread __attribute__((tls_model("initial-exec")));

castor_status trace_start(const char *directory, uint64_t max_bytes, int rank) {
    castor_status status = trace_file_set_directory(directory);
    counters_reset(false);
    segment_reset();
    live_reset();
    if (trace_file_directory()[0] == '\0')
        max_bytes = 0;
    counters_configure(max_bytes, rank);
    segment_configure(max_bytes);
    return status;
}

void trace_record_write(trace_record_kind kind, uint32_t id, uint64_t begin_ns, uint64_t end_ns,
                        uint64_t bytes, uint64_t a, uint64_t b, uint64_t c) {
    if ((uint32_t)kind >= TRACE_RECORD_KIND_COUNT)
        return;
    int saved_errno = errno;
    trace_counters *counters = counters_get();
    if (counters == NULL)
        goto out;
    counters_add(counters, kind, trace_counted_id(kind, id, a), bytes,
                 end_ns > begin_ns ? end_ns - begin_ns : 0);
    if (__atomic_load_n(&counters->recording, __ATOMIC_RELAXED) == TRACE_RECORDING_OFF)
        goto out;
    segment_cursor *cursor = &this_thread;
    trace_record *record = NULL;
    bool nested = cursor->busy;
    if (!nested) {
        cursor->busy = true;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        record = segment_next_record(cursor, counters);
        if (record != NULL) {
            *record = (trace_record){.begin_ns = begin_ns,
                                     .end_ns = end_ns,
                                     .kind = (uint32_t)kind,
                                     .id = id,
                                     .bytes = bytes,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .thread = cursor->thread};
            segment_commit(cursor);
        }
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        cursor->busy = false;
    }
    if (record == NULL)
        __atomic_fetch_add(&counters->dropped, 1, __ATOMIC_RELAXED);
out:
    errno = saved_errno;
}

void trace_fork_child(void) {
    counters_reset(true);
    segment_reset();
    live_reset();
    phases_fork_child();
    device_reset();
    device_memory_reset();
    this_thread = (segment_cursor){0};
    sample_fork_child();
}
