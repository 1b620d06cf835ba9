/* How processes of a job ended, as others saw it: the file `ends` of the log directory. What a process knows of its own end is in
 * its counters (trace/format.h).
 *
 * Text, one event a line: the time (nanoseconds since 1970), the process, a word, a number. The file is there only when something
 * did not end well. A line is one write, so that lines of several processes do not mix. */
#ifndef CASTOR_JOB_ENDS_H
#define CASTOR_JOB_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#define ENDS_NAME       "ends"
#define ENDS_BYTES_MAX  65536 /* more is not written: a script may kill its children by the thousand */
#define ENDS_WORD_MAX   16
#define ENDS_LINE_BYTES 96

typedef enum ends_event {
    ENDS_SIGNAL,        /* the process was ended by signal N; by who waited for it */
    ENDS_STATUS,        /* the process, which castor started, exited with status N */
    ENDS_TOLD,          /* the process, castor, got signal N, and passed it on */
    ENDS_KILLED_CGROUP, /* the limits of the job's control groups have killed N processes since castor began */
    ENDS_KILLED,        /* the kernel has killed N processes because memory was out */
    ENDS_JOB,           /* castor ends with status N */
    ENDS_LOST,          /* the process, castor, was itself killed */
    ENDS_EVENT_COUNT
} ends_event;

extern const char *const ends_words[ENDS_EVENT_COUNT];

/* Appends a line to the file in `directory`. Safe in signal handlers; keeps errno. Does nothing where the file cannot be written. */
void ends_write(const char *directory, int pid, ends_event event, uint64_t number);

/* Whether the file is there. */
bool ends_exist(const char *directory);

#endif
