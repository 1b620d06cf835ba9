/* The exported functions about training loops: thin, over the modules. */
#include "castor.h"

#include "parallel/accumulate.h"
#include "parallel/annealing.h"

_Static_assert(sizeof(castor_accumulation) == sizeof(accumulation) &&
                   offsetof(castor_accumulation, count) == offsetof(accumulation, count),
               "one layout, two names");

double castor_annealing(double start, double end, double warmup_steps, double annealing_step, double step) {
    return annealing_value(start, end, warmup_steps, annealing_step, step);
}

int castor_accumulation_begin(castor_accumulation *a, int64_t size) {
    return accumulate_begin((accumulation *)a, size);
}

int castor_accumulation_count(castor_accumulation *a) {
    return accumulate_count((accumulation *)a);
}

int castor_accumulation_at_boundary(const castor_accumulation *a) {
    return accumulate_at_boundary((const accumulation *)a);
}

int castor_accumulation_next_at_boundary(const castor_accumulation *a) {
    return accumulate_next_at_boundary((const accumulation *)a);
}

int castor_accumulation_is_empty(const castor_accumulation *a) {
    return accumulate_is_empty((const accumulation *)a);
}

int castor_accumulation_take_step(castor_accumulation *a) {
    return accumulate_take_step((accumulation *)a);
}

int castor_accumulation_every(castor_accumulation *a) {
    return accumulate_every((accumulation *)a);
}

int castor_accumulation_length(int64_t count, int64_t size, int64_t *length, int64_t *steps) {
    return accumulate_length(count, size, length, steps);
}
