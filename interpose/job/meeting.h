/* Names by which the processes of a job find each other on a node without a file: abstract Unix sockets whose names are
 * hashes with the job's token as key. Everyone can list the names, so they reveal nothing of the token, which opens more than
 * these sockets (nodes/serve.h), nor of each other.
 *
 * When a rank of `castor run --nproc N` has ended with status 0, the launcher opens a socket that says so: other ranks may still
 * wait for that rank before they share any memory. */
#ifndef CASTOR_JOB_MEETING_H
#define CASTOR_JOB_MEETING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The key of hashes that only who knows the token can make. */
void meeting_key(const char *token, uint64_t key[2]);
/* The address for `what` in the job of this token, and its length. */
socklen_t meeting_address(struct sockaddr_un *address, const char *token, const char *what);

/* The launcher calls it: until the launcher ends, ended_told returns true for this rank. False: no socket could be made. */
bool ended_tell(const char *token, int rank);
bool ended_told(const char *token, int rank);

#endif
