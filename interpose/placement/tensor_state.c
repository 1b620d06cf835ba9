#include "tensor_state.h"

const char *const tensor_state_names[TENSOR_STATE_COUNT] = {"free", "compute", "hold", "hold after backward",
                                                            "ready for reduce"};

#define TO(state) (1u << TENSOR_##state)

static const uint8_t next[TENSOR_STATE_COUNT] = {
    [TENSOR_FREE] = TO(HOLD) | TO(COMPUTE),
    [TENSOR_COMPUTE] = TO(HOLD) | TO(HOLD_AFTER_BACKWARD) | TO(READY_FOR_REDUCE),
    [TENSOR_HOLD] = TO(FREE) | TO(COMPUTE),
    [TENSOR_HOLD_AFTER_BACKWARD] = TO(COMPUTE) | TO(READY_FOR_REDUCE),
    [TENSOR_READY_FOR_REDUCE] = TO(HOLD),
};

bool tensor_state_legal(tensor_state from, tensor_state to) {
    return from < TENSOR_STATE_COUNT && to < TENSOR_STATE_COUNT &&
           (from == to || (next[from] >> to & 1) || tensor_state_ignored(from, to));
}

bool tensor_state_ignored(tensor_state from, tensor_state to) {
    return from == TENSOR_READY_FOR_REDUCE && to == TENSOR_HOLD_AFTER_BACKWARD;
}

tensor_state tensor_state_of_chunk(const tensor_state_counts *counts) {
    if (counts->of[TENSOR_COMPUTE])
        return TENSOR_COMPUTE;
    uint32_t ready = counts->of[TENSOR_READY_FOR_REDUCE], after = counts->of[TENSOR_HOLD_AFTER_BACKWARD];
    uint32_t others = counts->of[TENSOR_FREE] + counts->of[TENSOR_HOLD];
    if (ready && !after && !others)
        return TENSOR_READY_FOR_REDUCE;
    if (ready || after)
        return TENSOR_HOLD_AFTER_BACKWARD;
    return counts->of[TENSOR_HOLD] ? TENSOR_HOLD : TENSOR_FREE;
}

bool tensor_state_movable(tensor_state chunk_state) {
    return chunk_state != TENSOR_COMPUTE && chunk_state != TENSOR_READY_FOR_REDUCE;
}
