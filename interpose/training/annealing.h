/* Linear annealing with a warm-up, as ColossalChat's sampling temperature uses it. */
#ifndef CASTOR_TRAINING_ANNEALING_H
#define CASTOR_TRAINING_ANNEALING_H

/* `start` while step <= warmup_steps, whatever annealing_step is; then `end` from annealing_step on; between them the line
 * from `start` at step 0 to `end` at annealing_step. The warm-up is not subtracted: the value jumps after it. */
double annealing_value(double start, double end, double warmup_steps, double annealing_step, double step);

#endif
