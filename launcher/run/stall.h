/* The stall watch of `castor run`. It reports a collective, or a wait of the node store, that some ranks have reached and
 * others have not for CASTOR_STALL_SECONDS: on standard error, with the Python stacks of the missing ranks. It reports again
 * when the stall ends, or when the job ends first.
 *
 * It runs in castor, not in the ranks: one process sees all of them, so that each stall is reported once, and a rank that is
 * stuck or stopped need not do anything. It reads the live files of the log directory (launcher/job/reading.h). */
#ifndef CASTOR_LAUNCHER_RUN_STALL_H
#define CASTOR_LAUNCHER_RUN_STALL_H

#include <stddef.h>
#include <stdint.h>

enum { RUN_STALL_TITLE_MAX = 384 };

typedef struct stall stall;

typedef struct run_stall {
    const char *directory;
    uint64_t limit_ns;  /* 0: no watch */
    uint64_t period_ns; /* between checks */
    uint64_t last_ns;   /* of the last check */
    uint64_t awake_ns;  /* since when the checks are regular */
    stall *stalls;
    size_t count;
} run_stall;

void run_stall_start(run_stall *watch, const char *directory, double limit_seconds);
/* Milliseconds until the next reading; -1: there is none. */
int64_t run_stall_wait_ms(const run_stall *watch);
/* Looks, when it is time. Does not wait. */
void run_stall_check(run_stall *watch);
/* How long the longest stall that was reported lasts; 0: there is none. `title` gets its collective or wait. */
uint64_t run_stall_longest_ns(const run_stall *watch, char title[RUN_STALL_TITLE_MAX]);
void run_stall_end(run_stall *watch);

#endif
