#include "grouping.h"

#include <stdbool.h>
#include "base/error.h"

static bool is_first_of_node(const uint64_t *identities, int rank) {
    for (int before = 0; before < rank; before++)
        if (identities[before] == identities[rank])
            return false;
    return true;
}

/* The `position`-th rank of the node whose first rank is `first`; -1: it has not so many. */
static int rank_at(const uint64_t *identities, int world, int first, int position) {
    for (int rank = first; rank < world; rank++)
        if (identities[rank] == identities[first] && position-- == 0)
            return rank;
    return -1;
}

castor_status grouping_by_node(const uint64_t *identities, int world, int rank, grouping_nodes *out,
                               int32_t *members, int32_t *lane) {
    if (world < 1 || rank < 0 || rank >= world)
        return error_set(CASTOR_ERR_ARGUMENT, "rank %d of %d: out of range", rank, world);
    *out = (grouping_nodes){.lanes = world};
    for (int r = 0; r < world; r++) {
        if (identities[r] != identities[rank])
            continue;
        if (r == rank)
            out->local_rank = out->local_world;
        members[out->local_world++] = r;
    }
    for (int first = 0; first < world; first++) {
        if (!is_first_of_node(identities, first))
            continue;
        int size = 0;
        while (rank_at(identities, world, first, size) >= 0)
            size++;
        if (size < out->lanes)
            out->lanes = size;
        if (identities[first] == identities[rank])
            out->node = out->node_count;
        lane[out->node_count++] = rank_at(identities, world, first, out->local_rank);
    }
    return CASTOR_OK;
}
