/* Segments hold the records of a thread.
 *
 * A thread's first segment is small, the next ones large, so that threads that hardly record anything cost
 * little disk. The segment of a thread that has ended is handed to the next thread that starts recording.
 *
 * Invariant: only the owning thread writes a segment, and only it unmaps it. */
#ifndef CASTOR_TRACE_SEGMENT_H
#define CASTOR_TRACE_SEGMENT_H

#include <stdbool.h>
#include "trace.h"

#define SEGMENT_FIRST_BYTES 65536u
#define SEGMENT_BYTES       1048576u

/* The recording state of one thread. */
typedef struct segment_cursor {
    trace_segment *segment;
    uint32_t generation; /* of the recorder, when `segment` was taken: an older one belongs to the parent */
    uint32_t count, thread, entry;
    bool busy; /* a record is being written: a signal handler must not write another */
} segment_cursor;

/* Drops all segments without touching them. After it no cursor is current. */
void segment_reset(void);
void segment_configure(uint64_t trace_max_bytes);

/* Room for one more record, or NULL: the record is only counted. */
trace_record *segment_next_record(segment_cursor *cursor, trace_counters *counters);
/* Adds the record that was returned last to the trace. */
static inline void segment_commit(segment_cursor *cursor) {
    __atomic_store_n(&cursor->segment->committed, ++cursor->count, __ATOMIC_RELEASE);
}

#endif
