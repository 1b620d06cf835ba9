/* The exported functions of a training step: sums of gradients, windows, parts and publication. Thin, over the modules. */
#include "castor.h"
#include "rank_check.h"

#include "arena/pages.h"
#include "budget/budget.h"
#include "base/error.h"
#include "job/options.h"
#include "gradients/gradient_state.h"
#include "gradients/publish.h"
#include "gradients/reduce.h"
#include "store/consensus.h"
#include "store/wait.h"
#include "store/store.h"
#include "store/tensor.h"
#include "store/window.h"
#include "training/division.h"

#define CONSENSUS_PATIENCE_SECONDS 5.0

_Static_assert(sizeof(castor_gradient_state) == sizeof(gradient_state) &&
                   offsetof(castor_gradient_state, elsewhere) == offsetof(gradient_state, elsewhere) &&
                   (int)CASTOR_GRADIENT_LOST == (int)GRADIENT_LOST &&
                   (int)CASTOR_GRADIENT_CARRYING == (int)GRADIENT_CARRYING,
               "one layout, two names");

castor_status castor_gradient_ready(castor_tensor *t, uint64_t *done) {
    *done = reduce_done(t->store);
    return gradient_happens(t, GRADIENT_IS_READY);
}

void castor_gradients_carry(castor_tensor *const *tensors, uint32_t count, const uint8_t *wanted) {
    for (uint32_t i = 0; i < count; i++)
        gradient_carry(tensors[i], wanted[i]);
}

void castor_gradients_break_off(castor_tensor *const *tensors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        gradient_happens(tensors[i], GRADIENT_IS_BROKEN_OFF);
}

castor_status castor_gradients_let_go(const castor_gradient *gradients, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        castor_tensor *t = gradients[i].tensor;
        if (t->mode != TENSOR_SHARED)
            status = window_release_sum(t);
        else if (t->gradient.carry == GRADIENT_CARRIED)
            status = window_carry(t, gradients[i].window);
        else
            status = window_detach_all(t);
    }
    return status;
}

castor_status castor_gradients_add(castor_gradient *gradients, uint32_t count, double scale) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        castor_gradient *g = &gradients[i];
        castor_tensor *t = g->tensor;
        if ((status = rank_check(t->store, __func__)) ||
            (status = gradient_check(t, GRADIENT_IS_SUBMITTED)) || (status = castor_gradients_let_go(g, 1)))
            return status;
        if (gradient_is_used(t))
            reduce_mark_used(t);
        touches_backward(t->store, true);
        budget_sum_begin(t);
        t->sum_continues = g->keeps;
        status = reduce_submit(t, g->source, scale, gradient_goes_on(t), REDUCE_QUEUE_BYTES, &g->ticket);
        if (status == CASTOR_OK)
            status = gradient_happens(t, GRADIENT_IS_SUBMITTED);
    }
    return status;
}

castor_status castor_gradients_finish(castor_store *s, castor_tensor *const *tensors, uint32_t count,
                                      uint8_t *used) {
    castor_status status = rank_check(s, __func__);
    for (uint32_t i = 0; i < count && !status; i++) /* else it would wait for this rank */
        status = gradient_check(tensors[i], GRADIENT_IS_COMPLETE);
    if (status == CASTOR_OK)
        status = reduce_finish(s, tensors, count);
    for (uint32_t i = 0; i < count && !status; i++) {
        used[i] = reduce_was_used(tensors[i]);
        status = gradient_happens(tensors[i], GRADIENT_IS_COMPLETE);
    }
    touches_backward(s, false);
    touches_drop(s); /* until the next forward only owners look at parameters, through aliases */
    budget_backward_end(s);
    return status;
}

castor_status castor_windows_show(castor_tensor *const *tensors, uint32_t count, castor_window **windows,
                                  void **addresses) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        castor_window *w = windows[i];
        castor_tensor *t = w ? w->tensor : tensors[i];
        status = rank_check(t->store, __func__);
        if (status == CASTOR_OK)
            status = gradient_happens(t, GRADIENT_IS_SHOWN);
        if (status == CASTOR_OK)
            status = w ? window_refresh(w) : window_take(t, &windows[i]);
        if (status == CASTOR_OK)
            addresses[i] = windows[i]->address;
    }
    return status;
}

void castor_window_return(castor_window *w) {
    window_return(w);
}

castor_status castor_windows_zero(castor_window *const *windows, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        status = window_zero(windows[i]);
    return status;
}

void castor_windows_edited(castor_window *const *windows, uint32_t count, uint64_t *bytes) {
    for (uint32_t i = 0; i < count; i++) {
        const castor_window *w = windows[i];
        bool shows_sum = w->current && !w->zeroed;
        bytes[i] = shows_sum ? pages_edited_bytes(w->address, w->tensor->sum_span) : w->tensor->sum_span;
    }
}

castor_status castor_windows_detach(castor_tensor *t) {
    return window_detach_all(t);
}

castor_status castor_sums_release(castor_tensor *const *tensors, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        status = gradient_happens(tensors[i], GRADIENT_IS_SHOWN);
        if (status == CASTOR_OK)
            status = window_release_sum(tensors[i]);
    }
    return status;
}

castor_status castor_consensus(castor_store *s, uint64_t key, int able, int *committed) {
    castor_status status = rank_check(s, __func__);
    bool all = false;
    if (status == CASTOR_OK)
        status = consensus_try(s, key, able, CONSENSUS_PATIENCE_SECONDS, &all);
    *committed = all;
    return status;
}

castor_status castor_step_begin(castor_store *s, const double *values, const char *const *labels,
                                uint32_t count, const double *said, uint32_t said_count, double *every) {
    castor_status status = rank_check(s, __func__);
    if (status)
        return status;
    if (said_count > CASTOR_SAID_MAX)
        return store_fail(s, error_set(CASTOR_ERR_ARGUMENT,
                                       "castor_step_begin: a rank says %u numbers, %d is the most",
                                       said_count, CASTOR_SAID_MAX));
    touches_step(s);
    return publish_begin(s, &(ranks_values){values, labels, count}, said, said_count * sizeof *said, every);
}

uint32_t castor_part_divide(const castor_store *s, const uint64_t *bytes, uint32_t count, int own_memory,
                            uint32_t *ends) {
    uint64_t most = budget_part_bytes(s, own_memory ? PARTS_OWN_MEMORY_BYTES : 0);
    return parts_divide(bytes, count, most, ends);
}

castor_status castor_part_begin(castor_store *s, int kinds, uint32_t number, castor_tensor *const *tensors,
                                uint32_t count) {
    castor_status status = rank_check(s, __func__);
    return status ? status : budget_part_begin(s, kinds, number, tensors, count);
}

castor_status castor_part_end(castor_store *s) {
    castor_status status = rank_check(s, __func__);
    if (status)
        return status;
    budget_part_end(s);
    pthread_mutex_lock(&s->lock);
    status = budget_close(s);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void castor_publish_push(castor_tensor *const *tensors, uint32_t count) {
    publish_push(tensors, count);
}

void castor_publish_mark(castor_tensor *const *tensors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        publish_mark(tensors[i]);
}

castor_status castor_publish_end(castor_store *s, castor_tensor *const *tensors, uint32_t count,
                                 uint8_t *changed) {
    castor_status status = rank_check(s, __func__);
    if (status == CASTOR_OK)
        status = publish_end(s, tensors, count, changed);
    touches_drop(s);
    if (status) /* what has been said stays said: moves may fail as well */
        return status;
    budget_step_end(s);
    if (options()->debug)
        status = invariants_check(s);
    return status ? store_fail(s, status) : CASTOR_OK;
}

castor_status castor_publish_deduplicate(castor_store *s, castor_tensor *const *tensors, uint32_t count,
                                         const char *what) {
    castor_status status = rank_check(s, __func__);
    return status ? status : publish_deduplicate(s, tensors, count, what);
}

castor_status castor_publish_deduplicate_elsewhere(castor_store *s, castor_tensor *const *tensors,
                                                   uint32_t count) {
    castor_status status = rank_check(s, __func__);
    return status ? status : publish_deduplicate_elsewhere(s, tensors, count);
}
