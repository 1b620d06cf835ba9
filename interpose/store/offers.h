/* What the ranks tell each other of the parameters that they register together, and what all make of it in the same way: which
 * parameters are mapped, who steps each, and how large chunks are. */
#ifndef CASTOR_STORE_OFFERS_H
#define CASTOR_STORE_OFFERS_H

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

typedef struct offer {
    uint64_t numel;
    int32_t dtype;
    int32_t mappable;
    int32_t sum_dtype;
    int32_t unused;
    int64_t same_as; /* index of an earlier parameter at the same address; -1 */
    int64_t gradual; /* the parameters lie in the pool: they are adopted without twice their memory */
} offer;

/* Who steps a parameter. */
typedef struct keeper {
    int owner;
    int node; /* tensor.node */
} keeper;

uint64_t offer_bytes(const offer *o);

/* This rank's, to all. */
castor_status offers_exchange(store *s, const tensor_description *descriptions, uint32_t count,
                              offer *offers);
/* Compares the ranks' offers. Every rank reads the same, so all come to the same verdict. */
castor_status offers_agree(store *s, uint32_t count, offer *agreed);

/* The rest under the store's lock. `order`: room for `count` numbers. */
void offers_keepers(store *s, const offer *offers, uint32_t count, uint32_t *order, keeper *out);
/* Before a store's first tensor, where the job has not named the size of its chunks. */
castor_status offers_chunk_size(store *s, const offer *offers, uint32_t count);

#endif
