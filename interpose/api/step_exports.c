/* The exported functions of a training step: sums of gradients, windows, parts and publication. Thin, over the modules. */
#include "castor.h"
#include "rank_check.h"

#include "arena/pages.h"
#include "budget/budget.h"
#include "base/error.h"
#include "job/options.h"
#include "gradients/publish.h"
#include "gradients/reduce.h"
#include "store/consensus.h"
#include "store/wait.h"
#include "store/store.h"
#include "store/tensor.h"
#include "store/window.h"
#include "training/division.h"

#define CONSENSUS_PATIENCE_SECONDS 5.0

castor_status castor_gradients_let_go(const castor_gradient *gradients, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        const castor_gradient *g = &gradients[i];
        if (g->tensor->mode != TENSOR_SHARED)
            status = window_release_sum(g->tensor);
        else if (g->flags & CASTOR_GRADIENT_CARRIED)
            status = window_carry(g->tensor, g->window);
        else
            status = window_detach_all(g->tensor);
    }
    return status;
}

castor_status castor_gradients_add(castor_gradient *gradients, uint32_t count, double scale) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        castor_gradient *g = &gradients[i];
        castor_tensor *t = g->tensor;
        if ((status = rank_check(t->store, __func__)) || (status = castor_gradients_let_go(g, 1)))
            return status;
        if (g->flags & CASTOR_GRADIENT_USED)
            reduce_mark_used(t);
        touches_backward(t->store, true);
        budget_sum_begin(t);
        t->sum_continues = g->flags & CASTOR_GRADIENT_KEEP;
        status = reduce_submit(t, g->source, scale, g->flags & CASTOR_GRADIENT_CARRY, options()->reduce_queue,
                               &g->ticket);
    }
    return status;
}

uint64_t castor_gradients_done(castor_store *s) {
    return reduce_done(s);
}

castor_status castor_gradients_finish(castor_store *s, castor_tensor *const *tensors, uint32_t count,
                                      uint8_t *used) {
    castor_status status = rank_check(s, __func__);
    if (status == CASTOR_OK)
        status = reduce_finish(s, tensors, count);
    for (uint32_t i = 0; i < count && !status; i++)
        used[i] = reduce_was_used(tensors[i]);
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
        status = rank_check(w ? w->tensor->store : tensors[i]->store, __func__);
        if (status == CASTOR_OK)
            status = w ? window_refresh(w) : window_take(tensors[i], &windows[i]);
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

void castor_sums_release(castor_tensor *const *tensors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        window_release_sum(tensors[i]);
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

uint32_t castor_part_divide(const castor_store *s, const uint64_t *bytes, uint32_t count, uint64_t most,
                            uint32_t *ends) {
    return parts_divide(bytes, count, budget_part_bytes(s, most), ends);
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
        status = castor_store_check(s);
    return status ? store_fail(s, status) : CASTOR_OK;
}

castor_status castor_publish_deduplicate(castor_store *s, castor_tensor *const *tensors, uint32_t count,
                                         const char *what) {
    castor_status status = rank_check(s, __func__);
    return status ? status : publish_deduplicate(s, tensors, count, what);
}
