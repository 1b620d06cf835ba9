/* Gradient accumulation: counts micro-steps and finds the one that steps.
 *
 *   size      micro-steps per step, k
 *   count     micro-steps since the last step
 *   boundary  the k-th micro-step: only there gradients are communicated, clipped and stepped
 *
 * A count may exceed the size (if a script goes on without a step): it stays at the boundary until the step. One thread
 * uses an accumulation at a time.
 *
 * CASTOR_ACCUMULATE: each optimizer of a script that knows nothing of it has a cycle, and each iteration over a loader an epoch.
 *
 *   event         empty          begun      waiting           goes on
 *   reached       begun          begun      goes on           goes on      a backward made a gradient of the optimizer's
 *   step          counts a call of step(): a micro-step, or the step when the next micro-step is at the boundary
 *   hold          waiting        waiting    waiting           waiting      the micro-step is over
 *   end           empty          empty      empty             empty        the step was made, or skipped after an overflow
 *   zero          acts           acts       is left out       is refused   the script clears gradients
 *   act           if the next micro-step is at the boundary; cycles that wait or go on decide for others   clipping, unscaling
 *
 * Before a backward, gradients must be: whatever they are; as the last backward left them; as they were held; as the last backward left
 * them. */
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

typedef enum cycle_phase { CYCLE_EMPTY, CYCLE_BEGUN, CYCLE_WAITING, CYCLE_GOES_ON } cycle_phase;
typedef enum cycle_answer { CYCLE_REFUSES = -1, CYCLE_ACTS = 1, CYCLE_LEAVES_OUT = 2 } cycle_answer;
typedef struct accumulation_cycle {
    accumulation micro_steps;
    int64_t calls;            /* of step() */
    int32_t reached, skipped; /* since the last micro-step; by the last of the calls */
} accumulation_cycle;

typedef enum cycle_event { CYCLE_REACHED, CYCLE_STEP, CYCLE_HOLD, CYCLE_END } cycle_event;

cycle_phase cycle_phase_of(const accumulation_cycle *c);
/* CYCLE_STEP: true if the call is a micro-step, and nothing is stepped. */
bool cycle_happens(accumulation_cycle *c, cycle_event event);
/* CYCLE_ACTS, CYCLE_LEAVES_OUT, or both bits: the cycles differ. 0 without cycles. */
int cycles_act(const accumulation_cycle *cycles, uint32_t count);
/* Of a parameter with these cycles. */
cycle_answer cycles_zero(const accumulation_cycle *cycles, uint32_t count);
/* A scheduler's step, whose last one was after *calls calls of step(), is left out if one was made since, and left out. */
cycle_answer cycle_schedule(const accumulation_cycle *c, int64_t *calls);

/* An iteration over a loader. Its incomplete tail is dropped if the batches are trained on: if a step() was called since it began. */
typedef enum epoch_answer {
    EPOCH_ENDS,
    EPOCH_DRAWS, /* the next batch is the loader's next one */
    EPOCH_TAKES, /* it is the oldest of those that were drawn ahead */
    EPOCH_AHEAD  /* draw one more ahead, and ask again */
} epoch_answer;
typedef struct accumulation_epoch {
    int64_t size,
        length;    /* batches of a loader; -1: not known, and the batches of the next step are drawn ahead */
    int64_t steps; /* calls of any optimizer's step() before it */
    int64_t served, ahead;
    int32_t ended, last; /* the loader; the last answer */
} accumulation_epoch;

/* The next batch is asked for, after `steps` calls of step(). CASTOR_ERR_ARGUMENT: the loader has too few batches for a step. */
castor_status epoch_next(accumulation_epoch *e, int64_t steps, epoch_answer *answer);
/* After EPOCH_DRAWS and EPOCH_AHEAD: whether a batch came. */
void epoch_drawn(accumulation_epoch *e, bool came);

/* Of `count` batches, the number that make whole steps, and the number of these steps. CASTOR_ERR_ARGUMENT unless size >= 1
 * and count >= 0. */
castor_status accumulate_length(int64_t count, int64_t size, int64_t *length, int64_t *steps);

#endif
