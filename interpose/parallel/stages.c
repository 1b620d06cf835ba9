#include "stages.h"

#include <stdbool.h>
#include "base/error.h"

static uint64_t cost_of(const uint64_t *costs, uint32_t layer) {
    return costs ? costs[layer] : 1;
}

/* Whether the layers from `first` on fit into so many stages of at most `most` each. Empty stages count as well: with as many layers as
 * stages, a stage of several layers can give one to an empty one. */
static bool fits(const uint64_t *costs, uint32_t first, uint32_t layers, uint32_t stages, uint64_t most) {
    uint64_t room = 0;
    for (uint32_t i = first; i < layers; i++) {
        uint64_t cost = cost_of(costs, i);
        if (cost > most)
            return false;
        if (i == first || cost > room) {
            if (!stages--)
                return false;
            room = most;
        }
        room -= cost;
    }
    return true;
}

/* The least bound that fits; at most `sum`, which does. */
static uint64_t least_bound(const uint64_t *costs, uint32_t layers, uint32_t stages, uint64_t sum) {
    uint64_t low = 0, high = sum;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (fits(costs, 0, layers, stages, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

castor_status stages_divide(const uint64_t *costs, uint32_t layers, uint32_t stages, uint32_t *ends,
                            uint64_t *largest) {
    if (!stages || layers < stages)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "%u layers for %u pipeline stages: expected 1 or more stages, and a layer for each",
                         layers, stages);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < layers; i++)
        if (__builtin_add_overflow(sum, cost_of(costs, i), &sum))
            return error_set(CASTOR_ERR_ARGUMENT, "the costs of %u layers are beyond 64 bits", layers);
    uint64_t most = least_bound(costs, layers, stages, sum);
    uint32_t next = 0;
    for (uint32_t stage = 0; stage < stages; stage++) {
        uint32_t left = stages - stage;
        uint64_t share = sum / left + (sum % left != 0), used = 0;
        do {
            used += cost_of(costs, next++);
        } while (layers - next > left - 1 && /* a layer for each stage behind */
                 (left == 1 || cost_of(costs, next) <= most - used) &&
                 (left == 1 || used < share || !fits(costs, next, layers, left - 1, most)));
        ends[stage] = next;
        sum -= used;
    }
    *largest = most;
    return CASTOR_OK;
}
