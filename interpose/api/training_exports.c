/* The exported functions about training loops: thin, over the modules. */
#include "castor.h"

#include "base/log.h"
#include "kernels/kernels.h"
#include "trace/trace.h"
#include "training/accumulate.h"
#include "training/annealing.h"
#include "training/audit.h"
#include "training/division.h"
#include "training/loss_scale.h"
#include "training/loss_shares.h"

_Static_assert(sizeof(castor_accumulation) == sizeof(accumulation) &&
                   offsetof(castor_accumulation, count) == offsetof(accumulation, count),
               "one layout, two names");
_Static_assert(sizeof(castor_cycle) == sizeof(accumulation_cycle) &&
                   offsetof(castor_cycle, skipped) == offsetof(accumulation_cycle, skipped) &&
                   sizeof(castor_epoch) == sizeof(accumulation_epoch) &&
                   offsetof(castor_epoch, last) == offsetof(accumulation_epoch, last) &&
                   (int)CASTOR_CYCLE_GOES_ON == (int)CYCLE_GOES_ON &&
                   (int)CASTOR_CYCLE_LEAVES_OUT == (int)CYCLE_LEAVES_OUT &&
                   (int)CASTOR_CYCLE_END == (int)CYCLE_END && (int)CASTOR_EPOCH_AHEAD == (int)EPOCH_AHEAD,
               "one layout, two names");
_Static_assert(sizeof(castor_audit) == sizeof(audit) &&
                   offsetof(castor_audit, worst) == offsetof(audit, worst),
               "one layout, two names");
_Static_assert((int)CASTOR_AUDIT_SUM == (int)AUDIT_SUM && (int)CASTOR_AUDIT_LOOSE == (int)AUDIT_LOOSE &&
                   (int)CASTOR_SKETCH_BUCKETS == (int)KERNEL_SKETCH_BUCKETS,
               "one value, two names");
_Static_assert(sizeof(castor_loss_scale) == sizeof(loss_scale) &&
                   offsetof(castor_loss_scale, hysteresis) == offsetof(loss_scale, hysteresis),
               "one layout, two names");
_Static_assert(sizeof(loss_row) == CASTOR_LOSS_ROW * sizeof(double) &&
                   (int)CASTOR_LOSS_TERMS == (int)LOSS_TERMS && (int)CASTOR_TERM_OTHER == (int)LOSS_OTHER,
               "one layout, two names");

#define BILLION 1e9

double castor_annealing(double start, double end, double warmup_steps, double annealing_step, double step) {
    return annealing_value(start, end, warmup_steps, annealing_step, step);
}

castor_status castor_accumulation_begin(castor_accumulation *a, int64_t size) {
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

castor_status castor_accumulation_length(int64_t count, int64_t size, int64_t *length, int64_t *steps) {
    return accumulate_length(count, size, length, steps);
}

int castor_cycle_phase(const castor_cycle *c) {
    return (int)cycle_phase_of((const accumulation_cycle *)c);
}

int castor_cycle_happens(castor_cycle *c, int event) {
    return cycle_happens((accumulation_cycle *)c, (cycle_event)event);
}

int castor_cycles_act(const castor_cycle *cycles, uint32_t count) {
    return cycles_act((const accumulation_cycle *)cycles, count);
}

int castor_cycles_zero(const castor_cycle *cycles, uint32_t count) {
    return (int)cycles_zero((const accumulation_cycle *)cycles, count);
}

int castor_cycle_schedule(const castor_cycle *c, int64_t *calls) {
    return (int)cycle_schedule((const accumulation_cycle *)c, calls);
}

castor_status castor_epoch_next(castor_epoch *e, int64_t steps, int *answer) {
    epoch_answer found = EPOCH_ENDS;
    castor_status status = epoch_next((accumulation_epoch *)e, steps, &found);
    *answer = (int)found;
    return status;
}

void castor_epoch_drawn(castor_epoch *e, int came) {
    epoch_drawn((accumulation_epoch *)e, came);
}

void castor_settle(int dtype, float *const *wide, const void *const *narrow, const uint64_t *numel,
                   uint32_t count, uint8_t *changed) {
    for (uint32_t i = 0; i < count; i++)
        changed[i] = kernel_settle((kernel_dtype)dtype, wide[i], narrow[i], numel[i]);
}

void castor_loss_scale_begin(castor_loss_scale *scale) {
    loss_scale_begin((loss_scale *)scale);
}

void castor_loss_scale_overflowed(castor_loss_scale *scale, int logs) {
    loss_scale_overflowed((loss_scale *)scale);
    if (logs)
        LOG_I("a gradient overflowed: the loss scale is %g, and the step is skipped on every rank",
              scale->scale);
}

void castor_loss_scale_stepped(castor_loss_scale *scale, int logs) {
    if (loss_scale_stepped((loss_scale *)scale) && logs)
        LOG_D("no gradient overflowed in %lld steps: the loss scale is %g", (long long)scale->interval,
              scale->scale);
}

double castor_local_batch(uint64_t count, int rank, int world, uint64_t *first, uint64_t *last) {
    local_batch own = local_batch_of(count, rank, world);
    *first = own.first;
    *last = own.last;
    return own.weight;
}

castor_status castor_loss_shares(const double *weights, const double *rows, uint32_t ranks, double *shares) {
    return loss_shares((castor_loss)options()->loss, weights, (const loss_row *)rows, ranks, shares);
}

void castor_sketch_add(int dtype, const void *values, uint64_t numel, double weight, double *sketch) {
    kernel_sketch_add((kernel_dtype)dtype, values, numel, weight, sketch);
}

void castor_audit_compare(const double *whole, const double *split, uint32_t count, castor_audit *result) {
    audit_compare(whole, split, count, (audit *)result);
}

void castor_event_audit(double difference) {
    trace_counter_add(GAUGE_AUDITED, 1);
    trace_gauge_set(GAUGE_AUDIT_DIFFERENCE, (uint64_t)(difference * BILLION));
}

void castor_event_call(int by_rows, int with_passes) {
    trace_counter_add(by_rows ? GAUGE_CALLS_BY_ROWS : GAUGE_CALLS_WHOLE, 1);
    if (with_passes)
        trace_counter_add(GAUGE_CALLS_1F1B, 1);
}

void castor_event_rows(uint64_t nanoseconds) {
    trace_counter_add(GAUGE_ROWS_NS, nanoseconds);
}
