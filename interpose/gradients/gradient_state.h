/* What this rank knows of a tensor's gradient, from one backward to the next. gradient_state.c alone writes it (tensor.h has the fields).
 *
 * Phases
 *   summed    p.grad is what the last sum left there, and nothing has come since
 *   made      a backward has made a gradient, which is in no sum
 *   added     this rank's gradient was handed to the running sum
 *   joined    this rank takes its turn in the running sum; its backward did not reach the tensor
 *   complete  the sum has every rank's part, and p.grad does not show it yet
 *   lost      a backward was broken off: p.grad holds a gradient that no sum will have
 *
 *   event      summed   made     added     joined    complete  lost
 *   ready      made     made     added     -         made      made    a backward made a gradient; if added, another wrapper has added it
 *   submit     joined   added    -         -         joined    added   used if it was made; then `carried` becomes `carrying`
 *   complete   -        -        complete  complete  -         -
 *   show       summed   -        -         -         summed    -       `carrying` ends
 *   break off  summed   lost     lost      summed    lost      lost    `carrying` ends
 *
 * `-`: an error, and nothing changes. A submission that fails changes nothing either: nobody waits for that gradient.
 *
 * Accumulation: a summed gradient may be `carried`: the next backward adds to its sum. While that one runs it is `carrying`. If the last
 * sum is that of all nodes, one node alone goes on from it, and the others begin anew. */
#ifndef CASTOR_GRADIENTS_GRADIENT_STATE_H
#define CASTOR_GRADIENTS_GRADIENT_STATE_H

#include "store/tensor.h"

typedef enum gradient_event {
    GRADIENT_IS_READY,
    GRADIENT_IS_SUBMITTED,
    GRADIENT_IS_COMPLETE,
    GRADIENT_IS_SHOWN,
    GRADIENT_IS_BROKEN_OFF,
    GRADIENT_EVENT_COUNT
} gradient_event;

/* CASTOR_ERR_ARGUMENT: the event cannot come in this phase. */
castor_status gradient_check(const tensor *t, gradient_event event);
/* The same, and the phase changes. */
castor_status gradient_happens(tensor *t, gradient_event event);
/* Of a submission: the script has used the parameter; the running sum goes on, on this node, from the last one. */
bool gradient_is_used(const tensor *t);
bool gradient_goes_on(const tensor *t);
/* The micro-step is over (`wanted`), or its step is: the next backward adds to the sum, if p.grad shows it. */
void gradient_carry(tensor *t, bool wanted);
/* The sum that was completed is that of all nodes, of which this is `node`, if one of them used the tensor. */
void gradient_settle(tensor *t, bool used, int node);

#endif
