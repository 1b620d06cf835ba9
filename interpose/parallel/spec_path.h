/* What conversions between sharding specs do and cost.
 *
 *   communication  one collective along an axis in forward, with its counterpart in backward
 *   transform      a communication that changes one spec into another one
 *   path           transforms from a spec to another one
 *
 * There are three transforms. All-gather: a dimension loses its last axis. Shard: a dimension gets, as its last one, an axis that
 * divides none; nothing is communicated. All-to-all: the last axis of a dimension becomes the last one of another. */
#ifndef CASTOR_PARALLEL_SPEC_PATH_H
#define CASTOR_PARALLEL_SPEC_PATH_H

#include <stdint.h>
#include "base/status.h"
#include "mesh.h"
#include "spec.h"

enum {
    TRANSFORMS_MOST = SPEC_DIMS * MESH_AXES, /* of one spec: each axis leaves a dimension, or comes to one */
    PATH_MOST = 2 * MESH_AXES,               /* of one path: each axis leaves once and comes once */
};

typedef enum communication_pattern {
    GATHER_FWD_SPLIT_BWD,
    ALL2ALL_FWD_ALL2ALL_BWD,
    SPLIT_FWD_GATHER_BWD,
    ALLREDUCE_FWD_IDENTITY_BWD,
    IDENTITY_FWD_ALLREDUCE_BWD,
    MIXGATHER_FWD_SPLIT_BWD,
} communication_pattern;

typedef struct communication {
    int32_t pattern;               /* communication_pattern */
    int32_t gather_dim, shard_dim; /* -1: none */
    int32_t axis;         /* MESH_ALL_AXES: along a list of axes, which counts as the flattened mesh */
    int32_t forward_only; /* 1: no backward */
    int32_t unused;
    double shard_cost; /* of taking a part of what is there */
} communication;

typedef struct communication_cost {
    double forward, backward, total;
} communication_cost;

typedef struct transform {
    communication action;
    spec after;
    communication_cost cost;
} transform;

/* The cost of a communication of one rank's part of a tensor, counted in elements:
 *
 *   pattern                 forward        backward
 *   GATHER, MIXGATHER       all-gather     shard
 *   SPLIT                   shard          all-gather
 *   ALL2ALL                 all-to-all     all-to-all
 *   ALLREDUCE_FWD           all-reduce     0
 *   IDENTITY_FWD            0              all-reduce
 *
 * MIXGATHER gathers over all axes (mesh_mixed_gather_cost). CASTOR_ERR_ARGUMENT: no such pattern or axis, a spec that does not
 * fit. */
castor_status communication_cost_of(const mesh *m, const spec *s, const communication *c,
                                    communication_cost *cost);

/* All transforms of a spec whose results fit the mesh: all-gathers by dimension, all-to-alls by the dimension gathered and the one
 * sharded, shards by dimension and axis. `out`: room for TRANSFORMS_MOST. forward_only and shard_cost go into their actions. */
castor_status transforms_of(const mesh *m, const spec *s, int forward_only, double shard_cost, transform *out,
                            uint32_t *count);

/* The path from one spec to another one of the same shape: each transform is the one whose result is nearest to the target, the first
 * of equals. It need not be the cheapest. It has at most as many transforms as axes that must leave and come. `out`: room for PATH_MOST; *cost: their sum. */
castor_status spec_path(const mesh *m, const spec *from, const spec *to, int forward_only, double shard_cost,
                        transform *out, uint32_t *count, communication_cost *cost);

#endif
