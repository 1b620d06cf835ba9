/* The runs whose log directories lie in a folder.
 *
 * Vocabulary
 *   run      a log directory: a folder that holds at least one file that a run writes */
#ifndef CASTOR_LAUNCHER_JOB_RUNS_H
#define CASTOR_LAUNCHER_JOB_RUNS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_RUNS_PARENT "castor-logs" /* where runs are that were given no directory */

typedef struct job_run {
    char name[NAME_MAX + 1];
    uint64_t started_ns; /* since the epoch; where that is not known, when a file was last made in it */
    uint64_t bytes;      /* on disk, of all its files */
} job_run;

typedef struct job_runs {
    job_run *rows; /* the newest first */
    size_t count, capacity;
} job_runs;

/* Whether a file of that name is one that a run writes into its directory. */
bool job_file_is(const char *name);
/* Whether the folder holds one. */
bool job_directory_is_run(const char *directory);

/* The runs in a folder, without those behind links. False with errno: it cannot be read. Free it in any case. */
bool job_runs_list(const char *parent, job_runs *out);
void job_runs_free(job_runs *runs);
/* The newest run of JOB_RUNS_PARENT, as a path. False: there is none. */
bool job_runs_newest(char *out, size_t out_size);

#endif
