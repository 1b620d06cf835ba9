/* The ranks of a job: start_ranks.c starts them, ranks.c watches and ends them.
 *
 * Signals and process groups. castor blocks the signals that it handles and takes them one at a time.
 *
 * - Ranks are in a process group of their own, so that a signal to castor's group (timeout(1) sends one)
 *   reaches them once: through castor. Where castor has the terminal, rank 0 (the only rank that reads it)
 *   stays in castor's group, which the terminal signals by itself; such signals go on to the other ranks only.
 * - A signal that a process sent to castor goes to the ranks, not to their descendants, as if it had been sent
 *   to the command.
 * - castor is the reaper of the job: descendants whose parents have ended become its children, and are ended
 *   with the job. */
#ifndef CASTOR_LAUNCHER_RUN_RANKS_H
#define CASTOR_LAUNCHER_RUN_RANKS_H

#include <signal.h>
#include "kills.h"
#include "run.h"
#include "stall.h"

typedef struct rank_process {
    pid_t pid; /* 0: not started, or reaped */
    int status;
} rank_process;

typedef struct rank_set {
    const run_job *job;
    char *const *base; /* castor's environment */
    rank_process *ranks;
    int count, running;
    bool terminal_shared;  /* rank 0 is in castor's own process group */
    pid_t group;           /* of the other ranks; 0: none */
    int line;              /* to rank 0, which may fork the other ranks; -1: they are started, or cannot be */
    int64_t line_until_ms; /* when they are started in any case */
    int start_status;      /* as ranks_start's */
    run_guard guard;
    run_stall stall;
    run_kills kills;  /* before the ranks */
    int failed;       /* the first rank that failed, or -1 */
    bool told_to_end; /* a signal that ends a process was passed on */
    int64_t term_ms;  /* when ranks that still run get SIGTERM; 0: done */
    int64_t end_ms;   /* when they are killed; 0: nothing has failed */
    sigset_t waited, mask_before;
    struct sigaction child_before;
} rank_set;

/* Blocks the signals that castor handles; the ranks get the earlier settings back. */
void ranks_signals_take(rank_set *s);
void ranks_signals_give_back(const rank_set *s);

/* Starts all ranks, or none; rank 0 alone, if it may fork the others. Returns the exit status to end with, 0 when they run. */
int ranks_start(rank_set *s);
/* The ranks from 1 on, one by one, or none of them: start_status tells. */
void ranks_start_others(rank_set *s);
/* Puts a process into the ranks' process group. */
void ranks_join_group(rank_set *s, int rank, pid_t pid);

/* ---- fork_line.c: the line to rank 0 (job/fork_line.h) ---- */

/* Opens it if rank 0 may fork the others. Returns rank 0's end, -1: there is none. */
int forking_open(rank_set *s);
/* Answers, if rank 0 has asked. */
void forking_answer(rank_set *s);
/* Starts the other ranks, if rank 0 has not asked for too long. */
void forking_check(rank_set *s);
void forking_close(rank_set *s);

void ranks_signal(const rank_set *s, int signal);
/* The file of a rank's standard output, when it is not passed on. */
void ranks_output_path(const run_job *job, int rank, char *out, size_t out_size);

/* The file of its standard error. */
void ranks_errors_path(const run_job *job, int rank, char *out, size_t out_size);
/* Shows the end of that file, as far as it has not been shown. */
void ranks_errors_show(const run_job *job, int rank);

#endif
