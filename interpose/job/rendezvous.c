#include "rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "meeting.h"
#include "options.h"
#include "token.h"

#define DESCRIPTORS_MAX RENDEZVOUS_DESCRIPTORS
#define RANKS_MAX       4096
#define RETRY_NS        10000000l
#define ASK_SECONDS     1.0
#define HELLO_SECONDS   2.0
#define POLL_SECONDS    0.1 /* between two checks whether a signal has come, or a rank has ended */
#define REFUSALS_MAX    200 /* calls that fail on this rank, RETRY_NS apart, before the meeting does */

struct hello {
    char token[TOKEN_MAX];
    int32_t rank;
};

static bool same_user(int connection, int *pid) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid())
        return false;
    *pid = peer.pid;
    return true;
}

static bool send_descriptors(int connection, const int *descriptors, int count) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
        struct cmsghdr align;
    } control = {0};
    char byte = 1;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(header), descriptors, sizeof(int) * (size_t)count);
    return sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
}

/* An errno; 0: these are they; -1: the other end has none for this rank, now. */
static int receive_descriptors(int connection, int *descriptors, int count) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
        struct cmsghdr align;
    } control = {0};
    char byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count)};
    ssize_t got;
    while ((got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (got != 1)
        return got < 0 && errno != ECONNRESET ? errno : -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int) * (size_t)count))
        return EMFILE; /* the kernel has cut them off */
    memcpy(descriptors, CMSG_DATA(header), sizeof(int) * (size_t)count);
    return 0;
}

/* Ends early when a signal's handler raised an exception. */
static bool wait_readable(int fd, double deadline) {
    for (double left; (left = deadline - clock_seconds()) > 0 && !interrupt_arrived();) {
        struct pollfd poll_one = {.fd = fd, .events = POLLIN};
        int ready =
            poll(&poll_one, 1, left < POLL_SECONDS ? (int)(left * 1e3) + 1 : (int)(POLL_SECONDS * 1e3));
        if (ready == 1)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
    return false;
}

castor_status rendezvous_ended_check(int rank, int world, int other) {
    const castor_options *o = options();
    if (o->world_size != world || o->rank != rank || rank == other)
        return CASTOR_OK; /* these are not the ranks that the launcher has started, or not all of them */
    if (!ended_told(o->job, other))
        return CASTOR_OK;
    return error_set(
        CASTOR_ERR_PEER,
        "rank %d has ended, with status 0, and has not joined the others, which wait for it: under "
        "--nproc every rank runs the whole script and must train as the others do; see its own "
        "messages",
        other);
}

/* The exception has been taken (interrupt_arrived): this call must end with it. */
static castor_status interrupted(void) {
    return error_set(CASTOR_ERR_INTERRUPTED, "interrupted by a signal while the ranks meet");
}

/* What rank 0 knows while the others come. */
typedef struct admission {
    const char *token;
    int world, missing;
    double deadline;
    const int *descriptors;
    int count;
    int *pids; /* NULL: nobody asks */
    bool joined[RANKS_MAX];
} admission;

/* A socket that the other ranks of the group find. */
static castor_status listener_open(const char *token, const char *group, int world, double deadline,
                                   int *out) {
    struct sockaddr_un address;
    socklen_t length = meeting_address(&address, token, group);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return error_set(CASTOR_ERR_SYSTEM, "cannot make a Unix socket (errno %d)", errno);
    *out = listener;
    /* A previous process of the same job may still be closing its socket. */
    while (bind(listener, (struct sockaddr *)&address, length) != 0) {
        if (errno != EADDRINUSE || clock_seconds() > deadline)
            return error_set(CASTOR_ERR_SYSTEM, "cannot bind the node's rendezvous socket (errno %d)", errno);
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
    if (listen(listener, world) != 0)
        return error_set(CASTOR_ERR_SYSTEM, "cannot listen on the node's rendezvous socket (errno %d)",
                         errno);
    return CASTOR_OK;
}

/* Nobody came for a while: an error when nobody will. */
static castor_status missing_check(const admission *a) {
    if (interrupt_arrived())
        return interrupted();
    int first = 0;
    for (int rank = a->world - 1; rank > 0; rank--) {
        if (a->joined[rank])
            continue;
        first = rank;
        castor_status status = rendezvous_ended_check(0, a->world, rank);
        if (status != CASTOR_OK)
            return status;
    }
    if (clock_seconds() < a->deadline)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_TIMEOUT,
                     "%d of %d ranks did not join the node store in time (the first: rank %d): every rank "
                     "must be on this node and reach the same model; or raise CASTOR_TIMEOUT",
                     a->missing, a->world, first);
}

/* Hands the descriptors to a rank that proves that it is one and has not come before. */
static void admit(admission *a, int connection) {
    struct hello hello;
    char expected[TOKEN_MAX];
    token_copy(expected, a->token);
    /* One that connects and says nothing must not hold up the others for long. */
    double patience = clock_seconds() + HELLO_SECONDS;
    int pid;
    if (!same_user(connection, &pid) ||
        !wait_readable(connection, patience < a->deadline ? patience : a->deadline) ||
        recv(connection, &hello, sizeof hello, 0) != sizeof hello || !tokens_equal(hello.token, expected) ||
        hello.rank <= 0 || hello.rank >= a->world || a->joined[hello.rank] ||
        !send_descriptors(connection, a->descriptors, a->count))
        return;
    a->joined[hello.rank] = true;
    a->missing--;
    if (a->pids)
        a->pids[hello.rank] = pid;
}

static castor_status admit_all(admission *a, int listener) {
    int refusals = 0;
    while (a->missing) {
        double poll_end = clock_seconds() + POLL_SECONDS;
        if (!wait_readable(listener, poll_end < a->deadline ? poll_end : a->deadline)) {
            castor_status status = missing_check(a);
            if (status != CASTOR_OK)
                return status;
            continue;
        }
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection >= 0) {
            admit(a, connection);
            close(connection);
        } else if (++refusals < REFUSALS_MAX) {
            nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
        } else {
            return error_set(
                CASTOR_ERR_SYSTEM,
                "rank 0 cannot accept the other ranks (errno %d): raise the limit on open files (ulimit -n)",
                errno);
        }
    }
    return CASTOR_OK;
}

static castor_status serve(const char *token, const char *group, int world, const int *descriptors, int count,
                           double deadline, int *pids) {
    admission a = {token, world, world - 1, deadline, descriptors, count, pids, {true}};
    int listener = -1;
    castor_status status = listener_open(token, group, world, deadline, &listener);
    if (status == CASTOR_OK)
        status = admit_all(&a, listener);
    if (listener >= 0)
        close(listener);
    return status;
}

static castor_status join(const char *token, const char *group, int rank, int world, int *descriptors,
                          int count, double deadline) {
    struct sockaddr_un address;
    socklen_t length = meeting_address(&address, token, group);
    struct hello hello = {.rank = rank};
    token_copy(hello.token, token);
    for (double now, next_check = 0; (now = clock_seconds()) < deadline;) {
        for (int other = 0; now >= next_check && other < world; other++) {
            castor_status status = rendezvous_ended_check(rank, world, other);
            if (status != CASTOR_OK)
                return status;
        }
        if (now >= next_check)
            next_check = now + POLL_SECONDS;
        int pid, connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connection < 0)
            return error_set(CASTOR_ERR_SYSTEM, "cannot make a Unix socket (errno %d)", errno);
        bool met = connect(connection, (struct sockaddr *)&address, length) == 0 &&
                   same_user(connection, &pid) &&
                   send(connection, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello &&
                   wait_readable(connection, deadline);
        int why = met ? receive_descriptors(connection, descriptors, count) : -1;
        close(connection);
        if (why == 0)
            return CASTOR_OK;
        if (why > 0) /* rank 0 has given them away: they will not come again */
            return error_set(
                CASTOR_ERR_SYSTEM,
                "cannot take the descriptors of the node store (errno %d): raise the limit on open files "
                "(ulimit -n)",
                why);
        if (interrupt_arrived())
            return interrupted();
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
    return error_set(
        CASTOR_ERR_TIMEOUT,
        "rank %d found no rank 0 of its group on this node: every rank must be on this node and reach "
        "the same model; or raise CASTOR_TIMEOUT",
        rank);
}

castor_status rendezvous_share(const char *token, const char *group, int rank, int world, int *descriptors,
                               int count, double timeout_seconds, int *pids) {
    if (world < 1 || world > RANKS_MAX || rank < 0 || rank >= world || count < 1 || count > DESCRIPTORS_MAX)
        return error_set(CASTOR_ERR_ARGUMENT, "rank %d of %d: out of range", rank, world);
    double deadline = clock_seconds() + timeout_seconds;
    return rank == 0 ? serve(token, group, world, descriptors, count, deadline, pids)
                     : join(token, group, rank, world, descriptors, count, deadline);
}

int rendezvous_listen(const char *token, const char *what) {
    struct sockaddr_un address;
    socklen_t length = meeting_address(&address, token, what);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener >= 0 &&
        (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, SOMAXCONN) != 0)) {
        close(listener);
        return -1;
    }
    return listener;
}

bool rendezvous_answer(int listener, const char *token, const int *descriptors, int count) {
    int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC), pid;
    if (connection < 0)
        return false;
    struct hello hello;
    char expected[TOKEN_MAX];
    token_copy(expected, token);
    bool sent = same_user(connection, &pid) && wait_readable(connection, clock_seconds() + ASK_SECONDS) &&
                recv(connection, &hello, sizeof hello, 0) == sizeof hello &&
                tokens_equal(hello.token, expected) && send_descriptors(connection, descriptors, count);
    close(connection);
    return sent;
}

bool rendezvous_ask(const char *token, const char *what, int *descriptors, int count, double seconds) {
    struct sockaddr_un address;
    socklen_t length = meeting_address(&address, token, what);
    struct hello hello = {.rank = 0};
    token_copy(hello.token, token);
    int pid, connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return false;
    bool handed = connect(connection, (struct sockaddr *)&address, length) == 0 &&
                  same_user(connection, &pid) &&
                  send(connection, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello &&
                  wait_readable(connection, clock_seconds() + seconds) &&
                  receive_descriptors(connection, descriptors, count) == 0;
    close(connection);
    return handed;
}
