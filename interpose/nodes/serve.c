#include "serve.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/thread.h"
#include "store/wait.h"
#include "trace/trace.h"
#include "socket.h"

#define CONNECTIONS_MAX 1024
#define PATIENCE_S      10 /* that a reader may take to ask or to receive */
#define LOOK_NS         20000000l

struct server {
    int listener;
    serve_source source;
    char token[TOKEN_MAX];
};

/* A source: the chunks of a store. */
struct chunks {
    int file[CHUNK_KIND_COUNT];
    uint64_t file_bytes[CHUNK_KIND_COUNT];
};

/* Of all stores' servers of this process: ranks that said hello, and those of them that have not left. */
static _Atomic int hellos, readers_left;

/* ---- the server ---- */

static bool chunks_answer(void *context, int connection, const serve_request *request) {
    const struct chunks *chunks = context;
    if (request->what >= CHUNK_KIND_COUNT)
        return false;
    uint64_t file_bytes = chunks->file_bytes[request->what];
    if (request->offset > file_bytes || request->bytes > file_bytes - request->offset)
        return false;
    off_t at = (off_t)request->offset;
    for (uint64_t left = request->bytes; left > 0;) {
        ssize_t sent = sendfile(connection, chunks->file[request->what], &at, left);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        left -= (uint64_t)sent;
    }
    trace_counter_add(GAUGE_NODE_BYTES, request->bytes);
    return true;
}

/* One request of a connection. False: it is over. */
static bool answer(const struct server *server, int connection, bool *reader) {
    serve_request request;
    if (recv(connection, &request, sizeof request, MSG_WAITALL) != sizeof request ||
        !tokens_equal(request.token, server->token))
        return false;
    if (request.what == SERVE_HELLO && !*reader) {
        *reader = true;
        atomic_fetch_add(&readers_left, 1);
        atomic_fetch_add(&hellos, 1);
        return true;
    }
    return server->source.answer(server->source.context, connection, &request);
}

static void *server_main(void *context) {
    struct server *server = context;
    struct pollfd polled[1 + CONNECTIONS_MAX] = {{.fd = server->listener, .events = POLLIN}};
    bool reader[1 + CONNECTIONS_MAX] = {false};
    nfds_t count = 1;
    prctl(PR_SET_NAME, "castor-serve");
    for (;;) {
        polled[0].events = count <= CONNECTIONS_MAX ? POLLIN : 0;
        if (poll(polled, count, -1) < 0)
            continue;
        for (nfds_t i = count - 1; i > 0; i--) {
            if (!polled[i].revents || answer(server, polled[i].fd, &reader[i]))
                continue;
            close(polled[i].fd);
            if (reader[i])
                atomic_fetch_sub(&readers_left, 1);
            polled[i] = polled[--count];
            reader[i] = reader[count];
        }
        int connection =
            polled[0].revents & POLLIN ? accept4(server->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (connection < 0)
            continue;
        socket_patience_set(connection, PATIENCE_S);
        reader[count] = false;
        polled[count++] = (struct pollfd){.fd = connection, .events = POLLIN};
    }
    return NULL;
}

static castor_status listen_on(const char *address, int *listener, int *port) {
    struct addrinfo *found;
    castor_status status = socket_address(address, 0, &found);
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

castor_status serve_source_start(const serve_source *source, const char *token, const char *address,
                                 int *port) {
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the thread castor-serve");
    server->source = *source;
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

castor_status serve_start(store *s, const char *token, const char *address, int *port) {
    struct chunks *chunks = calloc(1, sizeof *chunks);
    if (!chunks)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the thread castor-serve");
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        chunks->file[kind] = s->chunks.list[kind].fd;
        chunks->file_bytes[kind] = s->chunks.section_bytes * (kind == CHUNK_OPTIM ? (uint64_t)s->world : 1);
    }
    castor_status status = serve_source_start(&(serve_source){chunks_answer, chunks}, token, address, port);
    if (status)
        free(chunks);
    return status; /* NOLINT(clang-analyzer-unix.Malloc): else the server has it */
}

castor_status serve_wait(store *s, int readers, double patience_seconds) {
    double told = clock_seconds() + patience_seconds;
    while (atomic_load(&hellos) < readers || atomic_load(&readers_left) > 0) {
        if (interrupt_arrived())
            return error_set(CASTOR_ERR_INTERRUPTED,
                             "interrupted by a signal while other nodes may still read");
        /* That a rank of this node has ended is no failure here: all of them do. */
        if (atomic_load(&s->control->failed) == 2)
            return error_set(CASTOR_ERR_PEER, "%s", s->control->failure);
        if (clock_seconds() >= told) {
            LOG_I("done; waiting for other nodes, which may still read chunks of this node");
            told = 1e300;
        }
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    return CASTOR_OK;
}
