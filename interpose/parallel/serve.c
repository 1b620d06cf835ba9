#include "serve.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../core/clock.h"
#include "../core/error.h"
#include "../core/log.h"
#include "../core/thread.h"
#include "../core/token.h"
#include "wait.h"

#define CONNECTIONS_MAX 64
#define PATIENCE_S      10 /* that a reader may take to ask or to receive */
#define LOOK_MS         100

/* Sent for each range; the answer is its bytes, or the end of the connection. */
struct request {
    char token[TOKEN_MAX];
    uint64_t offset, bytes;
};

struct server {
    int listener, file;
    uint64_t file_bytes;
    char token[TOKEN_MAX];
    double timeout_seconds;
};

static void patience_set(int fd, double seconds) {
    struct timeval limit = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

/* ---- the server ---- */

/* One request of a connection. False: it is over. */
static bool answer(const struct server *server, int connection) {
    struct request request;
    if (recv(connection, &request, sizeof request, MSG_WAITALL) != sizeof request ||
        !tokens_equal(request.token, server->token) || request.offset > server->file_bytes ||
        request.bytes > server->file_bytes - request.offset)
        return false;
    off_t at = (off_t)request.offset;
    for (uint64_t left = request.bytes; left > 0;) {
        ssize_t sent = sendfile(connection, server->file, &at, left);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        left -= (uint64_t)sent;
    }
    return true;
}

static void *server_main(void *context) {
    struct server *server = context;
    struct pollfd polled[1 + CONNECTIONS_MAX] = {{.fd = server->listener, .events = POLLIN}};
    nfds_t count = 1;
    prctl(PR_SET_NAME, "castor-serve");
    for (;;) {
        polled[0].events = count <= CONNECTIONS_MAX ? POLLIN : 0;
        if (poll(polled, count, -1) < 0)
            continue;
        for (nfds_t i = count - 1; i > 0; i--) {
            if (!polled[i].revents || answer(server, polled[i].fd))
                continue;
            close(polled[i].fd);
            polled[i] = polled[--count];
        }
        int connection =
            polled[0].revents & POLLIN ? accept4(server->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (connection < 0)
            continue;
        patience_set(connection, PATIENCE_S);
        polled[count++] = (struct pollfd){.fd = connection, .events = POLLIN};
    }
    return NULL;
}

/* The address and port as a socket address. */
static castor_status resolve(const char *address, int port, struct addrinfo **out) {
    char service[16];
    log_format(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, service, &hints, out) != 0)
        return error_set(CASTOR_ERR_ARGUMENT, "%s is no numeric address: set CASTOR_NODE_ADDRESS to one",
                         address);
    return CASTOR_OK;
}

static castor_status listen_on(const char *address, int *listener, int *port) {
    struct addrinfo *found;
    castor_status status = resolve(address, 0, &found);
    if (status)
        return status;
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof bound;
    *listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool listens = *listener >= 0 && bind(*listener, found->ai_addr, found->ai_addrlen) == 0 &&
                   listen(*listener, CONNECTIONS_MAX) == 0 &&
                   getsockname(*listener, (struct sockaddr *)&bound, &size) == 0;
    freeaddrinfo(found);
    if (!listens) {
        status = error_set(CASTOR_ERR_SYSTEM,
                           "cannot listen on %s (errno %d): set CASTOR_NODE_ADDRESS to an address of this "
                           "node that the others reach",
                           address, errno);
        if (*listener >= 0)
            close(*listener);
        return status;
    }
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    return CASTOR_OK;
}

castor_status serve_start(store *s, const char *token, const char *address, int *port) {
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the thread castor-serve");
    server->file = s->chunks.list[CHUNK_OPTIM].fd;
    server->file_bytes = s->chunks.part_bytes * (uint64_t)s->world;
    token_copy(server->token, token);
    castor_status status = listen_on(address, &server->listener, port);
    if (status) {
        free(server);
        return status;
    }
    int failed = thread_start(server_main, server);
    if (failed) {
        close(server->listener);
        free(server);
        return error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-serve (error %d)", failed);
    }
    return CASTOR_OK;
}

/* ---- the reader ---- */

static castor_status lost(const serve_peer *peer, const char *what) {
    return error_set(CASTOR_ERR_PEER,
                     "the node at %s, port %d, %s (errno %d): its ranks have ended, or a firewall stands "
                     "between (CASTOR_NODE_ADDRESS chooses another address)",
                     peer->address, peer->port, what, errno);
}

static castor_status connect_to(const serve_peer *peer, double timeout_seconds, int *out) {
    struct addrinfo *found;
    castor_status status = resolve(peer->address, peer->port, &found);
    if (status)
        return status;
    *out = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*out >= 0)
        patience_set(*out, timeout_seconds);
    bool connected = *out >= 0 && connect(*out, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    if (connected)
        return CASTOR_OK;
    status = lost(peer, "cannot be reached");
    if (*out >= 0)
        close(*out);
    return status;
}

/* In pieces, so that signals are heard. */
static castor_status receive(const serve_peer *peer, int connection, char *out, uint64_t bytes,
                             double timeout_seconds) {
    double until = clock_seconds() + timeout_seconds;
    while (bytes > 0) {
        struct pollfd polled = {.fd = connection, .events = POLLIN};
        int ready = poll(&polled, 1, LOOK_MS);
        if (wait_interrupted())
            return error_set(CASTOR_ERR_INTERRUPTED,
                             "interrupted by a signal while another node's states came");
        if (ready <= 0 && clock_seconds() < until)
            continue;
        if (ready <= 0)
            return error_set(CASTOR_ERR_TIMEOUT,
                             "the node at %s says nothing for %.0f s: raise CASTOR_TIMEOUT", peer->address,
                             timeout_seconds);
        ssize_t got = recv(connection, out, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return lost(peer, "has closed the connection");
        out += got;
        bytes -= (uint64_t)got;
        until = clock_seconds() + timeout_seconds;
    }
    return CASTOR_OK;
}

castor_status serve_read(const serve_peer *peer, const uint64_t *offsets, const uint64_t *bytes,
                         void *const *out, uint32_t count, double timeout_seconds) {
    int connection;
    castor_status status = connect_to(peer, timeout_seconds, &connection);
    if (status)
        return status;
    struct request request = {0};
    token_copy(request.token, peer->token);
    for (uint32_t i = 0; i < count && !status; i++) {
        request.offset = offsets[i];
        request.bytes = bytes[i];
        if (send(connection, &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
            status = lost(peer, "does not listen");
        else
            status = receive(peer, connection, out[i], bytes[i], timeout_seconds);
    }
    close(connection);
    return status;
}
