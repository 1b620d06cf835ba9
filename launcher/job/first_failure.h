/* How the ranks of a job ended, and which failed first.
 *
 * Vocabulary
 *   end          how one rank ended: what its counters say of it, and what others noted in the file `ends`
 *   cause        a failure that came from nowhere else. An end that another rank's failure made is none, and so it is never the first
 *                failure, whoever was noted first
 */
#ifndef CASTOR_LAUNCHER_JOB_FIRST_FAILURE_H
#define CASTOR_LAUNCHER_JOB_FIRST_FAILURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "job/ends.h"
#include "trace/format.h"

typedef struct job_note {
    uint64_t realtime_ns, number;
    int pid;
    ends_event event;
} job_note;

#define JOB_NOTES_MAX (ENDS_BYTES_MAX / 16)

typedef struct job_notes {
    job_note *rows; /* in the order of the file */
    size_t count;
} job_notes;

/* Reads the file `ends` of a directory; lines that are none are left out, and no file is no note. False when memory is out. */
bool job_notes_read(int directory, job_notes *out);
void job_notes_free(job_notes *notes);
/* The first note of an event, of any process (pid 0) or of one, from `since_ns` on; or NULL. */
const job_note *job_notes_find(const job_notes *notes, ends_event event, int pid, uint64_t since_ns);

typedef enum job_end_kind {
    JOB_END_RUNNING,
    JOB_END_FINISHED,    /* with status 0 */
    JOB_END_STATUS,      /* with another one */
    JOB_END_EXCEPTION,   /* that nobody caught */
    JOB_END_SIGNAL,      /* that somebody sent, or a crash */
    JOB_END_MEMORY,      /* killed by the kernel because memory was out */
    JOB_END_OTHER_RANK,  /* because another rank failed */
    JOB_END_INTERRUPTED, /* Ctrl-C, SIGINT */
    JOB_END_TERMINATED,  /* SIGTERM, SIGHUP or SIGQUIT to castor */
    JOB_END_UNKNOWN,     /* it is gone, and nobody saw how */
    JOB_END_KIND_COUNT
} job_end_kind;

extern const char *const job_end_kind_names[JOB_END_KIND_COUNT];

typedef struct job_end {
    job_end_kind kind;
    int status;                       /* -1: not known */
    int signal;                       /* 0: none */
    bool by_cgroup;                   /* killed for memory: by the limit of a control group */
    int by_rank;                      /* the rank that is the cause; -1: not known, or none */
    uint64_t realtime_ns;             /* 0: it runs */
    const trace_exception *exception; /* of the counters; NULL: none */
} job_end;

/* A rank: its process's counters (with the host's clock), its number (-1: unknown), whether the process is there. */
typedef struct job_ended {
    const trace_counters *counters;
    int rank;
    bool runs;
} job_ended;

#define JOB_NO_FAILURE SIZE_MAX

/* Finds each rank's end. Returns the index of the one that failed first, or JOB_NO_FAILURE. */
size_t job_ends_find(const job_notes *notes, const job_ended *ranks, size_t count, job_end *ends);

#define JOB_END_TEXT_MAX 640
/* "rank 3", or "process 4711" where the rank is unknown (-1). */
void job_ended_name(int rank, uint32_t pid, char out[32]);
/* "finished", "status 3", "ValueError", "SIGSEGV": fits a table. */
void job_end_word(const job_end *end, char out[JOB_END_TEXT_MAX]);
/* "raised ValueError: too long (train.py, line 12)", for after the rank's name. */
void job_end_sentence(const job_end *end, char out[JOB_END_TEXT_MAX]);
/* What the job came to by its first failure; "" when none of its ranks failed and the command ended well. */
void job_ends_outcome(const job_notes *notes, const job_ended *ranks, const job_end *ends, size_t first,
                      char out[JOB_END_TEXT_MAX]);

/* The name of a signal ("SIGSEGV"), or "signal N". */
const char *job_signal_name(int number, char fallback[24]);

#endif
