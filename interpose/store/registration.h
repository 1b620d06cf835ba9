/* Registration: parameters become tensors of the store, with ranges in its chunks, and rank 0's values become everybody's. */
#ifndef CASTOR_STORE_REGISTRATION_H
#define CASTOR_STORE_REGISTRATION_H

#include "tensor.h"

enum { DESCRIPTION_WHOLE = 1, DESCRIPTION_FLOAT_SUM = 2 };

/* What is known of one parameter before it is registered. */
typedef struct tensor_description {
    void *address; /* of its first byte */
    uint64_t numel;
    int32_t dtype; /* kernel_dtype */
    int32_t
        flags; /* DESCRIPTION_WHOLE: the caller knows that the whole storage is this parameter, dense, from its first byte */
    uint64_t layout; /* one number for dtype, shape and strides, the same on every rank */
} tensor_description;

/* Registers parameters, on every rank together, and adopts those that all ranks can (rank 0's bytes win). ids[i]
 * is the id of description i. Errors: the ranks' parameters differ (all of them get the same text). */
castor_status tensor_register(store *s, const tensor_description *descriptions, uint32_t count,
                              uint32_t *ids);

/* How large chunks would have been chosen under another budget. */
uint64_t declarations_chunk_bytes_under(const store *s, uint64_t budget_bytes);

#endif
