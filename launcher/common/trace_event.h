/* Writes trace events (the JSON of chrome://tracing, which Perfetto reads) as a stream: nothing is kept.
 *
 * Times are nanoseconds, written as microseconds. Texts are escaped; a name that is written often can be escaped once
 * (trace_event_escape) and then be given as it is. */
#ifndef CASTOR_LAUNCHER_COMMON_TRACE_EVENT_H
#define CASTOR_LAUNCHER_COMMON_TRACE_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_EVENT_BUFFER 262144

typedef struct trace_event_writer {
    FILE *out;
    bool any, in_arguments, first_member;
    size_t used;
    char buffer[TRACE_EVENT_BUFFER];
} trace_event_writer;

/* The text as the inside of a JSON string, at most `size` - 1 bytes; a longer one is cut at a character. */
void trace_event_escape(char *out, size_t size, const char *text);

/* An event of phase `phase` on a track; then its other members, then trace_event_end. */
void trace_event_begin(trace_event_writer *writer, char phase, uint32_t process, uint32_t track);
void trace_event_name(trace_event_writer *writer, const char *escaped);
/* `member` is written as it is. */
void trace_event_text(trace_event_writer *writer, const char *member, const char *escaped);
void trace_event_number(trace_event_writer *writer, const char *member, uint64_t value);
void trace_event_ns(trace_event_writer *writer, const char *member, uint64_t ns);
/* The members that follow are arguments. */
void trace_event_arguments(trace_event_writer *writer);
void trace_event_end(trace_event_writer *writer);

void trace_event_flush(trace_event_writer *writer);

#endif
