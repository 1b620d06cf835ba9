/* The exported functions about several nodes: thin, over the modules. */
#include "castor.h"

#include "core/node.h"
#include "core/options.h"
#include "parallel/exchange.h"
#include "parallel/grouping.h"
#include "parallel/serve.h"
#include "trace/trace.h"

_Static_assert(sizeof(castor_nodes) == sizeof(grouping_nodes), "one layout, two names");
_Static_assert(sizeof(castor_range) == sizeof(exchange_range), "one layout, two names");

uint64_t castor_node_identity(void) {
    return node_identity();
}

int castor_nodes_find(const uint64_t *identities, int world, int rank, castor_nodes *out, int32_t *members,
                      int32_t *lane) {
    return grouping_by_node(identities, world, rank, (grouping_nodes *)out, members, lane);
}

int castor_mesh_ranks(int world, int tensor, int pipeline, int rank, int axis, int32_t *ranks,
                      int32_t *count) {
    return grouping_mesh(world, tensor, pipeline, rank, (grouping_axis)axis, ranks, count);
}

int castor_node_ranges(int sums, castor_tensor *const *tensors, uint32_t count, const uint8_t *wanted,
                       int merge, castor_range *out, uint32_t *ranges) {
    return exchange_ranges(sums ? CHUNK_GRAD : CHUNK_PARAM, tensors, count, wanted, merge,
                           (exchange_range *)out, ranges);
}

int castor_store_ranks_set(castor_store *s, const int32_t *ranks) {
    return store_job_ranks_set(s, ranks);
}

int castor_store_shard(castor_store *s, int node, int node_count) {
    return store_shard(s, node, node_count);
}

int castor_serve(castor_store *s, const char *token, const char *address, int *port) {
    return serve_start(s, token, address, port);
}

int castor_node_read(const char *address, int port, const char *token, const uint64_t *offsets,
                     const uint64_t *bytes, void *const *out, uint32_t count) {
    return serve_read(&(serve_peer){address, port, token}, offsets, bytes, out, count, options()->timeout);
}

int castor_sums_settle(castor_store *s, castor_tensor *const *tensors, uint32_t count, uint8_t *used) {
    return exchange_settle(s, tensors, count, used);
}

void castor_node_bytes_add(uint64_t bytes) {
    trace_counter_add(GAUGE_NODE_BYTES, bytes);
}
