/* The exported functions about hybrid parallelism: thin, over the modules. */
#include "castor.h"

#include "parallel/mesh.h"
#include "parallel/pipeline.h"
#include "parallel/rank_lists.h"
#include "parallel/spec.h"
#include "parallel/spec_path.h"
#include "parallel/stages.h"
#include "same.h"

SAME(castor_mesh, mesh, beta);
SAME(castor_partition, partition, axes);
SAME(castor_spec, spec, shape);
SAME(castor_communication, communication, shard_cost);
SAME(castor_cost, communication_cost, total);
SAME(castor_transform, transform, cost);
SAME(castor_pipeline, pipeline, slices);
SAME(castor_operation, pipeline_operation, slice);

EQUAL(CASTOR_RANKS_MOST, RANKS_MOST);
EQUAL(CASTOR_LIST_DATA, RANK_LIST_DATA);
EQUAL(CASTOR_MESH_AXES, MESH_AXES);
EQUAL(CASTOR_ALL_AXES, MESH_ALL_AXES);
EQUAL(CASTOR_MESH_ALL_TO_ALL, MESH_ALL_TO_ALL);
EQUAL(CASTOR_MESH_REDUCE_SCATTER, MESH_REDUCE_SCATTER);
EQUAL(CASTOR_SPEC_DIMS, SPEC_DIMS);
EQUAL(CASTOR_SPEC_TEXT, SPEC_TEXT);
EQUAL(CASTOR_SPLIT_FWD_GATHER_BWD, SPLIT_FWD_GATHER_BWD);
EQUAL(CASTOR_IDENTITY_FWD_ALLREDUCE_BWD, IDENTITY_FWD_ALLREDUCE_BWD);
EQUAL(CASTOR_MIXGATHER_FWD_SPLIT_BWD, MIXGATHER_FWD_SPLIT_BWD);
EQUAL(CASTOR_TRANSFORMS_MOST, TRANSFORMS_MOST);
EQUAL(CASTOR_PATH_MOST, PATH_MOST);
EQUAL(CASTOR_PIPELINE_ZERO_BUBBLE, PIPELINE_ZERO_BUBBLE);
EQUAL(CASTOR_PASS_BACKWARD_WEIGHT, PASS_BACKWARD_WEIGHT);

castor_status castor_ranks_sort(const int32_t *ranks, int32_t count, int32_t *sorted) {
    return rank_list_sort(ranks, count, sorted);
}

castor_status castor_ranks_degrees(int32_t size, int32_t *tp, int32_t *dp) {
    return rank_list_degrees(size, tp, dp);
}

castor_status castor_ranks_list(int kind, const int32_t *ranks, int32_t tp, int32_t dp, int32_t index,
                                int32_t *out) {
    return rank_list_get((rank_list_kind)kind, ranks, tp, dp, index, out);
}

castor_status castor_mesh_make(castor_mesh *m, const int32_t *ranks, int32_t count, const int32_t *shape,
                               int32_t axes, const double *alpha, const double *beta) {
    return mesh_make((mesh *)m, ranks, count, shape, axes, alpha, beta);
}

int castor_mesh_coordinates(const castor_mesh *m, int32_t rank, int32_t *coordinates) {
    return mesh_coordinates((const mesh *)m, rank, coordinates);
}

castor_status castor_mesh_rank(const castor_mesh *m, const int32_t *coordinates, int32_t *rank) {
    return mesh_rank((const mesh *)m, coordinates, rank);
}

castor_status castor_mesh_line(const castor_mesh *m, const int32_t *axes, int32_t count, int32_t index,
                               int32_t *out, int32_t *lines, int32_t *length) {
    return mesh_line((const mesh *)m, axes, count, index, out, lines, length);
}

castor_status castor_mesh_line_of(const castor_mesh *m, const int32_t *axes, int32_t count, int32_t rank,
                                  int32_t *index, int32_t *place) {
    return mesh_line_of((const mesh *)m, axes, count, rank, index, place);
}

castor_status castor_mesh_cost(const castor_mesh *m, int collective, double size, int32_t axis,
                               double *cost) {
    return mesh_cost((const mesh *)m, (mesh_collective)collective, size, axis, cost);
}

castor_status castor_partitions_convert(int32_t dims, const castor_partition *in, uint32_t count,
                                        castor_partition *out) {
    return partition_convert(dims, (const partition *)in, count, (partition *)out);
}

castor_status castor_partitions_merge(int32_t dims, const castor_partition *in, uint32_t count,
                                      castor_partition *out, uint32_t *merged) {
    return partition_merge(dims, (const partition *)in, count, (partition *)out, merged);
}

castor_status castor_spec_make(const int64_t *shape, int32_t dims, const castor_partition *partitions,
                               uint32_t count, castor_spec *s) {
    return spec_make(shape, dims, (const partition *)partitions, count, (spec *)s);
}

castor_status castor_spec_print(const castor_spec *s, char *text, size_t size) {
    return spec_print((const spec *)s, text, size);
}

castor_status castor_spec_shape(const castor_mesh *m, const castor_spec *s, int64_t *out) {
    return spec_shape((const mesh *)m, (const spec *)s, out);
}

castor_status castor_communication_cost(const castor_mesh *m, const castor_spec *s,
                                        const castor_communication *c, castor_cost *cost) {
    return communication_cost_of((const mesh *)m, (const spec *)s, (const communication *)c,
                                 (communication_cost *)cost);
}

castor_status castor_spec_transforms(const castor_mesh *m, const castor_spec *s, int forward_only,
                                     double shard_cost, castor_transform *out, uint32_t *count) {
    return transforms_of((const mesh *)m, (const spec *)s, forward_only, shard_cost, (transform *)out, count);
}

castor_status castor_spec_path(const castor_mesh *m, const castor_spec *from, const castor_spec *to,
                               int forward_only, double shard_cost, castor_transform *out, uint32_t *count,
                               castor_cost *cost) {
    return spec_path((const mesh *)m, (const spec *)from, (const spec *)to, forward_only, shard_cost,
                     (transform *)out, count, (communication_cost *)cost);
}

castor_status castor_pipeline_operations(const castor_pipeline *p, int32_t stage, castor_operation *out,
                                         uint64_t capacity, uint64_t *count) {
    return pipeline_operations((const pipeline *)p, stage, (pipeline_operation *)out, capacity, count);
}

castor_status castor_stages_divide(const uint64_t *costs, uint32_t layers, uint32_t stages, uint32_t *ends,
                                   uint64_t *largest) {
    return stages_divide(costs, layers, stages, ends, largest);
}
