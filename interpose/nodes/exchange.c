#include "exchange.h"

#include <stdlib.h>
#include "core/error.h"
#include "gradients/reduce.h"
#include "store/wait.h"

/* Where a tensor's bytes of the kind are. */
struct place {
    const tensor *tensor;
    uint64_t offset;
    int32_t chunk;
    char *address;
};

static struct place place_of(chunk_kind kind, const tensor *t) {
    return kind == CHUNK_GRAD ? (struct place){t, t->grad_offset, t->grad_chunk, t->grad_alias}
                              : (struct place){t, t->param_offset, t->param_chunk, t->param_alias};
}

static int by_offset(const void *a, const void *b) {
    uint64_t x = ((const struct place *)a)->offset, y = ((const struct place *)b)->offset;
    return (x > y) - (x < y);
}

/* Nothing lies between the two: another tensor's sum in a gap would be added twice. */
static bool adjacent(const struct place *place, const struct place *next) {
    const tensor *t = place->tensor;
    if (t->dtype != next->tensor->dtype || place->chunk != next->chunk)
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

static bool moves(chunk_kind kind, const tensor *t) {
    return t->numel && t->owner == t->store->rank && (kind == CHUNK_GRAD || t->mode == TENSOR_SHARED);
}

castor_status exchange_ranges(chunk_kind kind, tensor *const *tensors, uint32_t count, const uint8_t *wanted,
                              bool merge, exchange_range *out, uint32_t *ranges) {
    struct place *places = malloc((count + 1) * sizeof *places);
    if (!places)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the exchange of %u tensors", count);
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        if (wanted[i] && moves(kind, tensors[i]))
            places[found++] = place_of(kind, tensors[i]);
    if (merge)
        qsort(places, found, sizeof *places, by_offset);
    *ranges = 0;
    for (uint32_t i = 0; i < found; i++) {
        const tensor *t = places[i].tensor;
        if (merge && i && adjacent(&places[i - 1], &places[i]))
            range_extend(&out[*ranges - 1], &places[i]);
        else
            out[(*ranges)++] = (exchange_range){places[i].address, t->numel, t->dtype};
    }
    free(places);
    return CASTOR_OK;
}

castor_status exchange_settle(store *s, tensor *const *tensors, uint32_t count, uint8_t *used) {
    for (uint32_t i = 0; i < count; i++)
        if (used[i] && tensors[i]->owner == s->rank)
            reduce_used_elsewhere(tensors[i]);
    store_activity_set(s, ACTIVITY_BACKWARD);
    castor_status status = wait_barrier(s, "the exchange of gradients between the nodes");
    store_activity_set(s, ACTIVITY_SCRIPT);
    for (uint32_t i = 0; i < count && !status; i++)
        used[i] = reduce_was_used(tensors[i]);
    return status;
}
