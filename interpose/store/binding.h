/* Bindings: a tensor is bound to the script's memory over which its view is mapped.
 *
 * Storage, first byte and layout together identify a binding. The storage is a block of the arena. When the arena frees the
 * block, the tensor is bound to nothing (tensor.binding is NULL): the next block at that address is another storage. The layout
 * is one number for dtype, shape and strides, the same on every rank.
 *
 * The script may give a parameter or one of its optimizer states other memory at any time, on all ranks or on one. From then on
 * that memory counts. Before a step the ranks agree on each parameter:
 *   stays   on every rank it is where it is bound
 *   moves   some rank has it elsewhere, in the same layout, in a block that can be mapped over, and all ranks have the same
 *           values: the store takes these, and the parameter is bound to that block
 *   ends    anything else: the parameter stays where the script put it. Every rank steps it there by itself; its gradients are
 *           still summed
 *
 * The bindings of two registered tensors in overlapping memory end, unless these were registered as one (tied) and are both
 * where they are bound. */
#ifndef CASTOR_STORE_BINDING_H
#define CASTOR_STORE_BINDING_H

#include "tensor.h"

typedef enum binding_verdict { BINDING_STAYS, BINDING_MOVES, BINDING_ENDS } binding_verdict;

enum {
    BINDING_WHOLE = 1,         /* the whole storage is this tensor, dense, from its first byte */
    BINDING_STATES_AWAY = 2,   /* an optimizer state is elsewhere than in the store */
    BINDING_STATES_REACHED = 4 /* ... and something else can reach its memory */
};

/* Where this rank's script has a tensor now. */
typedef struct binding_claim {
    void *address; /* of its first byte */
    uint64_t layout;
    uint64_t bytes;  /* from the first byte to the end of the last */
    uint64_t states; /* a digest of its optimizer states, the same on ranks that have the same */
    int32_t flags;
    int32_t unused;
} binding_claim;

/* A tensor that is not shared counts as bound to where the ranks last saw it. */
bool binding_is_at(const tensor *t, const void *address, uint64_t layout);

uint64_t binding_digest(const void *data, size_t bytes);
/* Of what this rank alone sees of a tensor where it is bound: the pages that it has written, which hold something else than the
 * store. */
castor_status binding_edits_digest(const tensor *t, uint64_t *digest);

/* On every rank, with the same tensors: the ranks agree on the verdicts and carry them out. Nodes compare them
 * (store_agreed_add). */
castor_status bindings_settle(store *s, tensor *const *tensors, const binding_claim *claims, uint32_t count,
                              uint8_t *verdicts);

#endif
