#include "declarations.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "lazy/staging.h"
#include "placement/chunk_search.h"
#include "rank_values.h"
#include "wait.h"

#define CHUNKS_OF_BUDGET 64

uint64_t declaration_bytes(const declaration *o) {
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

castor_status declarations_exchange(store *s, const tensor_description *d, uint32_t count,
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

castor_status declarations_agree(store *s, uint32_t count, declaration *agreed) {
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

void declarations_assign(store *s, const declaration *declarations, uint32_t count, uint32_t *order,
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
    uint64_t part = budget_bytes / CHUNKS_OF_BUDGET;
    return part > s->chunks.unit_bytes ? part : s->chunks.unit_bytes;
}

uint64_t declarations_chunk_bytes_under(const store *s, uint64_t budget_bytes) {
    uint64_t most = chunk_most_bytes(s, budget_bytes), searched = s->chunks.searched_bytes;
    if (!searched)
        return s->chunks.chunk_bytes; /* the job has named it */
    return searched < most ? searched : most;
}

castor_status declarations_chunk_size(store *s, const declaration *declarations, uint32_t count) {
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
