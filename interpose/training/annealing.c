#include "annealing.h"

double annealing_value(double start, double end, double warmup_steps, double annealing_step, double step) {
    if (step <= warmup_steps)
        return start;
    if (step >= annealing_step)
        return end;
    return start - step / annealing_step * (start - end);
}
