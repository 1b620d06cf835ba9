/* Pipeline schedules: the order in which a stage runs its forward and backward passes.
 *
 *   microbatch   a part of the batch that passes the pipeline as one; M of them, from 0
 *   stage        a position of the pipeline; S of them, from 0
 *   slice        a part of the model that a stage holds; v of them. Slice c of stage s is the model's virtual stage c * S + s, of
 *                S * v, so that a microbatch passes the stages v times. v > 1 only in interleaved schedules (Megatron's model chunks)
 *   alive        a slice's microbatch between its forward and the last operation that needs its activations
 *
 * An operation of a microbatch on a virtual stage follows the same one on the one before, forward, or behind, backward. Every
 * stage runs its operations in its order and waits for what each needs; sends do not wait for their receivers. So none waits
 * forever. In units of time, with passes of length f and b of a whole stage:
 *
 *   1F1B         stage s makes w = min(S - s - 1, M) forwards, then pairs of a forward and a backward, then w backwards. At most
 *                min(S - s, M) microbatches are alive; the whole takes (M + S - 1)(f + b)
 *   interleaved  the same with w = min(2(S - s - 1) + (v - 1)S, Mv) on slices, S microbatches at a time; M is a multiple of S. The
 *                whole takes M(f + b) + (S - 1)(f + b)/v
 *   zero bubble  ZB-H1: a backward is two operations, for the input's gradient and for the weights'. Stage s makes 1F1B's order with
 *                the first, and the second for the microbatch s earlier, where other stages would wait. At most min(S, M) are
 *                alive on any stage; with operations of length 1 the whole takes 3M + S - 1 (for M >= S), 1F1B 3(M + S - 1) */
#ifndef CASTOR_PARALLEL_PIPELINE_H
#define CASTOR_PARALLEL_PIPELINE_H

#include <stdint.h>
#include "base/status.h"

typedef enum pipeline_style {
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED,
    PIPELINE_ZERO_BUBBLE,
} pipeline_style;

typedef enum pipeline_pass {
    PASS_FORWARD,
    PASS_BACKWARD,
    PASS_BACKWARD_INPUT,
    PASS_BACKWARD_WEIGHT,
} pipeline_pass;

typedef struct pipeline {
    int32_t style; /* pipeline_style */
    int32_t stages, microbatches, slices;
} pipeline;

typedef struct pipeline_operation {
    int32_t kind; /* pipeline_pass */
    int32_t microbatch, slice;
} pipeline_operation;

/* The operations of a stage, in order. *count: how many there are. out: NULL, or room for `capacity`. CASTOR_ERR_ARGUMENT: no such
 * pipeline or stage, or too little room. */
castor_status pipeline_operations(const pipeline *p, int32_t stage, pipeline_operation *out,
                                  uint64_t capacity, uint64_t *count);

#endif
