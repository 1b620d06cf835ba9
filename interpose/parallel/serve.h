/* Reads between nodes without the other node's script: each node that shards has a thread, `castor-serve`, that sends what
 * others ask of its optimizer state chunks.
 *
 * A read sees what the owner published last: owners write states only inside a step, and a step begins on every node
 * together. Who asks must know the token; a message that does not begin with it ends the connection. */
#ifndef CASTOR_PARALLEL_SERVE_H
#define CASTOR_PARALLEL_SERVE_H

#include "../memory/store.h"

typedef struct serve_peer {
    const char *address; /* numeric */
    int port;
    const char *token;
} serve_peer;

/* Starts the thread; it lives as long as the process. Error: the address is not this node's. */
castor_status serve_start(store *s, const char *token, const char *address, int *port);

/* Reads `count` ranges of a peer's state chunks. Error: the peer cannot be reached, or says nothing for so long. */
castor_status serve_read(const serve_peer *peer, const uint64_t *offsets, const uint64_t *bytes,
                         void *const *out, uint32_t count, double timeout_seconds);

#endif
