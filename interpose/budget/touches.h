/* Which parameters forward and backward touch, without a hook in the model. Under a budget the views of parameters are in this
 * process's page tables only while they are used: a view that is there again was touched.
 *
 * All of it runs on the script's main thread, in calls that its code made: there nobody else edits a parameter, so that a view's
 * unedited pages can be told from its edited ones and let go. Elsewhere the calls do nothing. */
#ifndef CASTOR_BUDGET_TOUCHES_H
#define CASTOR_BUDGET_TOUCHES_H

#include "store/store.h"

typedef struct touches touches;

/* After tensors were registered. */
castor_status touches_grow(store *s);
/* PyTorch asked for a block: checks, not too often, which parameters were touched, and unmaps those that were used before. */
void touches_collect(void);
/* A backward has begun, has ended. */
void touches_backward(store *s, bool begun);
/* An optimizer's step begins: it touches what its parts say. */
void touches_step(store *s);
/* It is over: lets go of all views, and the next pass begins. */
void touches_drop(store *s);

#endif
