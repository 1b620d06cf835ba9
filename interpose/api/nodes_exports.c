/* The exported functions about several nodes: thin, over the modules. */
#include "castor.h"

#include <pthread.h>
#include <stdlib.h>
#include "base/error.h"
#include "job/node.h"
#include "job/options.h"
#include "gradients/reduce.h"
#include "nodes/exchange.h"
#include "nodes/fetch.h"
#include "nodes/grouping.h"
#include "nodes/serve.h"
#include "store/demand.h"
#include "trace/trace.h"

_Static_assert(sizeof(castor_nodes) == sizeof(grouping_nodes), "one layout, two names");
_Static_assert(sizeof(castor_range) == sizeof(exchange_range), "one layout, two names");

uint64_t castor_node_identity(void) {
    return node_identity();
}

castor_status castor_nodes_find(const uint64_t *identities, int world, int rank, castor_nodes *out,
                                int32_t *members, int32_t *lane) {
    return grouping_by_node(identities, world, rank, (grouping_nodes *)out, members, lane);
}

castor_status castor_node_ranges(int what, castor_tensor *const *tensors, uint32_t count,
                                 const uint8_t *wanted, int merge, castor_range *out, uint32_t *ranges) {
    return exchange_ranges((exchange_what)what, tensors, count, wanted, merge, (exchange_range *)out, ranges);
}

castor_status castor_node_layout(int what, castor_tensor *const *tensors, uint32_t count, uint64_t *digest) {
    return exchange_layout((exchange_what)what, tensors, count, digest);
}

uint32_t castor_node_units(castor_tensor *const *tensors, uint32_t count, const uint8_t *used, int32_t *unit,
                           uint32_t *waits) {
    return exchange_units(tensors, count, used, unit, waits);
}

uint64_t castor_agreed_take(castor_store *s) {
    uint64_t agreed = s->agreed >> 1;
    s->agreed = 0;
    return agreed;
}

void castor_agreed_add(castor_store *s, double value) {
    store_agreed_add(s, &value, sizeof value);
}

castor_status castor_store_ranks_set(castor_store *s, const int32_t *ranks) {
    return store_job_ranks_set(s, ranks);
}

castor_status castor_store_shard(castor_store *s, int node, int node_count) {
    return store_shard(s, node, node_count);
}

castor_status castor_serve(castor_store *s, const char *token, const char *address, int *port) {
    return serve_start(s, token, address, port);
}

castor_status castor_node_read(const char *address, int port, const char *token, const uint64_t *offsets,
                               const uint64_t *bytes, void *const *out, uint32_t count) {
    fetch_peer peer = fetch_peer_of(address, port, token, options()->timeout);
    castor_status status = fetch_open(&peer, false);
    for (uint32_t i = 0; i < count && !status; i++)
        status = fetch_range(&peer, CHUNK_OPTIM, offsets[i], out[i], bytes[i]);
    fetch_close(&peer);
    return status;
}

/* ---- what one node only keeps ---- */

/* Of the last ranges that came, for each rank of the node: so many chunks are kept. */
#define CHUNKS_IN_USE     2
#define CHUNK_USUAL_BYTES (32ul << 20) /* where no parameter has decided yet */

#define LEAVE_PATIENCE_SECONDS 2.0 /* before it is said that a rank waits */

/* Of a store, one for each node. */
typedef struct node_links {
    int node, count;
    pthread_mutex_t lock; /* the thread castor-demand may read while the rank leaves */
    fetch_peer peer[];
} node_links;

static castor_status links_read(void *context, int node, chunk_kind kind, uint64_t offset, void *out,
                                size_t bytes) {
    node_links *links = context;
    fetch_peer *peer = &links->peer[node];
    pthread_mutex_lock(&links->lock);
    castor_status status = peer->connection < 0 ? fetch_open(peer, true) : CASTOR_OK;
    if (status == CASTOR_OK)
        status = fetch_range(peer, kind, offset, out, bytes);
    pthread_mutex_unlock(&links->lock);
    return status;
}

static void links_close(node_links *links) {
    pthread_mutex_lock(&links->lock);
    for (int node = 0; node < links->count; node++)
        fetch_close(&links->peer[node]);
    pthread_mutex_unlock(&links->lock);
}

castor_status castor_demand_probe(void) {
    return demand_probe();
}

castor_status castor_demand(castor_store *s, int kinds, const char *const *addresses, const int *ports,
                            const char *const *tokens) {
    node_links *links = malloc(sizeof *links + (size_t)s->node_count * sizeof *links->peer);
    if (!links)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the connections to other nodes");
    *links = (node_links){s->node, s->node_count, PTHREAD_MUTEX_INITIALIZER};
    castor_status status = CASTOR_OK;
    for (int node = 0; node < s->node_count; node++) {
        links->peer[node] = fetch_peer_of(addresses[node], ports[node], tokens[node], options()->timeout);
        links->peer[node].uninterrupted = true; /* who asks holds Python's lock in a page fault */
        if (node != s->node && !status)
            status = fetch_open(&links->peer[node], true);
    }
    uint64_t chunk = s->chunks.chunk_bytes ? s->chunks.chunk_bytes : CHUNK_USUAL_BYTES;
    uint64_t room = CHUNKS_IN_USE * (uint64_t)s->world * chunk;
    if (status == CASTOR_OK)
        status = demand_start(s, kinds, &(demand_source){links_read, links}, room);
    if (status) {
        links_close(links);
        free(links);
    }
    return status;
}

castor_status castor_demand_drop(int sums, castor_tensor *const *tensors, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        if (tensors[i]->owner == tensors[i]->store->rank)
            status = demand_drop(tensors[i], sums ? CHUNK_GRAD : CHUNK_PARAM);
    return status;
}

uint32_t castor_demand_forgotten(castor_store *s, uint8_t *out, uint32_t room) {
    return tensor_forgotten(s, out, room);
}

void castor_demand_sweep(castor_store *s, const uint8_t *gone, uint32_t count) {
    tensor_sweep(s, gone, count);
}

void castor_demand_leave(castor_store *s) {
    const demand_source *source = demand_source_of(s);
    if (source && !s->detached)
        links_close(source->context);
}

castor_status castor_serve_wait(castor_store *s, int readers) {
    return serve_wait(s, readers, LEAVE_PATIENCE_SECONDS);
}

uint32_t castor_sums_complete(castor_tensor *const *tensors, uint32_t count, const uint8_t *used) {
    return reduce_complete(tensors, count, used);
}

castor_status castor_sums_settle(castor_store *s, int node, castor_tensor *const *tensors, uint32_t count,
                                 uint8_t *used) {
    return exchange_settle(s, node, tensors, count, used);
}

void castor_node_bytes_add(uint64_t bytes) {
    trace_counter_add(GAUGE_NODE_BYTES, bytes);
}
