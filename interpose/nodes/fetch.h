/* Reading chunks of another node, from its thread `castor-serve` (serve.h). */
#ifndef CASTOR_NODES_FETCH_H
#define CASTOR_NODES_FETCH_H

#include "job/token.h"
#include "placement/chunk.h"

#define FETCH_ADDRESS_MAX 64

typedef struct fetch_peer {
    char address[FETCH_ADDRESS_MAX]; /* numeric */
    int port;
    char token[TOKEN_MAX];
    double timeout_seconds; /* of silence */
    int connection;         /* -1: none */
    bool uninterrupted;     /* by signals: another thread than the script's reads */
} fetch_peer;

fetch_peer fetch_peer_of(const char *address, int port, const char *token, double timeout_seconds);

/* Connects. `hello`: announces that this rank may read until fetch_close. Error: the peer cannot be reached. */
castor_status fetch_open(fetch_peer *p, bool hello);
/* Error: the peer has ended, or was silent for timeout_seconds. */
castor_status fetch_range(fetch_peer *p, chunk_kind kind, uint64_t offset, void *out, uint64_t bytes);
/* One request, to which the token is added, and bytes of its answer. */
struct serve_request;
castor_status fetch_ask(const fetch_peer *p, struct serve_request *request);
castor_status fetch_receive(const fetch_peer *p, void *out, uint64_t bytes);
void fetch_close(fetch_peer *p);

#endif
