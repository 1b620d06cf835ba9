/* Serves a node's chunks to other nodes, without the script: on each node that shards, the thread `castor-serve` sends the
 * ranges that others request (fetch.h).
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
    uint64_t what; /* chunk_kind, or SERVE_HELLO */
    uint64_t offset, bytes;
} serve_request;

/* Gets no answer. From here to the end of the connection a rank of another node may read at any time. */
#define SERVE_HELLO 100

/* Starts the thread; it lives as long as the process. Error: the address is not this node's. */
castor_status serve_start(store *s, const char *token, const char *address, int *port);

/* Waits until `readers` ranks have said hello and all of them have closed their connections. After `patience_seconds` it logs that it
 * waits. CASTOR_ERR_INTERRUPTED: by a signal; CASTOR_ERR_PEER: a rank of the store has failed. */
castor_status serve_wait(store *s, int readers, double patience_seconds);

#endif
