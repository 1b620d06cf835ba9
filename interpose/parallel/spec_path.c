#include "spec_path.h"

#include <string.h>
#include "base/error.h"

castor_status communication_cost_of(const mesh *m, const spec *s, const communication *c,
                                    communication_cost *cost) {
    int64_t shard[SPEC_DIMS];
    castor_status status = spec_shape(m, s, shard);
    if (status)
        return status;
    double size = 1, forward = 0, backward = 0;
    for (int32_t dim = 0; dim < s->dims; dim++)
        size *= (double)shard[dim];
    switch ((communication_pattern)c->pattern) {
    case GATHER_FWD_SPLIT_BWD:
        status = mesh_cost(m, MESH_ALL_GATHER, size, c->axis, &forward);
        backward = c->shard_cost;
        break;
    case MIXGATHER_FWD_SPLIT_BWD:
        forward = mesh_mixed_gather_cost(m, size);
        backward = c->shard_cost;
        break;
    case SPLIT_FWD_GATHER_BWD:
        forward = c->shard_cost;
        status = mesh_cost(m, MESH_ALL_GATHER, size, c->axis, &backward);
        break;
    case ALL2ALL_FWD_ALL2ALL_BWD:
        status = mesh_cost(m, MESH_ALL_TO_ALL, size, c->axis, &forward);
        backward = forward;
        break;
    case ALLREDUCE_FWD_IDENTITY_BWD:
        status = mesh_cost(m, MESH_ALL_REDUCE, size, c->axis, &forward);
        break;
    case IDENTITY_FWD_ALLREDUCE_BWD:
        status = mesh_cost(m, MESH_ALL_REDUCE, size, c->axis, &backward);
        break;
    default:
        return error_set(CASTOR_ERR_ARGUMENT, "communication pattern %d: expected 0 to %d", c->pattern,
                         (int)MIXGATHER_FWD_SPLIT_BWD);
    }
    if (status)
        return status;
    if (c->forward_only)
        backward = 0;
    *cost = (communication_cost){forward, backward, forward + backward};
    return CASTOR_OK;
}

/* Where transforms of one spec are collected. */
typedef struct collection {
    const mesh *mesh;
    const spec *from;
    int forward_only;
    double shard_cost;
    transform *out;
    uint32_t count;
    castor_status status;
} collection;

static void axis_drop(spec *s, int32_t dim) {
    s->axes[dim][--s->counts[dim]] = 0;
}

static void axis_append(spec *s, int32_t dim, int32_t axis) {
    s->axes[dim][s->counts[dim]++] = (uint8_t)axis;
}

/* Moves `axis` from dimension `from` to dimension `to`, of which one may be -1. Adds the transform, if its result fits. */
static void transform_add(collection *c, communication_pattern pattern, int32_t from, int32_t to,
                          int32_t axis) {
    spec after = *c->from;
    if (from >= 0)
        axis_drop(&after, from);
    if (to >= 0 && after.counts[to] == MESH_AXES) /* it has all axes */
        return;
    if (to >= 0)
        axis_append(&after, to, axis);
    if (c->status || !spec_fits(c->mesh, &after))
        return;
    transform *t = &c->out[c->count++];
    *t = (transform){
        .after = after,
        .action = {.pattern = (int32_t)pattern,
                   .gather_dim = from >= 0 ? from : to, /* the other direction needs the same dimension */
                   .shard_dim = to >= 0 ? to : from,
                   .axis = axis,
                   .forward_only = c->forward_only,
                   .shard_cost = c->shard_cost},
    };
    c->status = communication_cost_of(c->mesh, c->from, &t->action, &t->cost);
}

castor_status transforms_of(const mesh *m, const spec *s, int forward_only, double shard_cost, transform *out,
                            uint32_t *count) {
    castor_status status = spec_shape(m, s, NULL);
    if (status)
        return status;
    collection c = {m, s, forward_only, shard_cost, out, 0, CASTOR_OK};
    int32_t last[SPEC_DIMS] = {0}; /* axis of each dimension; -1: none */
    for (int32_t dim = 0; dim < s->dims; dim++)
        last[dim] = s->counts[dim] ? s->axes[dim][s->counts[dim] - 1] : -1;
    for (int32_t dim = 0; dim < s->dims; dim++)
        if (last[dim] >= 0)
            transform_add(&c, GATHER_FWD_SPLIT_BWD, dim, -1, last[dim]);
    for (int32_t from = 0; from < s->dims; from++)
        for (int32_t to = 0; to < s->dims; to++)
            if (from != to && last[from] >= 0)
                transform_add(&c, ALL2ALL_FWD_ALL2ALL_BWD, from, to, last[from]);
    for (int32_t dim = 0; dim < s->dims; dim++)
        for (int32_t axis = 0; axis < m->axes; axis++)
            transform_add(&c, SPLIT_FWD_GATHER_BWD, -1, dim,
                          axis); /* one that divides already does not fit */
    *count = c.count;
    return c.status;
}

/* Weights of what is left to do: one gather costs as much as four shards, and each further transform costs as well. */
enum { GATHER_WEIGHT = 20, SHARD_WEIGHT = 5, TRANSFORM_WEIGHT = 6 };

/* How far a spec is from the target: in each dimension, axes behind the common ones must leave, and the target's come. Zero
 * means equal. A gather of an axis that must leave, or without one a shard, always makes it less, and both fit whenever the target
 * does: so a nearest transform is always nearer than the spec before, and takes one axis away that must leave or come. */
static int32_t distance(const spec *s, const spec *target) {
    int32_t sum = 0;
    for (int32_t dim = 0; dim < s->dims; dim++) {
        int32_t common = 0;
        while (common < s->counts[dim] && common < target->counts[dim] &&
               s->axes[dim][common] == target->axes[dim][common])
            common++;
        int32_t leave = s->counts[dim] - common, come = target->counts[dim] - common;
        if (leave + come)
            sum += GATHER_WEIGHT * leave + SHARD_WEIGHT * come + TRANSFORM_WEIGHT * (leave + come - 1);
    }
    return sum;
}

static castor_status same_shape_check(const spec *from, const spec *to) {
    if (from->dims == to->dims && !memcmp(from->shape, to->shape, (size_t)from->dims * sizeof *from->shape))
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "a path between sharding specs of tensors of different shapes");
}

castor_status spec_path(const mesh *m, const spec *from, const spec *to, int forward_only, double shard_cost,
                        transform *out, uint32_t *count, communication_cost *cost) {
    castor_status status = spec_shape(m, from, NULL);
    if (!status)
        status = spec_shape(m, to, NULL);
    if (!status)
        status = same_shape_check(from, to);
    transform found[TRANSFORMS_MOST];
    communication_cost sum = {0};
    spec now = *from;
    uint32_t made = 0, options;
    int32_t left = status ? 0 : distance(&now, to);
    while (!status && left) {
        status = transforms_of(m, &now, forward_only, shard_cost, found, &options);
        if (status)
            break;
        const transform *best = NULL;
        for (uint32_t i = 0; i < options; i++) {
            int32_t then = distance(&found[i].after, to);
            if (then < left) {
                left = then;
                best = &found[i];
            }
        }
        if (!best || made == PATH_MOST) /* distance() says why this cannot be */
            return error_set(CASTOR_ERR_ARGUMENT, "no path between two sharding specs");
        out[made++] = *best;
        now = best->after;
        sum.forward += best->cost.forward;
        sum.backward += best->cost.backward;
        sum.total += best->cost.total;
    }
    if (status)
        return status;
    *count = made;
    *cost = sum;
    return CASTOR_OK;
}
