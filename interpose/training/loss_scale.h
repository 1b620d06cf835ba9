/* The loss is multiplied by this number so that small gradients do not vanish in float16; afterwards gradients are divided by
 * it. It becomes smaller when gradients overflowed on any rank, and larger after many steps without overflow, so it stays near the
 * largest that works. A power of two costs no digit of a gradient.
 *
 * One thread uses a loss scale at a time. */
#ifndef CASTOR_TRAINING_LOSS_SCALE_H
#define CASTOR_TRAINING_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#define LOSS_SCALE_INITIAL 0x1p16
#define LOSS_SCALE_LARGEST 0x1p24 /* it is not doubled from there on */
#define LOSS_SCALE_STEPS   1000   /* good steps before it is doubled */

typedef struct loss_scale {
    double scale;
    int64_t good;                              /* steps since the scale changed */
    int64_t overflows;                         /* since the last doubling, until there are `hysteresis` */
    double smallest, largest, growth, backoff; /* its bounds, and the factors by which it changes */
    int64_t interval, hysteresis; /* good steps before it grows; overflows before it becomes smaller */
} loss_scale;

/* With the values above, halved at each overflow. */
void loss_scale_begin(loss_scale *s);
/* After a backward in which a gradient overflowed on some rank. */
void loss_scale_overflowed(loss_scale *s);
/* After a step. True: the scale has become larger. */
bool loss_scale_stepped(loss_scale *s);

#endif
