#include "registration.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "lazy/staging.h"
#include "placement/chunk_search.h"
#include "trace/trace.h"
#include "demand.h"
#include "wait.h"
#include "tensor.h"
#include "window.h"

/* Declarations: each rank declares the parameters that it registers. From all ranks' declarations every rank derives the same
 * decisions: which parameters are mapped, who steps each, and how large chunks are. */
typedef struct declaration {
    uint64_t numel;
    int32_t dtype;
    int32_t mappable;
    int32_t sum_dtype;
    int32_t unused;
    int64_t same_as; /* index of an earlier parameter at the same address; -1 */
    int64_t
        gradual; /* the parameters are staged (lazy/): they are adopted in parts, without twice their memory */
} declaration;

/* Who steps a parameter. */
typedef struct assignment {
    int owner;
    int node; /* tensor.node */
} assignment;

#define CHUNKS_OF_BUDGET 64

static uint64_t declaration_bytes(const declaration *o) {
    return o->numel * kernel_dtype_bytes((kernel_dtype)o->dtype);
}

static bool is_same(const tensor_description *a, const tensor_description *b) {
    return a->address == b->address && a->numel == b->numel && a->dtype == b->dtype;
}

/* Tied parameters: the later ones name the first. A table of positions with open addressing, at most half full. */
static castor_status find_tied(const tensor_description *d, uint32_t count, declaration *declarations) {
    uint64_t slots = 2;
    while (slots < 2ul * count)
        slots *= 2;
    uint32_t *first = calloc(slots, sizeof *first); /* a position + 1; 0: free */
    if (!first)
        return error_set(CASTOR_ERR_MEMORY, "no memory to register %u parameters", count);
    for (uint32_t i = 0; i < count; i++) {
        if (!d[i].numel)
            continue;
        uint64_t hash = (uintptr_t)d[i].address * 0x9e3779b97f4a7c15ull, slot = hash ^ hash >> 32;
        while (first[slot &= slots - 1] && !is_same(&d[first[slot] - 1], &d[i]))
            slot++;
        if (first[slot])
            declarations[i].same_as = first[slot] - 1;
        else
            first[slot] = i + 1;
    }
    free(first);
    return CASTOR_OK;
}

/* Makes this rank's declarations and shows them to all. A barrier. */
static castor_status declarations_exchange(store *s, const tensor_description *d, uint32_t count,
                                           declaration *declarations) {
    bool gradual = staging_in_use() && !s->bounded;
    for (uint32_t i = 0; i < count; i++) {
        if (d[i].flags & DESCRIPTION_FLOAT_SUM && s->node_count > 1)
            return error_set(CASTOR_ERR_UNSUPPORTED,
                             "float sums of 16-bit parameters work on one node: use CASTOR_PRECISION=bf16");
        size_t bytes = d[i].numel * kernel_dtype_bytes((kernel_dtype)d[i].dtype);
        int32_t sum_dtype = d[i].flags & DESCRIPTION_FLOAT_SUM ? KERNEL_F32 : d[i].dtype;
        declarations[i] = (declaration){d[i].numel, d[i].dtype, 0, sum_dtype, 0, -1, gradual};
        declarations[i].mappable = tensor_is_mappable(d[i].address, bytes, d[i].flags & DESCRIPTION_WHOLE);
    }
    castor_status status = find_tied(d, count, declarations);
    if (status)
        return status;
    status = store_exchange_put(s, EXCHANGE_CALL, declarations, count * sizeof *declarations);
    if (status)
        return status;
    return wait_barrier(s, "the registration of parameters");
}

/* Compares the ranks' declarations. Every rank reads the same ones, so all decide alike. */
static castor_status declarations_agree(store *s, uint32_t count, declaration *agreed) {
    size_t bytes0;
    const declaration *first = store_exchange_get(s, EXCHANGE_CALL, 0, &bytes0);
    if (count > bytes0 / sizeof *first)
        count = (uint32_t)(bytes0 / sizeof *first); /* the rest of the area holds no declaration */
    memcpy(agreed, first, count * sizeof *agreed);
    for (int rank = 1; rank < s->world; rank++) {
        size_t bytes;
        const declaration *theirs = store_exchange_get(s, EXCHANGE_CALL, rank, &bytes);
        if (bytes != bytes0)
            return error_set(
                CASTOR_ERR_MISMATCH,
                "the ranks' models differ: rank %d has %lu parameters to share, rank %d has %lu. Build "
                "the same model on every rank",
                store_job_rank(s, 0), (unsigned long)(bytes0 / sizeof *first), store_job_rank(s, rank),
                (unsigned long)(bytes / sizeof *first));
        for (uint32_t i = 0; i < count; i++) {
            if (theirs[i].numel != first[i].numel || theirs[i].dtype != first[i].dtype ||
                theirs[i].sum_dtype != first[i].sum_dtype)
                return error_set(
                    CASTOR_ERR_MISMATCH,
                    "the ranks' models differ: parameter %u has %lu elements on rank %d and %lu on rank "
                    "%d (or another dtype). Build the same model on every rank",
                    i, (unsigned long)first[i].numel, store_job_rank(s, 0), (unsigned long)theirs[i].numel,
                    store_job_rank(s, rank));
            agreed[i].mappable &= theirs[i].mappable;
            if (theirs[i].same_as != first[i].same_as)
                agreed[i].same_as = -1, agreed[i].mappable = 0;
        }
    }
    /* Tied parameters are mapped together or not at all. */
    for (uint32_t i = 0; i < count; i++)
        if (agreed[i].same_as >= 0 && !agreed[i].mappable)
            agreed[agreed[i].same_as].mappable = 0;
    for (uint32_t i = 0; i < count; i++)
        if (agreed[i].same_as >= 0)
            agreed[i].mappable = agreed[agreed[i].same_as].mappable;
    return CASTOR_OK;
}

static int least_loaded(const store *s) {
    int owner = 0;
    for (int rank = 1; rank < s->owners; rank++)
        if (s->owner_load[rank] < s->owner_load[owner])
            owner = rank;
    return owner;
}

/* Of an owner's tensors each goes to the node that has least of them. */
static int least_loaded_node(const store *s, int owner) {
    const uint64_t *load = s->node_load + (size_t)owner * (size_t)s->node_count;
    int least = 0;
    for (int node = 1; node < s->node_count; node++)
        if (load[node] < load[least])
            least = node;
    return least;
}

/* Largest first, so that ownership comes out even; equal sizes in the order given. */
static const declaration *sort_declarations;
static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint64_t bx = declaration_bytes(&sort_declarations[x]), by = declaration_bytes(&sort_declarations[y]);
    return bx != by ? (bx < by) - (bx > by) : (x > y) - (x < y);
}

/* The rest under the store's lock. `order`: room for `count` numbers. */
static void declarations_assign(store *s, const declaration *declarations, uint32_t count, uint32_t *order,
                                assignment *out) {
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    sort_declarations = declarations;
    qsort(order, count, sizeof *order, by_size);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = order[k];
        const declaration *declaration = &declarations[i];
        if (declaration->same_as >= 0) {
            out[i] = out[declaration->same_as]; /* of the same size, and earlier */
            continue;
        }
        int owner = least_loaded(s);
        int node = s->node_count == 1 || !declaration->mappable ? -1 : least_loaded_node(s, owner);
        out[i] = (assignment){owner, node};
        if (!declaration->mappable)
            continue;
        s->owner_load[owner] += declaration_bytes(declaration);
        if (node >= 0)
            s->node_load[(size_t)owner * (size_t)s->node_count + (size_t)node] +=
                declaration_bytes(declaration);
    }
}

/* Under a budget chunks are small beside it: some are used while others come and go. Not smaller than what one fault reads. */
static uint64_t chunk_most_bytes(const store *s, uint64_t budget_bytes) {
    if (!budget_bytes)
        return UINT64_MAX;
    uint64_t bytes = budget_bytes / CHUNKS_OF_BUDGET;
    return bytes > s->chunks.unit_bytes ? bytes : s->chunks.unit_bytes;
}

uint64_t declarations_chunk_bytes_under(const store *s, uint64_t budget_bytes) {
    uint64_t most = chunk_most_bytes(s, budget_bytes), searched = s->chunks.searched_bytes;
    if (!searched)
        return s->chunks.chunk_bytes; /* the job has named it */
    return searched < most ? searched : most;
}

/* Before a store's first tensor, where the job has not named the size of its chunks. */
static castor_status declarations_chunk_size(store *s, const declaration *declarations, uint32_t count) {
    uint64_t *numel = calloc(count + 1, sizeof *numel), parameters = 0, widest = 1;
    if (!numel)
        return error_set(CASTOR_ERR_MEMORY, "no memory to register %u parameters", count);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = kernel_dtype_bytes((kernel_dtype)declarations[i].dtype);
        widest = bytes > widest ? bytes : widest;
        if (declarations[i].same_as < 0)
            numel[parameters++] = declarations[i].numel;
    }
    castor_status status = chunk_search_set(&s->chunks, numel, parameters, (uint64_t)s->owners, widest,
                                            chunk_most_bytes(s, s->budget_bytes));
    free(numel);
    if (status == CASTOR_OK && s->rank == 0 && s->chunks.chunk_bytes)
        LOG_D("chunks of %B, for %lu parameter tensors; %B of them stay free (CASTOR_CHUNK_SIZE=auto)",
              s->chunks.chunk_bytes, (unsigned long)parameters, s->chunks.wasted_bytes);
    return status;
}

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
        t->binding = address;
    else if (t->mode == TENSOR_SHARED && (status = tensor_bind(t, address)) == CASTOR_OK)
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
