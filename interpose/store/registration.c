#include "registration.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/table.h"
#include "trace/trace.h"
#include "demand.h"
#include "wait.h"
#include "window.h"

#define GRADUAL_BYTES   (32ul << 20) /* of parameters that are adopted at a time where memory is short */
#define SUM_BYTES_WORTH (64ul << 10) /* a smaller sum is not worth the system calls of giving it back */

/* The ranges of the tensor's sum and, unless it is tied to `same`, of its bytes. */
static castor_status ranges_allocate(tensor *t, const tensor *same) {
    store *s = t->store;
    bool shared = t->mode == TENSOR_SHARED;
    size_t grad_bytes = shared ? t->sum_span : t->sum_bytes ? t->sum_bytes : 1;
    size_t alignment = shared ? PAGE_BYTES : TENSOR_VALUE_ALIGNMENT;
    castor_status status = (t->unfilled ? chunk_reserve : chunk_allocate)(
        &s->chunks, CHUNK_GRAD, t->owner, grad_bytes, alignment, &t->grad_offset);
    if (status == CASTOR_OK)
        status = chunk_alias(&s->chunks, CHUNK_GRAD, t->grad_offset, grad_bytes, &t->grad_alias);
    if (status)
        return status;
    t->grad_chunk = chunk_index(&s->chunks, CHUNK_GRAD, t->grad_offset);
    if (!shared)
        return CASTOR_OK;
    if (same) {
        t->param_offset = same->param_offset;
        t->param_alias = same->param_alias;
        t->param_chunk = same->param_chunk;
        return CASTOR_OK;
    }
    status = (s->gradual ? chunk_reserve : chunk_allocate)(&s->chunks, CHUNK_PARAM, t->owner, t->span,
                                                           PAGE_BYTES, &t->param_offset);
    if (status == CASTOR_OK)
        status = chunk_alias(&s->chunks, CHUNK_PARAM, t->param_offset, t->span, &t->param_alias);
    if (status == CASTOR_OK)
        t->param_chunk = chunk_index(&s->chunks, CHUNK_PARAM, t->param_offset);
    return status;
}

/* Whether the sum's memory may be given back: as many sums as CASTOR_GRADIENT_RETURN says, by bytes. */
static void sum_return_decide(tensor *t) {
    store *s = t->store;
    s->sum_bytes += t->sum_span;
    t->returnable =
        t->mode == TENSOR_SHARED && t->sum_span >= SUM_BYTES_WORTH &&
        (s->sum_returnable_bytes + t->sum_span) * 100 <= s->sum_bytes * (uint64_t)s->gradient_return;
    if (t->returnable)
        s->sum_returnable_bytes += t->sum_span;
}

static castor_status tensor_make(store *s, const declaration *declaration, const assignment *assignment,
                                 tensor *same, tensor **out) {
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
    t->dtype = (kernel_dtype)declaration->dtype;
    t->sum_dtype = (kernel_dtype)declaration->sum_dtype;
    t->numel = declaration->numel;
    t->bytes = declaration_bytes(declaration);
    t->span = pages_round(t->bytes);
    t->sum_bytes = t->numel * kernel_dtype_bytes(t->sum_dtype);
    t->sum_span = pages_round(t->sum_bytes);
    t->blocks = (uint32_t)((t->sum_bytes + TENSOR_BLOCK_BYTES - 1) / TENSOR_BLOCK_BYTES);
    if (!t->blocks)
        t->blocks = 1; /* an empty tensor too has one turn for each rank */
    t->mode = declaration->mappable ? TENSOR_SHARED : TENSOR_VALUE;
    t->control = store_tensor_control(s, t->id);
    t->owner = assignment->owner;
    t->node = assignment->node;
    t->sum_paged = t->mode == TENSOR_SHARED;
    t->unfilled = s->gradual && t->sum_paged;
    castor_status status = ranges_allocate(t, same);
    if (status) {
        free(t);
        return status;
    }
    sum_return_decide(t);
    window_lease_begin(t);
    if (same) {
        t->tied = same->tied;
        same->tied = t;
    }
    s->tensors[s->tensor_count++] = t;
    *out = t;
    return CASTOR_OK;
}

/* Decides whether one node alone keeps the tensor, and watches the aliases through which other nodes see it. A tied parameter
 * stays on all nodes. */
static castor_status tensor_paging_start(const store *s, tensor *t) {
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
    if (shared && s->bounded)
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

/* Rank 0's values win. Those of value tensors go through the memory of their sums. Where memory is short they go in parts, so
 * that the staging area, or the ranks' own copies, and the store together never need much more than the model. */
static castor_status values_adopt(store *s, const tensor_description *descriptions,
                                  const declaration *declarations, tensor *const *made, uint32_t count) {
    castor_status status = CASTOR_OK;
    uint64_t adopted = 0;
    for (uint32_t from = 0, to = 0; from < count && !status; from = to) {
        uint64_t bytes = 0;
        do
            bytes += made[to++]->bytes;
        while (to < count && (!s->gradual || bytes + made[to]->bytes <= GRADUAL_BYTES));
        for (uint32_t i = from; i < to && s->rank == 0 && !status; i++)
            if (declarations[i].same_as < 0)
                status = value_write(made[i], descriptions[i].address);
        if (status || (status = wait_barrier(s, "the adoption of parameters")))
            return status;
        for (uint32_t i = from; i < to && !status; i++)
            status = value_take(made[i], descriptions[i].address, declarations[i].same_as >= 0, &adopted);
        if (status)
            store_fail(s, status);
    }
    trace_counter_add(GAUGE_MODEL_NUMEL, adopted);
    if (status == CASTOR_OK)
        status = wait_barrier(s, "the adoption of parameters"); /* the room of the sums is free */
    if (status == CASTOR_OK)
        status = window_loans_add(made, count);
    return status;
}

castor_status tensor_register(store *s, const tensor_description *descriptions, uint32_t count,
                              uint32_t *ids) {
    castor_status status = CASTOR_ERR_MEMORY;
    declaration *declarations = calloc(count + 1, sizeof *declarations);
    uint32_t *order = calloc(count + 1, sizeof *order);
    assignment *assignments = calloc(count + 1, sizeof *assignments);
    tensor **made = calloc(count + 1, sizeof *made);
    if (!declarations || !order || !assignments || !made) {
        error_set(CASTOR_ERR_MEMORY, "no memory to register %u parameters", count);
        goto done;
    }
    states_sweep(s);
    if ((status = declarations_exchange(s, descriptions, count, declarations)) ||
        (status = declarations_agree(s, count, declarations)))
        goto done;
    pthread_mutex_lock(&s->lock);
    s->gradual = count && declarations[0].gradual; /* rank 0's word, on every rank */
    if (!s->chunks.chunk_bytes)
        status = declarations_chunk_size(s, declarations, count);
    declarations_assign(s, declarations, count, order, assignments);
    /* In the model's order: what is used together lies together. */
    for (uint32_t i = 0; i < count && !status; i++) {
        tensor *same = declarations[i].same_as >= 0 ? made[declarations[i].same_as] : NULL;
        if ((status = tensor_make(s, &declarations[i], &assignments[i], same, &made[i])) == CASTOR_OK)
            ids[i] = made[i]->id;
    }
    for (uint32_t i = 0; i < count && !status; i++) {
        made[i]->layout = descriptions[i].layout;
        status = tensor_paging_start(s, made[i]);
    }
    if (status == CASTOR_OK && s->bounded)
        status = s->bound->tensors_added(s);
    pthread_mutex_unlock(&s->lock);
    if (status) {
        store_fail(s, status);
        goto done;
    }
    status = values_adopt(s, descriptions, declarations, made, count);
done:
    free(declarations);
    free(order);
    free(assignments);
    free(made);
    return status;
}
