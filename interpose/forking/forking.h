/* The ranks of `castor run --nproc N`, forked from one import of PyTorch. Rank 0, which castor has started, forks a helper at the
 * end of its import; the helper forks ranks 1 to N - 1 and ends, so that they are castor's children, as rank 0 is. Python forks, since
 * it has handlers of its own; everything else is decided here.
 *
 *     rank 0                                 helper              ranks 1 ...
 *     forking_ready
 *     fork                                   fork, fork, ...     forking_become: says its process id, waits
 *     forking_finish: collects the ids,      _exit
 *       asks castor, passes its answer on                        takes its outputs, goes on */
#ifndef CASTOR_FORKING_FORKING_H
#define CASTOR_FORKING_FORKING_H

#include <stdbool.h>
#include <sys/types.h>

/* When the library is loaded. */
void forking_start(void);

/* How many ranks the job has, if this process is rank 0 and may fork the others; else 0, and castor knows why. */
int forking_ready(void);

/* In a new rank: -1 when castor lets it go on, as the process that castor would have started; else the status to end with, at once. *log_file:
 * the descriptor for log lines; -1: standard error. */
int forking_become(int rank, int *log_file);

/* In rank 0. helper: its process id; < 0: it could not be forked. Returns whether the other ranks run. */
bool forking_finish(pid_t helper);

/* ---- ranks of another launcher (torchrun) ----
 *
 * The launcher's process forks a server at the end of its import, which forks ranks on request. They become the launcher's children, since the
 * process that forks one for the server ends at once, and the launcher is the subreaper. */

/* Whether this process is such a launcher, and fit for it. */
bool serving_ready(void);
void serving_begin_launcher(void);
/* It ends with the launcher. */
void serving_begin_server(void);
/* In a new rank: false unless it is the child of `launcher` by now. name, words: of the process, as an exec would give them; the words
 * each with its end, `bytes` together. */
bool serving_become(pid_t launcher, const char *name, const char *words, size_t bytes);

/* Why the ranks are not forked, if this process is a launcher that is not fit; else "". */
const char *serving_why_not(void);

#endif
