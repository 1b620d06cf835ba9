/* The recorder: one ring of mapped segments per thread, and shared counters per process.
 *
 * A record is complete once its thread has advanced the segment's committed count, so a trace is readable after
 * SIGKILL. No malloc, no lock on the way of a record. When the directory cannot be written, or CASTOR_TRACE_MAX is
 * reached, only counters are kept (in anonymous memory at worst). */
#ifndef CASTOR_TRACE_TRACE_H
#define CASTOR_TRACE_TRACE_H

#include <stdint.h>
#include "format.h"
#include "../core/status.h"

/* Opens the trace of this process below `directory` ("" : counters only). `rank` may be -1 until known. */
castor_status trace_start(const char *directory, uint64_t max_bytes, int rank);
void trace_set_rank(int rank);
uint64_t trace_now_ns(void); /* CLOCK_MONOTONIC */

/* Appends a record of this thread and adds to the counters of its (kind, id). begin_ns == end_ns: an instant. */
void trace_record_write(trace_record_kind kind, uint32_t id, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes,
                        uint64_t a, uint64_t b, uint64_t c);
/* Sets a gauge: its last value and its maximum are kept in the counters. */
void trace_gauge_set(trace_gauge gauge, uint64_t value);
void trace_counter_add(trace_gauge gauge, uint64_t value);

void trace_flush(void);      /* at exit */
void trace_fork_child(void); /* leak the parent's segments, start new ones lazily */

#endif
