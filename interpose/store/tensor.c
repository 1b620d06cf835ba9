#include "tensor.h"

#include <stdlib.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/error.h"
#include "lazy/staging.h"
#include "demand.h"
#include "snapshot.h"
#include "window.h"

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
        if (t->binding == block) {
            t->binding = NULL;
            if (t->forgotten && t->mode == TENSOR_SHARED && !s->detached)
                ranges_leave(t);
        }
    } while ((t = t->tied) != first);
    pthread_mutex_unlock(&s->lock);
}

/* Whether some tensor of this process is bound to the block at the address. */
static bool is_bound(const void *address) {
    const tensor *first = arena_adopted(address, on_block_freed);
    for (const tensor *t = first; t; t = t->tied == first ? NULL : t->tied)
        if (t->binding == address)
            return true;
    return false;
}

bool tensor_is_mappable(const void *address, size_t bytes, bool whole) {
    return whole && pages_own(bytes) && arena_block_size(address) >= bytes && !is_bound(address);
}

castor_status tensor_bind(tensor *t, void *address) {
    staging_block *staged = staging_take_out(address);
    if (arena_adopted(address, on_block_freed) && !is_bound(address))
        arena_release(address); /* a tensor was bound to it once, and it has pages of its own since then */
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
    staging_leave(staged);
    t->binding = address;
    return CASTOR_OK;
}

castor_status tensor_state_allocate(tensor *t, size_t bytes, uint64_t *offset, char **alias) {
    store *s = t->store;
    bool paged = pages_own(bytes);
    size_t room = paged ? pages_round(bytes) : bytes;
    state_range *range = calloc(1, sizeof *range);
    if (!range)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the table of optimizer states");
    pthread_mutex_lock(&s->lock);
    castor_status status =
        chunk_allocate(&s->chunks, CHUNK_OPTIM, s->rank, room, paged ? PAGE_BYTES : 64, offset);
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

castor_status tensor_unbind(tensor *t) {
    if (t->mode != TENSOR_SHARED || !t->binding || t->store->detached)
        return CASTOR_OK;
    castor_status status = pages_privatize(t->binding, t->span);
    if (status == CASTOR_OK)
        t->binding = NULL; /* publications pass it by until the tensor is bound again */
    return status;
}

bool tensor_rebind(tensor *t, void *address) {
    if (t->mode != TENSOR_SHARED || t->store->detached)
        return false;
    if (t->binding == address)
        return true;
    if (arena_block_size(address) < t->bytes)
        return false;
    t->store->changes++;
    if (tensor_unbind(t) != CASTOR_OK)
        return false;
    return tensor_bind(t, address) == CASTOR_OK;
}

castor_status tensor_release(tensor *t) {
    if (t->mode != TENSOR_SHARED)
        return CASTOR_OK;
    /* The pages become this process's own; the file stays mapped beneath them and is never shown again. */
    castor_status status = t->binding ? pages_privatize(t->binding, t->span) : CASTOR_OK;
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
    window_loan_end(t);
    if (t->mode != TENSOR_SHARED || !t->binding)
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

static bool tensor_check(store *s, const tensor *t) {
    const tensor_control *c = t->control;
    bool good = t->id < s->tensor_count && t->owner >= 0 && t->owner < s->world &&
                (int32_t)(t->released - t->generation) <= 1;
    /* A rank adds a generation's blocks only after the rank before it has. They go on adding meanwhile: the later rank is
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

static bool chunks_check(const store *s, chunk_kind kind) {
    const chunk_list *list = &s->chunks.list[kind];
    uint64_t end = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const chunk *c = &list->chunks[i];
        if (c->used > c->bytes || (kind != CHUNK_OPTIM && c->offset < end)) {
            error_set(CASTOR_ERR_ARGUMENT, "%s chunk %u overlaps or is overfull", chunk_kind_names[kind], i);
            return false;
        }
        end = c->offset + c->bytes;
    }
    return true;
}

bool store_check(store *s) {
    pthread_mutex_lock(&s->lock);
    bool good = s->control->magic == STORE_MAGIC && s->control->world == s->world;
    if (!good)
        error_set(CASTOR_ERR_ARGUMENT, "the store's control block is damaged");
    for (int kind = 0; good && kind < CHUNK_KIND_COUNT; kind++)
        good = chunks_check(s, kind);
    for (uint32_t id = 0; good && id < s->tensor_count; id++)
        good = tensor_check(s, s->tensors[id]);
    pthread_mutex_unlock(&s->lock);
    return good;
}
