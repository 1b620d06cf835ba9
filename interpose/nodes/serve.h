/* Serves what a process keeps to others, without the script: the thread `castor-serve` sends the ranges that others request (fetch.h), of a
 * node's chunks (serve_start), or of another source (kept.h).
 *
 * A read sees what the owner published last. Owners write states and parameters only inside a step, and all nodes begin a step
 * together. Sums are complete from the end of a backward to the begin of the next, which all nodes also begin together. A
 * request begins with the job's token; anything else ends the connection. */
#ifndef CASTOR_NODES_SERVE_H
#define CASTOR_NODES_SERVE_H

#include "job/token.h"
#include "store/store.h"

/* Sent for each range; the answer is its bytes, or the end of the connection. */
typedef struct serve_request {
    char token[TOKEN_MAX];
    uint64_t what; /* chunk_kind, or one of SERVE_ */
    uint64_t offset, bytes;
    uint64_t name, version, range; /* kept.h */
} serve_request;

#define SERVE_KEPT_DIRECTORY 101
#define SERVE_KEPT           102
#define SERVE_KEPT_DROP      103

/* Gets no answer. From here to the end of the connection a rank of another node may read at any time. */
#define SERVE_HELLO 100

/* Answers a request other than SERVE_HELLO, whose token was right. False: the connection is over. */
typedef struct serve_source {
    bool (*answer)(void *context, int connection, const serve_request *request);
    void *context;
} serve_source;

/* Starts a thread for the source, which lives as long as the process. Error: the address is not this node's. */
castor_status serve_source_start(const serve_source *source, const char *token, const char *address,
                                 int *port);
/* The same for the chunks of a store as long as the process. Error: the address is not this node's. */
castor_status serve_start(store *s, const char *token, const char *address, int *port);

/* Waits until `readers` ranks have said hello and all of them have closed their connections. After `patience_seconds` it logs that it
 * waits. CASTOR_ERR_INTERRUPTED: by a signal; CASTOR_ERR_PEER: a rank of the store has failed. */
castor_status serve_wait(store *s, int readers, double patience_seconds);

#endif
