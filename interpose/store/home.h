/* Homes: the script's memory over which a tensor of the store is mapped.
 *
 * Storage, first byte and layout together identify a home. The storage is a block of the arena. When the arena frees the block,
 * the tensor has no home any more (tensor.home is NULL): the next block at that address is another storage. The layout is one
 * number for dtype, shape and strides, the same on every rank.
 *
 * The script may give a parameter or one of its optimizer states other memory at any time, on all ranks or on one. From then on
 * that memory counts. Before a step the ranks agree on each parameter:
 *   stays    it is at home on every rank
 *   comes    some rank has it elsewhere, in the same layout, in a block that can be mapped over, and all ranks have the same
 *            values: the store takes these, and the block becomes the home
 *   leaves   anything else: the parameter stays where the script put it. Every rank steps it there by itself; its
 *            gradients are still summed
 *
 * Two registered tensors in overlapping memory leave, unless they were registered as one (tied) and are both at home. */
#ifndef CASTOR_STORE_HOME_H
#define CASTOR_STORE_HOME_H

#include "tensor.h"

typedef enum home_verdict { HOME_STAYS, HOME_COMES, HOME_LEAVES } home_verdict;

enum {
    HOME_WHOLE = 1,         /* the whole storage is this tensor, dense, from its first byte */
    HOME_STATES_AWAY = 2,   /* an optimizer state is elsewhere than in the store */
    HOME_STATES_REACHED = 4 /* ... and something else can reach its memory */
};

/* Where this rank's script has a tensor now. */
typedef struct home_claim {
    void *address; /* of its first byte */
    uint64_t layout;
    uint64_t bytes;  /* from the first byte to the end of the last */
    uint64_t states; /* a digest of its optimizer states, the same on ranks that have the same */
    int32_t flags;
    int32_t unused;
} home_claim;

/* A tensor that is not shared is at home where the ranks last saw it. */
bool home_is_at(const tensor *t, const void *address, uint64_t layout);

uint64_t home_digest(const void *data, size_t bytes);
/* Of what this rank alone sees at a tensor's home: the pages that it has written, which hold something else than the store. */
castor_status home_edits_digest(const tensor *t, uint64_t *digest);

/* On every rank, with the same tensors: the ranks agree on the verdicts and carry them out. Nodes compare them
 * (store_agreed_add). */
castor_status homes_settle(store *s, tensor *const *tensors, const home_claim *claims, uint32_t count,
                           uint8_t *verdicts);

#endif
