/* The counters of this process: one mapped file, made at first use; anonymous memory where no file can be made.
 *
 * Names, plugin and rank that are set before the file exists are kept aside, and written when it is made. */
#ifndef CASTOR_TRACE_COUNTERS_H
#define CASTOR_TRACE_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include "trace.h"

/* Forgets the file, if any: the next use makes a new one, for this process. `forked`: the process so far is
 * the parent. */
void counters_reset(bool forked);
void counters_configure(uint64_t trace_max_bytes, int rank);
/* `made` is called with the counters when they are made, from then on; it writes what it has counted before. */
void counters_observe(void (*made)(trace_counters *counters));

/* NULL without memory, and in a signal handler that interrupted the creation of the file. */
trace_counters *counters_get(void);
trace_counters *counters_peek(void); /* NULL when nothing was recorded yet; creates nothing */

void counters_add(trace_counters *counters, uint32_t kind, uint32_t id, uint64_t bytes, uint64_t ns);

/* The rank for a file's name: "3", or "unknown". */
void counters_rank_text(char out[16]);
uint64_t counters_process_uid(void);
int counters_rank(void);
void counters_rank_set(int rank);
/* Truncates a text that is too long, and fills the rest with zeros. */
void counters_copy_text(char *out, size_t out_bytes, const char *text);
/* Reads both clocks at the same moment: a thread preempted between two reads would shift its process against the others. */
void counters_clocks(uint64_t *monotonic_ns, uint64_t *realtime_ns);

#endif
