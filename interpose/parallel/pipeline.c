#include "pipeline.h"

#include <stdbool.h>
#include "base/error.h"

static castor_status check(const pipeline *p, int32_t stage) {
    if (p->style < PIPELINE_1F1B || p->style > PIPELINE_ZERO_BUBBLE)
        return error_set(CASTOR_ERR_ARGUMENT, "style %d of a pipeline schedule: expected 0 to %d", p->style,
                         (int)PIPELINE_ZERO_BUBBLE);
    if (p->stages < 1 || p->microbatches < 1 || p->slices < 1)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a pipeline of %d stages, %d microbatches and %d model chunks a stage: expected 1 "
                         "or more of each",
                         p->stages, p->microbatches, p->slices);
    if (stage < 0 || stage >= p->stages)
        return error_set(CASTOR_ERR_ARGUMENT, "stage %d of a pipeline: expected 0 to %d", stage,
                         p->stages - 1);
    if (p->slices == 1)
        return CASTOR_OK;
    if (p->style != PIPELINE_INTERLEAVED)
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "%d model chunks a stage: only the interleaved schedule has more than 1; set num_model_chunks=1",
            p->slices);
    if (p->microbatches % p->stages)
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "%d microbatches on %d stages: the interleaved schedule needs a multiple of the stages; use %ld",
            p->microbatches, p->stages, ((long)p->microbatches / p->stages + 1) * p->stages);
    return CASTOR_OK;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* How many forwards come before the first backward. */
static int64_t warm_up_of(const pipeline *p, int32_t stage, int64_t forwards) {
    int64_t behind = p->stages - stage - 1;
    /* The first microbatches pass all slices before a backward can begin, and then each pair of operations takes two turns. */
    return smaller(p->slices == 1 ? behind : 2 * behind + (int64_t)(p->slices - 1) * p->stages, forwards);
}

/* Operation `index` of a pass. S microbatches pass a slice, then the next one, until they passed all; then the next S. */
static pipeline_operation operation_at(const pipeline *p, pipeline_pass pass, int64_t index) {
    if (p->slices == 1)
        return (pipeline_operation){(int32_t)pass, (int32_t)index, 0};
    int64_t round = (int64_t)p->stages * p->slices, within = index % round;
    int32_t slice = (int32_t)(within / p->stages);
    return (pipeline_operation){
        .kind = (int32_t)pass,
        .microbatch = (int32_t)(index / round * p->stages + within % p->stages),
        .slice = pass == PASS_FORWARD ? slice : p->slices - 1 - slice,
    };
}

castor_status pipeline_operations(const pipeline *p, int32_t stage, pipeline_operation *out,
                                  uint64_t capacity, uint64_t *count) {
    castor_status status = check(p, stage);
    if (status)
        return status;
    bool splits = p->style == PIPELINE_ZERO_BUBBLE;
    int64_t forwards = (int64_t)p->microbatches * p->slices;
    uint64_t needed = (uint64_t)forwards * (splits ? 3 : 2);
    *count = needed;
    if (!out)
        return CASTOR_OK;
    if (capacity < needed)
        return error_set(CASTOR_ERR_ARGUMENT, "a stage has %lu operations, and there is room for %lu",
                         (unsigned long)needed, (unsigned long)capacity);
    pipeline_pass backward = splits ? PASS_BACKWARD_INPUT : PASS_BACKWARD;
    int64_t warm_up = warm_up_of(p, stage, forwards);
    int64_t weights =
        splits ? -(int64_t)stage : forwards; /* index of the next one, with the turns that it waits */
    for (int64_t turn = 0; turn < forwards + warm_up; turn++) {
        if (turn < forwards)
            *out++ = operation_at(p, PASS_FORWARD, turn);
        if (turn < warm_up)
            continue;
        *out++ = operation_at(p, backward, turn - warm_up);
        if (weights < forwards && weights++ >= 0)
            *out++ = operation_at(p, PASS_BACKWARD_WEIGHT, weights - 1);
    }
    for (weights = weights < 0 ? 0 : weights; weights < forwards; weights++)
        *out++ = operation_at(p, PASS_BACKWARD_WEIGHT, weights);
    return CASTOR_OK;
}
