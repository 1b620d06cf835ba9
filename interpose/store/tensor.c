#include "tensor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "core/error.h"
#include "core/table.h"
#include "lazy/pool.h"
#include "trace/trace.h"
#include "demand.h"
#include "offers.h"
#include "snapshot.h"
#include "wait.h"
#include "window.h"

#define GRADUAL_BYTES   (32ul << 20) /* of parameters that are adopted at a time where memory is short */
#define SUM_BYTES_WORTH (64ul << 10) /* a smaller sum is not worth the system calls of giving it back */

/* This rank holds nothing of the tensor any more; the last such rank gives its ranges back. */
static void ranges_leave(tensor *t) {
    store *s = t->store;
    uint32_t world = (uint32_t)s->world;
    if (atomic_fetch_add(&t->control->forgotten, 1) + 1 != world)
        return;
    if (t->single && s->demand) { /* other nodes may still read what this one keeps */
        demand_drop(t, CHUNK_GRAD);
        demand_drop(t, CHUNK_PARAM);
        return;
    }
    chunk_punch(&s->chunks, CHUNK_GRAD, t->grad_offset, t->param_alias ? t->sum_span : t->sum_bytes);
    if (!t->param_alias)
        return;
    /* Tied parameters share the range: it goes with the last of them. */
    for (const tensor *other = t->tied; other != t; other = other->tied)
        if (atomic_load(&other->control->forgotten) != world)
            return;
    chunk_punch(&s->chunks, CHUNK_PARAM, t->param_offset, t->span);
}

/* The arena frees a block over which a tensor's view is mapped: the tensor's memory is gone. */
static void on_block_freed(void *context, void *block) {
    tensor *first = context, *t = first;
    store *s = first->store;
    pthread_mutex_lock(&s->lock);
    do {
        if (t->home == block) {
            t->home = NULL;
            if (t->forgotten && t->mode == TENSOR_SHARED && !s->detached)
                ranges_leave(t);
        }
    } while ((t = t->tied) != first);
    pthread_mutex_unlock(&s->lock);
}

bool tensor_home_is_taken(const void *address) {
    const tensor *first = arena_adopted(address, on_block_freed);
    for (const tensor *t = first; t; t = t->tied == first ? NULL : t->tied)
        if (t->home == address)
            return true;
    return false;
}

bool tensor_is_mappable(const void *address, size_t bytes, bool whole) {
    return whole && pages_own(bytes) && arena_block_size(address) >= bytes && !tensor_home_is_taken(address);
}

static castor_status tensor_map_home(tensor *t, void *address) {
    pool_block *from_pool = pool_take_out(address);
    if (arena_adopted(address, on_block_freed) && !tensor_home_is_taken(address))
        arena_release(address); /* it was a home once, and has pages of its own since then */
    castor_status status = arena_adopt(address, on_block_freed, t);
    if (status)
        return status;
    status = pages_map_view(t->store->chunks.list[CHUNK_PARAM].fd, t->param_offset, t->span, address, NULL);
    if (status == CASTOR_OK)
        status = demand_watch(t, CHUNK_PARAM, address);
    if (status) {
        arena_release(address);
        return status;
    }
    chunk_units_map(&t->store->chunks, address, t->span);
    pool_leave(from_pool);
    t->home = address;
    return CASTOR_OK;
}

static castor_status tensor_make(store *s, const offer *offer, const keeper *keeper, tensor *same,
                                 tensor **out) {
    castor_status status = CASTOR_OK;
    if (s->tensor_count == STORE_TENSORS_MAX)
        return error_set(CASTOR_ERR_ARGUMENT, "more than %u parameters in one group", STORE_TENSORS_MAX);
    tensor **tensors = table_room(s->tensors, &s->tensor_capacity, s->tensor_count, sizeof *tensors);
    if (tensors)
        s->tensors = tensors;
    tensor *t = tensors ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the table of parameters");
    t->store = s;
    t->id = s->tensor_count;
    t->tied = t;
    t->dtype = (kernel_dtype)offer->dtype;
    t->sum_dtype = (kernel_dtype)offer->sum_dtype;
    t->numel = offer->numel;
    t->bytes = offer_bytes(offer);
    t->span = pages_round(t->bytes);
    t->sum_bytes = t->numel * kernel_dtype_bytes(t->sum_dtype);
    t->sum_span = pages_round(t->sum_bytes);
    t->blocks = (uint32_t)((t->sum_bytes + TENSOR_BLOCK_BYTES - 1) / TENSOR_BLOCK_BYTES);
    if (!t->blocks)
        t->blocks = 1; /* an empty tensor too has one turn for each rank */
    t->mode = offer->mappable ? TENSOR_SHARED : TENSOR_VALUE;
    t->control = store_tensor_control(s, t->id);
    t->owner = keeper->owner;
    t->node = keeper->node;
    size_t grad_bytes = t->mode == TENSOR_SHARED ? t->sum_span : t->sum_bytes ? t->sum_bytes : 1;
    size_t alignment = t->mode == TENSOR_SHARED ? PAGE_BYTES : TENSOR_VALUE_ALIGNMENT;
    t->sum_paged = t->mode == TENSOR_SHARED;
    t->unfilled = s->gradual && t->sum_paged;
    if ((status = (t->unfilled ? chunk_reserve : chunk_place)(&s->chunks, CHUNK_GRAD, t->owner, grad_bytes,
                                                              alignment, &t->grad_offset)) ||
        (status = chunk_alias(&s->chunks, CHUNK_GRAD, t->grad_offset, grad_bytes, &t->grad_alias)))
        goto fail;
    t->grad_chunk = chunk_index(&s->chunks, CHUNK_GRAD, t->grad_offset);
    if (t->mode == TENSOR_SHARED && same) {
        t->param_offset = same->param_offset;
        t->param_alias = same->param_alias;
        t->param_chunk = same->param_chunk;
    } else if (t->mode == TENSOR_SHARED) {
        if ((status = (s->gradual ? chunk_reserve : chunk_place)(&s->chunks, CHUNK_PARAM, t->owner, t->span,
                                                                 PAGE_BYTES, &t->param_offset)) ||
            (status = chunk_alias(&s->chunks, CHUNK_PARAM, t->param_offset, t->span, &t->param_alias)))
            goto fail;
        t->param_chunk = chunk_index(&s->chunks, CHUNK_PARAM, t->param_offset);
    }
    s->sum_bytes += t->sum_span;
    t->returnable =
        t->mode == TENSOR_SHARED && t->sum_span >= SUM_BYTES_WORTH &&
        (s->sum_returnable_bytes + t->sum_span) * 100 <= s->sum_bytes * (uint64_t)s->gradient_return;
    if (t->returnable)
        s->sum_returnable_bytes += t->sum_span;
    if (same) {
        t->tied = same->tied;
        same->tied = t;
    }
    s->tensors[s->tensor_count++] = t;
    *out = t;
    return CASTOR_OK;
fail:
    free(t);
    return status;
}

/* What one node only is to keep, and the aliases through which others see it. A tied parameter stays on all nodes. */
static castor_status tensor_place(const store *s, tensor *t) {
    t->single = t->node >= 0 && demand_worth(s, t->span) && t->tied == t;
    castor_status status = demand_watch(t, CHUNK_GRAD, t->grad_alias);
    return status || t->mode != TENSOR_SHARED ? status : demand_watch(t, CHUNK_PARAM, t->param_alias);
}

/* Gives back the states that this rank owns of tensors that no rank holds any more. */
static void states_sweep(store *s) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t id = 0; id < s->tensor_count; id++) {
        tensor *t = s->tensors[id];
        if (!t->states || atomic_load(&t->control->forgotten) != (uint32_t)s->world)
            continue;
        for (state_range *range = t->states, *next; range; range = next) {
            next = range->next;
            chunk_punch(&s->chunks, CHUNK_OPTIM, range->offset, range->bytes);
            free(range);
        }
        t->states = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Rank 0's value, into the parameter, or into the room of its sum; which can leave again. */
static castor_status value_write(tensor *t, const void *value) {
    store *s = t->store;
    bool shared = t->mode == TENSOR_SHARED;
    if (shared && s->gradual) {
        castor_status status = chunk_fill(&s->chunks, CHUNK_PARAM, t->param_offset, t->span);
        if (status)
            return store_fail(s, status);
    }
    memcpy(shared ? t->param_alias : t->grad_alias, value, t->bytes);
    if (shared && s->budget)
        madvise(t->param_alias, t->span, MADV_DONTNEED);
    return CASTOR_OK;
}

/* Of one parameter: rank 0's value into the private memory, or the store's pages over it. Returns elements by `adopted`. */
static castor_status value_take(tensor *t, void *address, bool tied, uint64_t *adopted) {
    castor_status status = CASTOR_OK;
    if (t->mode == TENSOR_VALUE && t->store->rank != 0 && !tied)
        memcpy(address, t->grad_alias, t->bytes);
    if (t->mode == TENSOR_SHARED && tied)
        t->home = address;
    else if (t->mode == TENSOR_SHARED && (status = tensor_map_home(t, address)) == CASTOR_OK)
        *adopted += t->numel;
    return status;
}

/* Rank 0's values win. Those of value tensors travel through the room of their sums. Gradually: so many at a time that what is
 * in the pool, or each rank's own, and what is in the store already are never much more than the model. */
static castor_status values_adopt(store *s, const tensor_description *descriptions, const offer *offers,
                                  tensor *const *made, uint32_t count) {
    castor_status status = CASTOR_OK;
    uint64_t adopted = 0;
    for (uint32_t from = 0, to = 0; from < count && !status; from = to) {
        uint64_t bytes = 0;
        do
            bytes += made[to++]->bytes;
        while (to < count && (!s->gradual || bytes + made[to]->bytes <= GRADUAL_BYTES));
        for (uint32_t i = from; i < to && s->rank == 0 && !status; i++)
            if (offers[i].same_as < 0)
                status = value_write(made[i], descriptions[i].address);
        if (status || (status = wait_barrier(s, "the adoption of parameters")))
            return status;
        for (uint32_t i = from; i < to && !status; i++)
            status = value_take(made[i], descriptions[i].address, offers[i].same_as >= 0, &adopted);
        if (status)
            store_fail(s, status);
    }
    trace_counter_add(GAUGE_MODEL_NUMEL, adopted);
    return status ? status : wait_barrier(s, "the adoption of parameters"); /* the room of the sums is free */
}

castor_status tensor_register(store *s, const tensor_description *descriptions, uint32_t count,
                              uint32_t *ids) {
    castor_status status = CASTOR_ERR_MEMORY;
    offer *offers = calloc(count + 1, sizeof *offers);
    uint32_t *order = calloc(count + 1, sizeof *order);
    keeper *keepers = calloc(count + 1, sizeof *keepers);
    tensor **made = calloc(count + 1, sizeof *made);
    if (!offers || !order || !keepers || !made) {
        error_set(CASTOR_ERR_MEMORY, "no memory to register %u parameters", count);
        goto done;
    }
    states_sweep(s);
    if ((status = offers_exchange(s, descriptions, count, offers)) ||
        (status = offers_agree(s, count, offers)))
        goto done;
    pthread_mutex_lock(&s->lock);
    s->gradual = count && offers[0].gradual; /* rank 0's word, on every rank */
    if (!s->chunks.chunk_bytes)
        status = offers_chunk_size(s, offers, count);
    offers_keepers(s, offers, count, order, keepers);
    /* In the model's order: what is used together lies together. */
    for (uint32_t i = 0; i < count && !status; i++) {
        tensor *same = offers[i].same_as >= 0 ? made[offers[i].same_as] : NULL;
        if ((status = tensor_make(s, &offers[i], &keepers[i], same, &made[i])) == CASTOR_OK)
            ids[i] = made[i]->id;
    }
    for (uint32_t i = 0; i < count && !status; i++) {
        made[i]->layout = descriptions[i].layout;
        status = tensor_place(s, made[i]);
    }
    if (status == CASTOR_OK && s->budget)
        status = s->bound->tensors_added(s);
    pthread_mutex_unlock(&s->lock);
    if (status) {
        store_fail(s, status);
        goto done;
    }
    status = values_adopt(s, descriptions, offers, made, count);
done:
    free(offers);
    free(order);
    free(keepers);
    free(made);
    return status;
}

castor_status tensor_state_place(tensor *t, size_t bytes, uint64_t *offset, char **alias) {
    store *s = t->store;
    bool paged = pages_own(bytes);
    size_t room = paged ? pages_round(bytes) : bytes;
    state_range *range = calloc(1, sizeof *range);
    if (!range)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the table of optimizer states");
    pthread_mutex_lock(&s->lock);
    castor_status status =
        chunk_place(&s->chunks, CHUNK_OPTIM, s->rank, room, paged ? PAGE_BYTES : 64, offset);
    if (status == CASTOR_OK)
        status = chunk_alias(&s->chunks, CHUNK_OPTIM, *offset, room, alias);
    if (status == CASTOR_OK) {
        *range = (state_range){*offset, room, t->states};
        t->states = range;
    } else {
        free(range);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

castor_status tensor_keep_home(tensor *t) {
    if (t->mode != TENSOR_SHARED || !t->home || t->store->detached)
        return CASTOR_OK;
    castor_status status = pages_privatize(t->home, t->span);
    if (status == CASTOR_OK)
        t->home = NULL; /* publications pass it by until the tensor has a home again */
    return status;
}

bool tensor_rehome(tensor *t, void *address) {
    if (t->mode != TENSOR_SHARED || t->store->detached)
        return false;
    if (t->home == address)
        return true;
    if (arena_block_size(address) < t->bytes)
        return false;
    t->store->changes++;
    if (tensor_keep_home(t) != CASTOR_OK)
        return false;
    return tensor_map_home(t, address) == CASTOR_OK;
}

castor_status tensor_release(tensor *t) {
    if (t->mode != TENSOR_SHARED)
        return CASTOR_OK;
    /* The pages become this process's own; the file stays mapped beneath them and is never shown again. */
    castor_status status = t->home ? pages_privatize(t->home, t->span) : CASTOR_OK;
    if (status == CASTOR_OK)
        t->mode = TENSOR_VALUE;
    return status;
}

void tensor_forget(tensor *t) {
    store *s = t->store;
    if (s->detached || t->forgotten || window_detach_all(t) != CASTOR_OK)
        return;
    pthread_mutex_lock(&s->lock);
    t->forgotten = true;
    snapshot_views_keep(t);
    window_unmap_returned(t);
    if (t->mode != TENSOR_SHARED || !t->home)
        ranges_leave(t);
    pthread_mutex_unlock(&s->lock);
}

uint32_t tensor_forgotten(store *s, uint8_t *out, uint32_t room) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t id = 0; id < s->tensor_count && id < room; id++) {
        const tensor *t = s->tensors[id];
        out[id] = t->single && !t->swept && atomic_load(&t->control->forgotten) == (uint32_t)s->world;
    }
    uint32_t count = s->tensor_count;
    pthread_mutex_unlock(&s->lock);
    return count;
}

void tensor_sweep(store *s, const uint8_t *gone, uint32_t count) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t id = 0; id < s->tensor_count && id < count; id++) {
        tensor *t = s->tensors[id];
        if (!gone[id] || t->owner != s->rank)
            continue;
        chunk_punch(&s->chunks, CHUNK_GRAD, t->grad_offset, t->sum_span);
        chunk_punch(&s->chunks, CHUNK_PARAM, t->param_offset, t->span);
        t->swept = true;
    }
    pthread_mutex_unlock(&s->lock);
}

bool tensor_check(store *s, const tensor *t) {
    const tensor_control *c = t->control;
    bool good =
        t->id < s->tensor_count && t->owner >= 0 && t->owner < s->world && t->released <= t->epoch + 1;
    /* A rank adds an epoch's blocks only after the rank before it has. They go on adding meanwhile: the later rank is
     * looked at first. */
    uint32_t later = good ? atomic_load(&c->rank[s->world - 1].added) : 0;
    for (int rank = s->world - 2; good && rank >= 0; rank--) {
        uint32_t added = atomic_load(&c->rank[rank].added);
        good = (int32_t)(added - later) >= 0;
        later = added;
    }
    if (!good)
        error_set(CASTOR_ERR_ARGUMENT, "tensor %u: its progress is out of order", t->id);
    return good;
}
