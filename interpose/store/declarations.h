/* Declarations: each rank declares the parameters that it registers. From all ranks' declarations every rank derives the same
 * decisions: which parameters are mapped, who steps each, and how large chunks are. */
#ifndef CASTOR_STORE_DECLARATIONS_H
#define CASTOR_STORE_DECLARATIONS_H

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

uint64_t declaration_bytes(const declaration *o);

/* Makes this rank's declarations and shows them to all. A barrier. */
castor_status declarations_exchange(store *s, const tensor_description *descriptions, uint32_t count,
                                    declaration *declarations);
/* Compares the ranks' declarations. Every rank reads the same ones, so all decide alike. */
castor_status declarations_agree(store *s, uint32_t count, declaration *agreed);

/* The rest under the store's lock. `order`: room for `count` numbers. */
void declarations_assign(store *s, const declaration *declarations, uint32_t count, uint32_t *order,
                         assignment *out);
/* Before a store's first tensor, where the job has not named the size of its chunks. */
castor_status declarations_chunk_size(store *s, const declaration *declarations, uint32_t count);
/* What that would have chosen under another budget. */
uint64_t declarations_chunk_bytes_under(const store *s, uint64_t budget_bytes);

#endif
