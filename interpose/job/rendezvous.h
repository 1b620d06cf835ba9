/* The rendezvous of the ranks of a node: they find each other and share descriptors of memory.
 *
 * The first rank makes the descriptors and listens on an abstract Unix socket whose name is a keyed hash of the job's
 * token and the group; the others connect, prove that they know the token (and run under the same user), and get
 * the descriptors. The socket is gone when all ranks have joined. */
#ifndef CASTOR_JOB_RENDEZVOUS_H
#define CASTOR_JOB_RENDEZVOUS_H

#include <stdbool.h>
#include "base/status.h"

#define RENDEZVOUS_DESCRIPTORS 128 /* at most, at a time */

/* Rank 0 passes `count` descriptors, the others receive them into `descriptors`. Every wait ends after
 * `timeout_seconds` with an error that names the ranks that did not join. `pids`, if not NULL, has room for `world`:
 * rank 0 stores the pid of each rank in it (0: the rank is in another process namespace). */
castor_status rendezvous_share(const char *token, const char *group, int rank, int world, int *descriptors,
                               int count, double timeout_seconds, int *pids);

/* The same without rank 0 (offers.h, whose thread answers).
 *
 * rendezvous_listen: opens a socket that others find under `what`; -1: another process has it already, or none can be made.
 * rendezvous_answer: answers the next request, when poll reports one. Whether it was answered; false if there is none.
 * rendezvous_ask: true when the listening process has sent its descriptors, within so many seconds. */
int rendezvous_listen(const char *token, const char *what);
bool rendezvous_answer(int listener, const char *token, const int *descriptors, int count);
bool rendezvous_ask(const char *token, const char *what, int *descriptors, int count, double seconds);

/* For a rank that waits for `other`: an error if that rank has ended with status 0 instead of joining. Works where the
 * launcher has started all `world` ranks. */
castor_status rendezvous_ended_check(int rank, int world, int other);

#endif
