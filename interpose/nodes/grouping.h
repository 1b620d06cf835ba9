/* The rank sets of a job: pure arithmetic over ranks, the same on every rank.
 *
 * Vocabulary
 *   node         ranks that share a node store, numbered by their first rank
 *   local rank   position within the node
 *   lane         the ranks of equal local rank, one on each node: they exchange between nodes what they own. There are as
 *                many lanes as the smallest node has ranks; a rank beyond them owns nothing
 */
#ifndef CASTOR_NODES_GROUPING_H
#define CASTOR_NODES_GROUPING_H

#include <stdint.h>
#include "base/status.h"

typedef struct grouping_nodes {
    int32_t node, node_count;
    int32_t local_rank, local_world;
    int32_t lanes; /* this rank is in lane `local_rank` when that is below */
} grouping_nodes;

/* `identities[r]`: of the node of rank r (job/node.h). `members` takes the local_world ranks of this rank's node, in order;
 * `lane` the node_count ranks of its lane, in the order of nodes (only when it is in one). Room for `world` each. */
castor_status grouping_by_node(const uint64_t *identities, int world, int rank, grouping_nodes *out,
                               int32_t *members, int32_t *lane);

#endif
