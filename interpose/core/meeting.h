/* Names by which the processes of a job find each other on a node without a file: abstract Unix sockets whose names are
 * hashes with the job's token as key. Everyone can list the names: they tell nothing of the token, which opens more than these
 * sockets (nodes/serve.h), nor of each other.
 *
 * A rank of `castor run --nproc N` that ended well is told by a socket that the launcher holds, since the others may
 * wait for it before they have any memory in common. */
#ifndef CASTOR_CORE_MEETING_H
#define CASTOR_CORE_MEETING_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The address for `what` in the job of this token, and its length. */
socklen_t meeting_address(struct sockaddr_un *address, const char *token, const char *what);

/* Launcher: from now on, until the process ends, ended_told is true of this rank. False: no socket could be made. */
bool ended_tell(const char *token, int rank);
bool ended_told(const char *token, int rank);

#endif
