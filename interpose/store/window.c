#include "window.h"

#include <stdlib.h>
#include <sys/mman.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/error.h"
#include "demand.h"
#include "wait.h"

/* The sum's memory is worth giving back when the script has dropped its gradients and not yet built up activations:
 * these will want the room. After a forward pass it is too late to help. */
static bool memory_idle(void) {
    arena_stats arena;
    arena_get_stats(&arena);
    return (arena.live_bytes - arena.adopted_bytes) * 2 < arena.anonymous_peak_bytes;
}

/* Callers hold the store's lock. `dropped`: the script let its gradient go (and does not overwrite it just now). */
static castor_status release_up_to(tensor *t, uint32_t generation, bool dropped) {
    uint32_t count = generation - t->released, world = (uint32_t)t->store->world;
    if ((int32_t)count <= 0 || t->store->detached)
        return CASTOR_OK;
    uint64_t lent = atomic_exchange(&t->yielded_bytes, 0);
    if (lent)
        arena_yield(-(int64_t)lent);
    if (t->loan && dropped && !t->sum_continues && !t->lent && count == 1) {
        /* The lease goes on, now for this rank's blocks: nobody writes the next sum before its gradient is here. */
        t->lent = true;
        arena_loan_offer(t->loan);
        return CASTOR_OK;
    }
    castor_status status = t->lent ? arena_loan_recall(t->loan) : CASTOR_OK;
    if (status)
        return status;
    t->lent = false;
    bool last = atomic_fetch_add(&t->control->leases_back, count) + count == generation * world;
    /* Before this rank's own release shows: until then nobody writes the next sum. */
    if (last && dropped && t->returnable && !t->sum_continues && !demand_single(t, CHUNK_GRAD) &&
        memory_idle()) {
        chunk_punch(&t->store->chunks, CHUNK_GRAD, t->grad_offset, t->sum_span);
        atomic_store(&t->control->given_back, generation);
    }
    t->released = generation;
    atomic_store(&t->control->rank[t->store->rank].released, generation);
    wait_notify(&t->control->event, &t->control->waiters);
    return CASTOR_OK;
}

castor_status window_release_sum(tensor *t) {
    pthread_mutex_lock(&t->store->lock);
    castor_status status = release_up_to(t, t->generation, false);
    pthread_mutex_unlock(&t->store->lock);
    return status;
}

/* Whether every rank but this one has released the tensor's last sum. */
static bool sum_is_idle(void *context) {
    const tensor *t = context;
    return atomic_load(&t->control->leases_back) == (t->released + 1) * (uint32_t)t->store->world - 1;
}

void window_lease_begin(tensor *t) {
    const store *s = t->store;
    if (t->owner != s->rank || !t->sum_paged || t->returnable || t->unfilled || s->bounded ||
        s->node_count > 1 || (s->offload_dir && *s->offload_dir))
        return;
    t->released = UINT32_MAX;
    atomic_store(&t->control->rank[s->rank].released, UINT32_MAX);
    atomic_fetch_sub(&t->control->leases_back, 1);
}

castor_status window_loans_add(tensor *const *tensors, uint32_t count) {
    arena_loan *loans = calloc(count + 1, sizeof *loans);
    castor_status status = CASTOR_OK;
    uint32_t used = 0;
    for (uint32_t i = 0; i < count && loans; i++) {
        tensor *t = tensors[i];
        if (t->released == UINT32_MAX)
            loans[used++] = (arena_loan){
                t->store->chunks.list[CHUNK_GRAD].fd, t->grad_offset, t->sum_span, sum_is_idle, t, 0};
    }
    bool lends = used && arena_loans_add(loans, used) == CASTOR_OK;
    for (uint32_t i = 0; i < used && lends; i++) {
        tensor *t = loans[i].context;
        t->store->lends = t->lent = true;
        t->loan = loans[i].id;
        arena_loan_offer(t->loan);
    }
    for (uint32_t i = 0; i < count && !lends && !status; i++)
        status = window_release_sum(tensors[i]);
    free(loans);
    return status;
}

castor_status window_loans_recall(store *s) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&s->lock);
    for (uint32_t id = 0; id < s->tensor_count && !status; id++)
        if (s->tensors[id]->lent)
            status = release_up_to(s->tensors[id], s->tensors[id]->generation, false);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void window_loan_end(tensor *t) {
    if (t->loan)
        arena_loan_end(t->loan);
    t->loan = 0;
}

static castor_status map_sum(window *w) {
    tensor *t = w->tensor;
    castor_status status = pages_map_view(t->store->chunks.list[CHUNK_GRAD].fd, t->grad_offset, t->sum_span,
                                          w->address, &w->address);
    if (status == CASTOR_OK)
        status = demand_watch(t, CHUNK_GRAD, w->address);
    if (status == CASTOR_OK)
        chunk_units_map(&t->store->chunks, w->address, t->sum_span);
    if (status == CASTOR_OK)
        w->zeroed = false;
    return status;
}

castor_status window_take(tensor *t, window **out) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&t->store->lock);
    window *w = t->windows;
    while (w && w->live)
        w = w->next;
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) {
            status = error_set(CASTOR_ERR_MEMORY, "no memory for a gradient's window");
            goto done;
        }
        w->tensor = t;
        if ((status = map_sum(w)) != CASTOR_OK) {
            free(w);
            goto done;
        }
        w->next = t->windows;
        t->windows = w;
    } else if (w->zeroed && (status = map_sum(w)) != CASTOR_OK) {
        goto done;
    }
    w->live = w->current = true;
    t->store->changes++;
    *out = w;
done:
    pthread_mutex_unlock(&t->store->lock);
    return status;
}

/* The sum is released once no live window shows it. Callers hold the lock. */
static castor_status lease_end(window *w) {
    tensor *t = w->tensor;
    if (!w->current)
        return CASTOR_OK;
    w->current = false;
    for (const window *other = t->windows; other; other = other->next)
        if (other->live && other->current)
            return CASTOR_OK;
    return release_up_to(t, t->generation, true);
}

void window_return(window *w) {
    tensor *t = w->tensor;
    pthread_mutex_lock(&t->store->lock);
    if (!t->store->detached && pages_edited_drop(w->address, t->sum_span) != CASTOR_OK)
        w->zeroed = true; /* to be mapped anew before it shows a sum again */
    w->live = false;
    castor_status status = lease_end(w);
    if (t->forgotten && !t->store->detached)
        window_unmap_returned(t);
    pthread_mutex_unlock(&t->store->lock);
    if (status)
        store_fail(t->store, status);
}

void window_unmap_returned(tensor *t) {
    for (window **at = &t->windows; *at;) {
        window *w = *at;
        if (w->live) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        munmap(w->address, t->sum_span);
        free(w);
    }
}

castor_status window_detach_all(tensor *t) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&t->store->lock);
    for (window *w = t->windows; w && !status; w = w->next)
        if (w->live && w->current && (status = pages_privatize(w->address, t->sum_span)) == CASTOR_OK)
            w->current = false;
    if (status == CASTOR_OK)
        status = release_up_to(t, t->generation, false);
    pthread_mutex_unlock(&t->store->lock);
    return status;
}

castor_status window_carry(tensor *t, window *w) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&t->store->lock);
    for (window *other = t->windows; other && !status; other = other->next)
        if (other != w && other->live && other->current &&
            (status = pages_privatize(other->address, t->sum_span)) == CASTOR_OK)
            other->current = false;
    if (status == CASTOR_OK) {
        if (w)
            w->current = false;
        status = t->lent ? error_set(CASTOR_ERR_ARGUMENT,
                                     "the sum of tensor %u cannot continue: its memory was lent", t->id)
                         : release_up_to(t, t->generation, false);
    }
    pthread_mutex_unlock(&t->store->lock);
    return status;
}

castor_status window_refresh(window *w) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&w->tensor->store->lock);
    if (w->zeroed || pages_edited_drop(w->address, w->tensor->sum_span) != CASTOR_OK)
        status = map_sum(w);
    if (status == CASTOR_OK)
        w->current = true;
    w->tensor->store->changes++;
    pthread_mutex_unlock(&w->tensor->store->lock);
    return status;
}

castor_status window_zero(window *w) {
    pthread_mutex_lock(&w->tensor->store->lock);
    castor_status status = pages_map_zero(w->address, w->tensor->sum_span);
    if (status == CASTOR_OK) {
        w->zeroed = true;
        status = lease_end(w);
    }
    pthread_mutex_unlock(&w->tensor->store->lock);
    return status;
}
