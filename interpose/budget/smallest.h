/* The smallest budget that works, where one was too small: the chunks are laid out, and the step is divided into parts, as they would
 * be under a larger one. */
#ifndef CASTOR_BUDGET_SMALLEST_H
#define CASTOR_BUDGET_SMALLEST_H

#include "inside.h"

#define SMALLEST_UNIT      (1ull << 20) /* of the answer */
#define SMALLEST_STATES    2            /* of each parameter, before a step has shown how many there are */
#define SMALLEST_PARTS_ALL UINT64_MAX

typedef struct smallest {
    uint64_t bytes; /* 0: none was found */
    bool assumed;   /* no step has shown the optimizer's states: SMALLEST_STATES of them */
} smallest;

/* Larger than the budget, and at least `least`. `part_most`: the most bytes of parameters that a part may have for another reason than
 * the budget; 0: there is none; SMALLEST_PARTS_ALL: the optimizer steps in one part. Callers hold the store's lock. */
smallest budget_smallest(budget *b, uint64_t least, uint64_t part_most);

#endif
