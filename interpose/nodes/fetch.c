#include "fetch.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "store/wait.h"
#include "serve.h"
#include "socket.h"

#define LOOK_MS 100

static castor_status lost(const fetch_peer *p, const char *what) {
    return error_set(CASTOR_ERR_PEER,
                     "the node at %s, port %d, %s (errno %d): its ranks have ended, or a firewall stands "
                     "between (CASTOR_NODE_ADDRESS chooses another address)",
                     p->address, p->port, what, errno);
}

fetch_peer fetch_peer_of(const char *address, int port, const char *token, double timeout_seconds) {
    fetch_peer p = {.port = port, .timeout_seconds = timeout_seconds, .connection = -1};
    log_format(p.address, sizeof p.address, "%s", address);
    token_copy(p.token, token);
    return p;
}

castor_status fetch_ask(const fetch_peer *p, serve_request *request) {
    token_copy(request->token, p->token);
    if (send(p->connection, request, sizeof *request, MSG_NOSIGNAL) != sizeof *request)
        return lost(p, "does not listen");
    return CASTOR_OK;
}

castor_status fetch_open(fetch_peer *p, bool hello) {
    struct addrinfo *found;
    castor_status status = socket_address(p->address, p->port, &found);
    if (status)
        return status;
    p->connection = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->connection >= 0)
        socket_patience_set(p->connection, p->timeout_seconds);
    bool connected = p->connection >= 0 && connect(p->connection, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    status = connected ? hello ? fetch_ask(p, &(serve_request){.what = SERVE_HELLO}) : CASTOR_OK
                       : lost(p, "cannot be reached");
    if (status)
        fetch_close(p);
    return status;
}

/* In pieces, so that signals are heard. */
castor_status fetch_receive(const fetch_peer *p, void *out, uint64_t bytes) {
    char *at = out;
    double until = clock_seconds() + p->timeout_seconds;
    while (bytes > 0) {
        struct pollfd polled = {.fd = p->connection, .events = POLLIN};
        int ready = poll(&polled, 1, LOOK_MS);
        if (!p->uninterrupted && interrupt_arrived())
            return error_set(CASTOR_ERR_INTERRUPTED,
                             "interrupted by a signal while another node's states came");
        if (ready <= 0 && clock_seconds() < until)
            continue;
        if (ready <= 0)
            return error_set(CASTOR_ERR_TIMEOUT,
                             "the node at %s sent nothing for %.0f s: raise CASTOR_TIMEOUT", p->address,
                             p->timeout_seconds);
        ssize_t got = recv(p->connection, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return lost(p, "has closed the connection");
        at += got;
        bytes -= (uint64_t)got;
        until = clock_seconds() + p->timeout_seconds;
    }
    return CASTOR_OK;
}

castor_status fetch_range(fetch_peer *p, chunk_kind kind, uint64_t offset, void *out, uint64_t bytes) {
    castor_status status = fetch_ask(p, &(serve_request){.what = kind, .offset = offset, .bytes = bytes});
    return status ? status : fetch_receive(p, out, bytes);
}

void fetch_close(fetch_peer *p) {
    if (p->connection >= 0) {
        shutdown(p->connection, SHUT_RDWR); /* for forked children as well, who have the descriptor too */
        close(p->connection);
    }
    p->connection = -1;
}
