#include "socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include "base/error.h"
#include "base/log.h"

castor_status socket_address(const char *address, int port, struct addrinfo **out) {
    char service[16];
    log_format(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, service, &hints, out) != 0)
        return error_set(CASTOR_ERR_ARGUMENT, "%s is no numeric address: set CASTOR_NODE_ADDRESS to one",
                         address);
    return CASTOR_OK;
}

void socket_patience_set(int fd, double seconds) {
    struct timeval limit = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}
