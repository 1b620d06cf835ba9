#include "exchange.h"

#include <stdlib.h>
#include "base/error.h"
#include "base/hash.h"
#include "gradients/gradient_state.h"
#include "gradients/reduce.h"
#include "store/demand.h"
#include "store/wait.h"

/* Where something lies that is exchanged. */
struct place {
    const tensor *tensor;
    uint32_t index;      /* of the tensor, as the caller counts */
    int32_t node, chunk; /* node: exchange_range.node */
    uint64_t offset;
    char *address;
};

static bool is_mine(const tensor *t) {
    return t->owner == t->store->rank;
}

/* false: it does not move. */
static bool place_of(exchange_what what, const tensor *t, uint32_t index, struct place *out) {
    chunk_kind kind = what == EXCHANGE_PARAMETERS ? CHUNK_PARAM : CHUNK_GRAD;
    bool single = demand_single(t, kind);
    if (!t->numel || !is_mine(t) || (what != EXCHANGE_SUMS && (t->node < 0 || single)))
        return false;
    if (kind == CHUNK_PARAM && t->mode != TENSOR_SHARED)
        return false;
    int32_t node = what == EXCHANGE_SUMS && !single ? -1 : t->node;
    *out = kind == CHUNK_GRAD
               ? (struct place){t, index, node, t->grad_chunk, t->grad_offset, t->grad_alias}
               : (struct place){t, index, node, t->param_chunk, t->param_offset, t->param_alias};
    return true;
}

static int by_node(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_node_and_offset(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->node != y->node || x->offset == y->offset)
        return by_node(a, b);
    return x->offset < y->offset ? -1 : 1;
}

/* Nothing lies between the two: another tensor's sum in a gap would be added twice. */
static bool adjacent(const struct place *place, const struct place *next) {
    const tensor *t = place->tensor;
    if (t->dtype != next->tensor->dtype || place->chunk != next->chunk || place->node != next->node)
        return false;
    if (t->mode == TENSOR_SHARED)
        return place->offset + t->span == next->offset;
    size_t room = (t->bytes + TENSOR_VALUE_ALIGNMENT - 1) / TENSOR_VALUE_ALIGNMENT * TENSOR_VALUE_ALIGNMENT;
    return next->tensor->mode == TENSOR_VALUE && place->offset + room == next->offset;
}

static void range_extend(exchange_range *range, const struct place *next) {
    size_t bytes = (size_t)(next->address - (char *)range->address) + next->tensor->bytes;
    range->numel = bytes / kernel_dtype_bytes(next->tensor->dtype);
}

/* In the order of the exchange; free() gives them back. `wanted` NULL: all of them. */
static castor_status places_find(exchange_what what, tensor *const *tensors, uint32_t count,
                                 const uint8_t *wanted, bool merge, struct place **out, uint32_t *found) {
    struct place *places = *out = malloc((count + 1) * sizeof *places);
    *found = 0;
    if (!places)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the exchange of %u tensors", count);
    for (uint32_t i = 0; i < count; i++)
        if ((!wanted || wanted[i]) && place_of(what, tensors[i], i, &places[*found]))
            ++*found;
    qsort(places, *found, sizeof *places, merge ? by_node_and_offset : by_node);
    return CASTOR_OK;
}

castor_status exchange_ranges(exchange_what what, tensor *const *tensors, uint32_t count,
                              const uint8_t *wanted, bool merge, exchange_range *out, uint32_t *ranges) {
    struct place *places;
    uint32_t found;
    castor_status status = places_find(what, tensors, count, wanted, merge, &places, &found);
    *ranges = 0;
    for (uint32_t i = 0; i < found; i++) {
        const tensor *t = places[i].tensor;
        if (merge && i && adjacent(&places[i - 1], &places[i]))
            range_extend(&out[*ranges - 1], &places[i]);
        else
            out[(*ranges)++] = (exchange_range){places[i].address, t->numel, t->dtype, places[i].node};
    }
    free(places);
    return status;
}

castor_status exchange_layout(exchange_what what, tensor *const *tensors, uint32_t count, uint64_t *digest) {
    struct place *places;
    uint32_t found;
    castor_status status = places_find(what, tensors, count, NULL, true, &places, &found);
    *digest = 0;
    for (uint32_t i = 0; i < found; i++) {
        bool joined = i && adjacent(&places[i - 1], &places[i]);
        uint64_t told[] = {places[i].index, places[i].tensor->mode,
                           joined ? places[i].offset - places[i - 1].offset : 0};
        *digest = hash_bytes(*digest, told, sizeof told);
    }
    *digest >>= 1;
    free(places);
    return status;
}

uint32_t exchange_units(tensor *const *tensors, uint32_t count, const uint8_t *used, int32_t *unit,
                        uint32_t *waits) {
    uint32_t units = 0, passed = 0;
    uint64_t bytes = 0;
    bool begun = false;
    for (uint32_t i = count; i-- > 0;) {
        unit[i] = -1;
        if (!used[i])
            continue;
        passed++;
        if (!is_mine(tensors[i]))
            continue;
        unit[i] = (int32_t)units;
        begun = true;
        bytes += tensors[i]->bytes;
        if (bytes < EXCHANGE_UNIT_BYTES)
            continue;
        waits[units++] = passed;
        bytes = 0;
        begun = false;
    }
    if (begun)
        waits[units++] = passed;
    return units;
}

void exchange_registered(store *s, uint64_t chunk_bytes, tensor *const *tensors, uint32_t count) {
    store_agreed_add(s, &chunk_bytes, sizeof chunk_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const tensor *t = tensors[i];
        uint64_t told[] = {t->bytes, t->layout, t->mode, (uint64_t)t->owner, (uint64_t)t->node};
        store_agreed_add(s, told, sizeof told);
    }
}

castor_status exchange_settle(store *s, int node, tensor *const *tensors, uint32_t count, uint8_t *used) {
    for (uint32_t i = 0; i < count; i++)
        if (used[i] && tensors[i]->owner == s->rank)
            reduce_used_elsewhere(tensors[i]);
    store_activity_set(s, ACTIVITY_BACKWARD);
    castor_status status = wait_barrier(s, "the exchange of gradients between the nodes");
    store_activity_set(s, ACTIVITY_SCRIPT);
    for (uint32_t i = 0; i < count && !status; i++) {
        used[i] = reduce_was_used(tensors[i]);
        gradient_settle(tensors[i], used[i], node);
    }
    return status;
}
