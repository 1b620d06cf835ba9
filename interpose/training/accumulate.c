#include "accumulate.h"
#include "base/error.h"

static castor_status size_check(int64_t size) {
    if (size >= 1)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT,
                     "accumulate_size is %ld: expected the number of micro-batches of a step, 1 or more",
                     (long)size);
}

castor_status accumulate_begin(accumulation *a, int64_t size) {
    castor_status status = size_check(size);
    if (status == CASTOR_OK)
        *a = (accumulation){.size = size};
    return status;
}

bool accumulate_count(accumulation *a) {
    a->count++;
    return accumulate_at_boundary(a);
}

bool accumulate_at_boundary(const accumulation *a) {
    return a->count >= a->size;
}

bool accumulate_next_at_boundary(const accumulation *a) {
    return a->count + 1 >= a->size;
}

bool accumulate_is_empty(const accumulation *a) {
    return a->count == 0;
}

bool accumulate_take_step(accumulation *a) {
    if (!accumulate_at_boundary(a))
        return false;
    a->count = 0;
    return true;
}

bool accumulate_every(accumulation *a) {
    accumulate_count(a);
    return accumulate_take_step(a);
}

cycle_phase cycle_phase_of(const accumulation_cycle *c) {
    if (accumulate_is_empty(&c->micro_steps))
        return c->reached ? CYCLE_BEGUN : CYCLE_EMPTY;
    return c->reached ? CYCLE_GOES_ON : CYCLE_WAITING;
}

bool cycle_happens(accumulation_cycle *c, cycle_event event) {
    c->reached = event == CYCLE_REACHED || (event == CYCLE_STEP && c->reached);
    if (event == CYCLE_STEP) {
        c->calls++;
        c->skipped = !accumulate_next_at_boundary(&c->micro_steps);
        return c->skipped;
    }
    if (event == CYCLE_HOLD)
        accumulate_count(&c->micro_steps);
    if (event == CYCLE_END)
        c->micro_steps.count = 0;
    return false;
}

/* An optimizer that does not step (any more) leaves it to the others. */
int cycles_act(const accumulation_cycle *cycles, uint32_t count) {
    int of_running = 0, of_all = 0;
    for (uint32_t i = 0; i < count; i++) {
        const accumulation *a = &cycles[i].micro_steps;
        int answer = accumulate_next_at_boundary(a) ? CYCLE_ACTS : CYCLE_LEAVES_OUT;
        of_all |= answer;
        of_running |= accumulate_is_empty(a) ? 0 : answer;
    }
    return of_running ? of_running : of_all;
}

cycle_answer cycles_zero(const accumulation_cycle *cycles, uint32_t count) {
    cycle_answer answer = CYCLE_ACTS;
    for (uint32_t i = 0; i < count && answer != CYCLE_REFUSES; i++) {
        cycle_phase phase = cycle_phase_of(&cycles[i]);
        if (phase >= CYCLE_WAITING)
            answer = phase == CYCLE_GOES_ON ? CYCLE_REFUSES : CYCLE_LEAVES_OUT;
    }
    return answer;
}

cycle_answer cycle_schedule(const accumulation_cycle *c, int64_t *calls) {
    int64_t made = c->calls - *calls;
    *calls = c->calls;
    return made == 1 && c->skipped ? CYCLE_LEAVES_OUT : CYCLE_ACTS;
}

castor_status epoch_next(accumulation_epoch *e, int64_t steps, epoch_answer *answer) {
    bool known = e->length >= 0, trained = steps != e->steps;
    int64_t of_step = e->served % e->size; /* batches of the running step */
    bool in_tail = known ? e->served >= e->length - e->length % e->size : e->ended;
    if (!known && !e->ended && (e->ahead || !of_step) && e->ahead < e->size - of_step)
        e->last = EPOCH_AHEAD;
    else if ((trained && in_tail) || (!known && !e->ahead))
        e->last = EPOCH_ENDS;
    else
        e->last = known ? EPOCH_DRAWS : EPOCH_TAKES;
    if (e->last == EPOCH_ENDS && trained && e->served < e->size)
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "an epoch has %ld batches and CASTOR_ACCUMULATE=%ld needs %ld for a step: use smaller "
            "batches or a smaller CASTOR_ACCUMULATE",
            (long)(known ? e->length : e->served + e->ahead), (long)e->size, (long)e->size);
    if (e->last == EPOCH_TAKES) {
        e->ahead--;
        e->served++;
    }
    *answer = (epoch_answer)e->last;
    return CASTOR_OK;
}

void epoch_drawn(accumulation_epoch *e, bool came) {
    if (e->last == EPOCH_DRAWS) {
        e->served += came;
    } else {
        e->ahead += came;
        e->ended = !came;
    }
}

castor_status accumulate_length(int64_t count, int64_t size, int64_t *length, int64_t *steps) {
    castor_status status = size_check(size);
    if (status)
        return status;
    if (count < 0)
        return error_set(CASTOR_ERR_ARGUMENT, "a loader of %ld batches: expected 0 or more", (long)count);
    *steps = count / size;
    *length = *steps * size;
    return CASTOR_OK;
}
