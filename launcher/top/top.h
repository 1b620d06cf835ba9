/* `castor top [DIR]`: shows a running job, with an update about once a second.
 *
 * top.c takes the command line, reads the job and shows lines on a terminal; view.c turns readings into rates and makes the lines. */
#ifndef CASTOR_LAUNCHER_TOP_H
#define CASTOR_LAUNCHER_TOP_H

#include <signal.h>
#include "launcher/job/reading.h"

/* argv[0] is "top". 0: shown, also when the job had ended; 1: there is nothing to show; 2: bad arguments. */
int top_main(int argc, char **argv);

/* ---- rates ---- */

#define TOP_OPERATIONS_MAX 32
#define TOP_SAMPLES_MAX    16
#define TOP_NAME_MAX       40

typedef struct top_operation {
    char name[TOP_NAME_MAX];
    uint64_t count, bytes, ns; /* of all ranks */
} top_operation;

typedef struct top_rank_sample {
    uint64_t uid, steps, wait_ns;
    uint64_t link_bytes[2]; /* to devices, to the host */
} top_rank_sample;

/* The counts of one reading. */
typedef struct top_sample {
    uint64_t at_ns;
    top_rank_sample *ranks;
    size_t rank_count;
    top_operation operations[TOP_OPERATIONS_MAX];
    size_t operation_count;
} top_sample;

typedef struct top_history {
    top_sample samples[TOP_SAMPLES_MAX]; /* the oldest first */
    size_t count;
} top_history;

/* Chooses the processes to show as ranks: indices of the reading, by rank. False when memory is out. */
bool top_ranks_choose(const job_reading *reading, size_t **indices, size_t *count);

bool top_history_add(top_history *history, const job_reading *reading, const size_t *ranks,
                     size_t rank_count);
void top_history_free(top_history *history);

/* ---- lines ---- */

typedef struct top_text {
    char **lines;
    size_t count, capacity;
    bool failed;
} top_text;

typedef struct top_job {
    const char *directory;
    bool ended, in_use; /* in_use: a `castor run` holds the directory */
} top_job;

/* `width`: of the window; tables leave out columns that do not fit (0: none). The figures of an ended job, and of a job seen
 * once, are averages. */
void top_view(const top_job *job, const job_reading *reading, const top_history *history, size_t width,
              top_text *out);
__attribute__((format(printf, 2, 3))) void top_text_add(top_text *text, const char *format, ...);
/* Cuts each line to `width` characters, each of which takes one column; 0: does not cut. */
void top_text_cut(top_text *text, size_t width);
void top_text_free(top_text *text);

/* ---- terminal ---- */

typedef struct top_screen {
    bool full;            /* the whole screen, with escape sequences; else plain lines */
    bool keys;            /* standard input is a terminal */
    size_t width, height; /* 0: unbounded */
} top_screen;

typedef enum top_event { TOP_TIME, TOP_REDRAW, TOP_QUIT } top_event;

#endif
