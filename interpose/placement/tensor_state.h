/* The states of tensors, Gemini's, and the chunk's state that follows from them.
 *
 *   free                 nobody needs the bytes
 *   compute              an operation works on them: the chunk stays where it is
 *   hold                 they are needed later
 *   hold after backward  the backward of their operation is done, their gradient is still to come
 *   ready for reduce     the gradient is there
 *
 * A chunk computes if one of its tensors does; it is ready for reduce when all are. It may move unless it is in one of these
 * two states. */
#ifndef CASTOR_PLACEMENT_TENSOR_STATE_H
#define CASTOR_PLACEMENT_TENSOR_STATE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tensor_state {
    TENSOR_FREE,
    TENSOR_COMPUTE,
    TENSOR_HOLD,
    TENSOR_HOLD_AFTER_BACKWARD,
    TENSOR_READY_FOR_REDUCE,
    TENSOR_STATE_COUNT
} tensor_state;
extern const char *const tensor_state_names[TENSOR_STATE_COUNT];

/* How many tensors of a chunk are in each state. */
typedef struct tensor_state_counts {
    uint32_t of[TENSOR_STATE_COUNT];
} tensor_state_counts;

/* Staying in a state is no transition and always legal. */
bool tensor_state_legal(tensor_state from, tensor_state to);
/* A gradient may be ready before the backward of the tensor's operation ends; its end then says nothing. */
bool tensor_state_ignored(tensor_state from, tensor_state to);

tensor_state tensor_state_of_chunk(const tensor_state_counts *counts);
bool tensor_state_movable(tensor_state chunk_state);

#endif
