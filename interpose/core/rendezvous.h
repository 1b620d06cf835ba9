/* How the ranks of one node find each other and come to hold the same memory.
 *
 * The first rank makes the descriptors and listens on an abstract Unix socket whose name is a keyed hash of the job's
 * token and the group; the others connect, prove that they know the token (and run under the same user), and get
 * the descriptors. The socket is gone when all ranks have joined. */
#ifndef CASTOR_CORE_RENDEZVOUS_H
#define CASTOR_CORE_RENDEZVOUS_H

#include <stdbool.h>
#include "status.h"

/* Rank 0 passes `count` descriptors, the others receive them into `descriptors`. Every wait ends after
 * `timeout_seconds` with an error that names the ranks that did not come. `pids`, if not NULL, has room for `world`:
 * rank 0 learns there which process came for each rank (0: one of another process namespace). */
castor_status rendezvous_share(const char *token, const char *group, int rank, int world, int *descriptors,
                               int count, double timeout_seconds, int *pids);

/* The same without a first rank, and without waiting: descriptors that whoever makes them first hands to all that ask.
 *
 * rendezvous_listen: a socket that others find under `what`; -1: another process has it already, or none can be made.
 * rendezvous_answer: answers whoever asks next, when poll says that somebody does.
 * rendezvous_ask: true when the process that listens has handed its descriptors over, within a second. */
int rendezvous_listen(const char *token, const char *what);
void rendezvous_answer(int listener, const char *token, const int *descriptors, int count);
bool rendezvous_ask(const char *token, const char *what, int *descriptors, int count);

/* An error that names `other`, when it has ended well instead of joining: for a rank that waits for it, of all those
 * that the launcher has started. */
castor_status rendezvous_ended_check(int rank, int world, int other);

#endif
