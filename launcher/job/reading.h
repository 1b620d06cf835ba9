/* One reading of the processes of a job that may be running, from the files of its log directory.
 *
 * Vocabulary
 *   reading  the contents of the files at one moment
 *   meeting  an event that ranks wait for together: a collective that some of them have entered and others have not, a message
 *            that one has begun and the other has not, an event of the node store, or the progress of their devices
 */
#ifndef CASTOR_LAUNCHER_JOB_READING_H
#define CASTOR_LAUNCHER_JOB_READING_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "first_failure.h"
#include "trace/format.h"
#include "trace/live_format.h"

typedef enum job_state { JOB_RUNNING, JOB_STOPPED, JOB_EXITED, JOB_DIED } job_state;

typedef struct job_process {
    char name[128]; /* of its files, without the suffix */
    uint32_t pid;
    int rank; /* -1: unknown */
    uint64_t uid;
    job_state state;
    trace_counters *counters; /* NULL: not read, or not there */
    live_file *live;          /* NULL: it has none */
} job_process;

typedef struct job_reading {
    job_process *processes; /* by rank, unknown ones last */
    size_t count, capacity;
    size_t unreadable;            /* files of another version, or damaged */
    char message[PATH_MAX + 512]; /* about the first of these */
    uint64_t now_ns, now_realtime_ns;
    job_notes notes; /* with the counters */
} job_reading;

typedef enum job_reading_files { JOB_LOOK_LIVE = 1, JOB_LOOK_COUNTERS = 2 } job_reading_files;

/* Reads the directory. False with errno: it cannot be read. Free it in any case. */
bool job_reading_take(const char *directory, unsigned files, job_reading *out);
void job_reading_free(job_reading *reading);

/* Whether the process that made the counters still runs on this machine. */
bool job_runs_here(const trace_counters *counters);

/* Whether a `castor run` holds the directory. */
bool job_directory_in_use(const char *directory);

/* ---- who waits for whom (absent_ranks.c) ---- */

typedef struct job_meeting {
    live_kind kind;
    char what[LIVE_WHAT_MAX], group[LIVE_NAME_MAX]; /* group "": unknown, or none */
    uint64_t ordinal, bytes;
    uint64_t begin_ns; /* since when the first of them waits */
    /* Of an enqueued collective, as NCCL's are: the last time that one of the ranks began anything on the group. Ranks that are
     * ahead may go on, and it is a stall only when none does. 0: it is no such meeting. */
    uint64_t progress_ns;
    bool held;       /* devices: they wait for a rank that is behind, which another meeting names */
    size_t *waiting; /* indices of processes of the reading */
    size_t *missing; /* the missing ones; none: unknown */
    size_t waiting_count, missing_count;
    uint32_t size, unseen; /* ranks of the group; those of them that left no file here. 0: unknown */
    const char
        *other; /* another collective of the same ordinal that a missing rank has entered instead; or NULL */
} job_meeting;

typedef struct job_meetings {
    job_meeting *rows; /* those that wait longest first */
    size_t count;
} job_meetings;

/* The meetings that a process has waited for since before `before_ns`. Of the collectives of a group only the first: the
 * others wait behind it. False when memory is out. */
bool job_meetings_find(const job_reading *reading, uint64_t before_ns, job_meetings *out);
void job_meetings_free(job_meetings *meetings);

/* The processes that work together with those that wait for a device. */
#define JOB_OTHERS_MAX 64
typedef struct job_device_peers {
    size_t others[JOB_OTHERS_MAX], others_count; /* that do not wait for theirs */
    uint32_t size;                               /* of their largest group */
    bool unseen;                                 /* some of its ranks are not in the reading */
} job_device_peers;
void job_device_peers_find(const job_reading *reading, const job_meeting *meeting, job_device_peers *out);
/* Since when the process waits for a device, and no device of the processes that work with it has made progress; UINT64_MAX: it
 * does not wait. */
uint64_t job_device_idle_ns(const job_reading *reading, size_t index);
/* The number of messages that were begun on a channel; `lost`: it is unknown. */
uint64_t job_messages_begun(const live_file *live, const live_process_group *group, live_direction direction,
                            int peer, int tag, bool *lost);
static inline bool job_process_is_gone(const job_process *process) {
    return process->state == JOB_EXITED || process->state == JOB_DIED;
}

/* "0", "0 and 3", "0 to 6 and 9" of the processes' ranks; those without one by their pid. */
void job_ranks_text(const job_reading *reading, const size_t *indices, size_t count, char *out,
                    size_t out_size);
/* "device 0", "devices 0 and 1" of those that wait. */
void job_devices_text(const job_reading *reading, const job_meeting *meeting, char *out, size_t out_size);
/* The last work that the process has enqueued. */
void job_enqueued_text(const job_process *process, char *out, size_t out_size);
/* "the group of all ranks", "group 3". */
void job_process_group_text(const job_meeting *meeting, char *out, size_t out_size);

#endif
