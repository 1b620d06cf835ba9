/* Reads the files of a log directory.
 *
 * Nothing in a file is trusted: it may be truncated, damaged, foreign or from another version, and a process
 * may be writing it right now. The results of these functions are checked: texts end, hold no control characters
 * and are valid UTF-8, ids are in range. */
#ifndef CASTOR_LAUNCHER_COMMON_TRACE_READ_H
#define CASTOR_LAUNCHER_COMMON_TRACE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include "trace/format.h"

typedef enum trace_read_status {
    TRACE_READ_OK,
    TRACE_READ_EMPTY, /* never finished by its process: empty, but not damaged */
    TRACE_READ_BAD,   /* `message` says what is wrong, without the file's name */
} trace_read_status;

#define TRACE_READ_MESSAGE_MAX 256

/* The counters of one process. */
trace_read_status trace_read_counters(int fd, trace_counters *out, char message[TRACE_READ_MESSAGE_MAX]);

/* The name of an id, or NULL; `counters` comes from trace_read_counters. */
const char *trace_read_name(const trace_counters *counters, uint32_t kind, uint32_t id);

/* How many records of a kind were counted, whatever their ids. */
uint64_t trace_read_total(const trace_counters *counters, uint32_t kind);
/* The process has made a step or a backward pass. */
bool trace_read_has_trained(const trace_counters *counters);
/* Whether `a` speaks for a rank rather than `b`: one that has trained, then one that no other forked (DataLoader workers), then the
 * later one (a restart). */
bool trace_read_speaks_rather(const trace_counters *a, const trace_counters *b);

typedef void (*trace_read_visitor)(void *context, const trace_record *record);

/* Visits the records of one segment, in order. If the file turns out to be bad, the records before that point
 * have been visited. */
trace_read_status trace_read_segment(int fd, trace_segment *header, trace_read_visitor visit, void *context,
                                     char message[TRACE_READ_MESSAGE_MAX]);

/* Makes `text` (of `size` bytes, terminated or not) safe to print, in place. */
void trace_read_clean(char *text, size_t size);

#endif
