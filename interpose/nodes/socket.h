/* What both ends of a connection between nodes need (serve.h, fetch.h). */
#ifndef CASTOR_NODES_SOCKET_H
#define CASTOR_NODES_SOCKET_H

#include "base/status.h"

struct addrinfo;
/* A numeric address and a port; freeaddrinfo gives it back. */
castor_status socket_address(const char *address, int port, struct addrinfo **out);
/* How long one read or write may take, without delays for small messages. */
void socket_patience_set(int fd, double seconds);

#endif
