/* The recorder: one chain of mapped segments per thread, and counters per process.
 *
 * A record is complete once its thread has advanced the segment's committed count, so a trace is readable
 * after SIGKILL. No malloc, no lock on the path of a record; errno is kept. When the directory cannot be
 * written, or CASTOR_TRACE_MAX is reached, only counters are kept (in anonymous memory at worst).
 *
 * Files are made at the first record, gauge or outcome: a process that has none (a shell of the job) leaves
 * none. Blocks of a file are reserved before it is mapped, so a full disk ends the recording and never the
 * process.
 *
 * All functions may be called from any thread. A record written inside another one of the same thread (by a
 * signal handler) is only counted. */
#ifndef CASTOR_TRACE_H
#define CASTOR_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"
#include "format.h"

/* Opens the trace of this process in `directory`, which exists ("" : counters only). `max_bytes` bounds the
 * records of the whole job, 0: counters only. `rank` may be -1 until known. Nothing is written yet. */
castor_status trace_start(const char *directory, uint64_t max_bytes, int rank);
void trace_set_rank(int rank);
uint64_t trace_now_ns(void); /* CLOCK_MONOTONIC */

/* Appends a record of this thread and adds to the counters of its (kind, id). begin_ns == end_ns: an instant. */
void trace_record_write(trace_record_kind kind, uint32_t id, uint64_t begin_ns, uint64_t end_ns,
                        uint64_t bytes, uint64_t a, uint64_t b, uint64_t c);

/* Sets a gauge: its last value and its maximum are kept in the counters. The report takes the last value for
 * the steady state, so do not set gauges to zero on the way out. */
void trace_gauge_set(trace_gauge gauge, uint64_t value);
void trace_counter_add(trace_gauge gauge, uint64_t value);

/* Names an id of a kind for the report: the symbol of a CALL, the operation ("allreduce") of a COLLECTIVE,
 * the reason of a WAIT. A hook of a collective names both its CALL (symbol) and its COLLECTIVE (operation).
 * `name` must stay valid as long as the process. */
void trace_name_set(trace_record_kind kind, uint32_t id, const char *name);

/* The plugin of this process. */
void trace_plugin_set(const char *plugin);
/* A fact about the run, for the report; nothing happens if it cannot be written. */
void trace_about_add(trace_about fact, const char *value);
/* One line that the report shows, for instance "passthrough: REASON"; the last one counts. */
void trace_outcome_set(const char *outcome);

/* The exception that ends the process, unless a later one does. `by_other`: another rank's failure made it. */
void trace_exception_set(const char *type, const char *message, const char *place, bool by_other);

/* The process exits with `status`. Safe in a signal handler; after vfork, where the counters are the parent's, it does nothing. */
void trace_exit(int status);
void trace_flush(void);      /* at exit: ends the sampler, and marks a regular exit */
void trace_fork_child(void); /* leak the parent's segments, start new ones lazily */

#endif
