/* Gradient accumulation: counts micro-steps and finds the one that steps.
 *
 *   size      micro-steps per step, k
 *   count     micro-steps since the last step
 *   boundary  the k-th micro-step: only there gradients are communicated, clipped and stepped
 *
 * A count may exceed the size (if a script goes on without a step): it stays at the boundary until the step. One thread
 * uses an accumulation at a time. */
#ifndef CASTOR_TRAINING_ACCUMULATE_H
#define CASTOR_TRAINING_ACCUMULATE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

typedef struct accumulation {
    int64_t size, count;
} accumulation;

/* CASTOR_ERR_ARGUMENT unless size >= 1. */
castor_status accumulate_begin(accumulation *a, int64_t size);

/* A micro-step: counts it. True when it is at the boundary. */
bool accumulate_count(accumulation *a);
/* Whether the micro-step counted last is at the boundary, and whether the next one will be. */
bool accumulate_at_boundary(const accumulation *a);
bool accumulate_next_at_boundary(const accumulation *a);
/* Nothing was counted since the last step: gradients may be zeroed. */
bool accumulate_is_empty(const accumulation *a);
/* True at the boundary: the caller steps, and the count begins anew. */
bool accumulate_take_step(accumulation *a);
/* Counts a call, and takes the step at the boundary: true at each k-th call. */
bool accumulate_every(accumulation *a);

/* Of `count` batches, the number that make whole steps, and the number of these steps. CASTOR_ERR_ARGUMENT unless size >= 1
 * and count >= 0. */
castor_status accumulate_length(int64_t count, int64_t size, int64_t *length, int64_t *steps);

#endif
