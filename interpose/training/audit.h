/* The audit of a single-process script whose batches are split over ranks: does a backward pass of the whole batch, in
 * a process that runs the script unsplit, give the loss and the gradients that the ranks made together?
 *
 *   whole   the results of the unsplit process; split: the results of the ranks, put together
 *   sketch  KERNEL_SKETCH_BUCKETS sums that stand for one gradient (kernels/kernels.h)
 *
 * Equal means: up to the rounding of sums in another order. An error in dividing a loss is far larger: one sample more or
 * less in a mean over 64 is 16 in a thousand. */
#ifndef CASTOR_TRAINING_AUDIT_H
#define CASTOR_TRAINING_AUDIT_H

#include <stdint.h>

typedef enum audit_verdict {
    AUDIT_EQUAL,
    AUDIT_DIFFERENT,
    AUDIT_UNKNOWN, /* no numbers to compare: a loss or a gradient is infinite or NaN on one side */
    AUDIT_SUM, /* different: the whole is `ranks` times the split one, as when a sum is taken for a mean */
} audit_verdict;

/* How the numbers were computed, which bounds the rounding. */
typedef enum audit_rounding {
    AUDIT_SINGLE, /* in float or double */
    AUDIT_HALF,   /* some of it in 16 bits */
    AUDIT_LOOSE,  /* with other random numbers: only a large difference counts */
} audit_rounding;

typedef struct audit {
    double whole_loss, split_loss; /* in; NaN on both sides: there is no single loss */
    int32_t rounding;              /* in: audit_rounding */
    int32_t verdict;               /* out: audit_verdict */
    double whole_norm, split_norm; /* out: of all gradients, as estimated from the sketches */
    double difference;             /* out: the larger of the relative differences of loss and gradients */
    uint32_t worst;                /* out: the gradient that differs most */
    uint32_t ranks;                /* in */
} audit;

/* Fills the outputs from `count` sketches on each side. */
void audit_compare(const double *whole, const double *split, uint32_t count, audit *result);

#endif
