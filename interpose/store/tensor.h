/* The tensor registry: the parameters of a store.
 *
 * Modes
 *   shared   the parameter's bytes are the store's; the script's tensor is a view at its own address
 *   value    the parameter stays the script's private memory on each rank (too small for a page, or memory that is
 *            not Castor's to map over); only the sum of its gradients goes through the store
 */
#ifndef CASTOR_STORE_TENSOR_H
#define CASTOR_STORE_TENSOR_H

#include "kernels/kernels.h"
#include "store.h"

#define TENSOR_BLOCK_BYTES     (1ul << 20) /* the unit of ordered sums */
#define TENSOR_VALUE_ALIGNMENT 64          /* of the sums of value tensors */

typedef enum tensor_mode { TENSOR_VALUE, TENSOR_SHARED } tensor_mode;

/* A range of the owner's state chunks. */
typedef struct state_range {
    uint64_t offset, bytes;
    struct state_range *next;
} state_range;

/* Of a rank's gradient: gradients/gradient_state.h. */
typedef enum gradient_phase {
    GRADIENT_SUMMED,
    GRADIENT_MADE,
    GRADIENT_ADDED,
    GRADIENT_JOINED,
    GRADIENT_COMPLETE,
    GRADIENT_LOST,
    GRADIENT_PHASE_COUNT
} gradient_phase;
typedef enum gradient_carrying {
    GRADIENT_NOT_CARRIED,
    GRADIENT_CARRIED, /* the next backward adds to the sum */
    GRADIENT_CARRYING /* the running one does */
} gradient_carrying;
typedef struct gradient_state {
    uint8_t phase, carry;
    uint8_t elsewhere; /* the last sum is that of all nodes, and another node goes on from it */
} gradient_state;

struct window;
typedef struct tensor {
    store *store;
    uint32_t id;
    int owner;
    int node;    /* whose owner steps it, of several that shard; -1: each node's owner does */
    bool single; /* large enough that this node alone keeps it (demand.h) */
    tensor_mode mode;
    kernel_dtype dtype, sum_dtype; /* of the parameter; of its gradients and their sum */
    size_t numel, bytes, span;     /* span: bytes in whole pages */
    size_t sum_bytes, sum_span;    /* of the sum */
    uint32_t blocks;               /* of the sum */
    uint64_t param_offset, grad_offset;
    int32_t grad_chunk, param_chunk; /* the numbers of the chunks that hold them */
    char *binding; /* shared: the script's block, a view of the parameter range; NULL: none (binding.h) */
    const void
        *seen; /* not shared: where the script had it when the ranks last settled; NULL: they have not yet */
    uint64_t layout;   /* as it was registered */
    char *param_alias; /* shared */
    char *grad_alias;
    tensor_control *control;
    /* This rank's progress. */
    gradient_state gradient;
    uint32_t generation;     /* sums completed */
    uint32_t released;       /* sums released */
    uint32_t published_seen; /* publications whose pages were taken over */
    struct window *windows;  /* under store->lock */
    state_range *states;     /* of the owner, under store->lock */
    struct tensor *tied; /* the next one bound to the same block, in a ring; itself if there is no other */
    bool returnable;     /* the sum's memory may be given back while nobody reads it */
    bool sum_paged; /* the sum has whole pages of its own; as it was made, whatever the parameter is now */
    bool unfilled;  /* the sum has no memory before its first generation */
    uint32_t loan;  /* of the owner: its blocks may lie on the sum while nobody reads it; 0: none */
    bool lent;      /* the owner keeps its lease on the sum for its blocks; under store->lock */
    bool sum_continues; /* the next sum goes on from this one: its memory is not given back */
    _Atomic uint64_t
        yielded_bytes; /* of the arena's room, for this rank's part of a sum whose memory came back */
    bool forgotten;
    bool swept; /* single: its ranges were given back */
} tensor;

/* The script dropped the parameter. Its gradients get pages of their own and keep their values; the parameter's bytes stay until
 * its block is freed. When every rank has forgotten the tensor and freed its block, the chunk ranges are freed. */
void tensor_forget(tensor *t);

/* out[id]: every rank of this node has forgotten the tensor, one node alone keeps it, and its memory is still there. Returns the
 * number of tensors. */
uint32_t tensor_forgotten(store *s, uint8_t *out, uint32_t room);
/* Frees the ranges of those tensors that this rank owns: every rank of every node has forgotten them. */
void tensor_sweep(store *s, const uint8_t *gone, uint32_t count);

/* Back to the script's private memory, at the same address, with the bytes that this rank sees now. */
castor_status tensor_release(tensor *t);

/* Whether a block of the script's, as it lies there, can be mapped over with so many bytes. `whole`: DESCRIPTION_WHOLE. A
 * block that is a view already (of another store's, or of an earlier registration) cannot be mapped over twice. */
bool tensor_is_mappable(const void *address, size_t bytes, bool whole);
/* Maps the store's pages of the parameter's range over the block at the address, to which the tensor is bound from then on. */
castor_status tensor_bind(tensor *t, void *address);

/* The script replaced its tensor; the block at the old address gets pages of its own and keeps its values. */
castor_status tensor_unbind(tensor *t);

/* The script's tensor is now at `address` (it replaced p.data): maps the store over that block, if possible. Returns whether it
 * is bound to it now. On this rank only; the contents of the store do not change. */
bool tensor_rebind(tensor *t, void *address);

/* A range for a state of the tensor; its owner calls it. The range is given back when every rank has forgotten the tensor. */
castor_status tensor_state_allocate(tensor *t, size_t bytes, uint64_t *offset, char **alias);

/* The invariants hold (slow). On a violation writes what is wrong with error_set. */
bool store_check(store *s);

#endif
