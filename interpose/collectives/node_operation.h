/* One operation of a group, as a rank goes through it: its own slot, and those of the others. Private to node_*.c. */
#ifndef CASTOR_COLLECTIVES_NODE_OPERATION_H
#define CASTOR_COLLECTIVES_NODE_OPERATION_H

#include "node_collective.h"
#include "node_slots.h"

typedef enum node_kind {
    NODE_ALLREDUCE = 1,
    NODE_REDUCE,
    NODE_BROADCAST,
    NODE_ALLGATHER,
    NODE_GATHER,
    NODE_SCATTER,
    NODE_ALLTOALL,
    NODE_BARRIER
} node_kind;

#define NODE_EVERYONE (-1)

typedef struct node_operation {
    node_group *g;
    uint64_t key;
    double deadline;
    node_shape shape;
    int first;                /* the thread's own slots: this one and the next */
    int own;                  /* index of this rank's slot, -1: it offers nothing */
    bool untold;              /* it has offered or read without waking anybody */
    uint32_t cells;           /* of its offers */
    int slot[NODE_RANKS_MAX]; /* of each other rank, -1: not seen yet */
} node_operation;

castor_status node_prepare(node_operation *op, node_group *g, const node_call *call, node_shape shape);

/* Takes one of the thread's two slots, for `reader` or for everyone else. Nobody reads it before an offer. */
castor_status node_slot_take(node_operation *op, int reader);
/* The first `steps` steps are there. node_offer_quietly wakes nobody; sleepers are woken before this rank waits, or by the next
 * node_offer or node_offer_reduced. */
void node_offer(node_operation *op, uint64_t steps);
void node_offer_quietly(node_operation *op, uint64_t steps);
void node_offer_reduced(node_operation *op, uint64_t steps);
/* Waits until all readers of this rank's slot have read so many steps. */
castor_status node_readers_await(node_operation *op, uint64_t steps);

/* Waits until `rank` has offered, and reduced, so many steps. CASTOR_ERR_MISMATCH: it called another collective. */
castor_status node_peer_await(node_operation *op, int rank, uint64_t offered, uint64_t reduced);
/* This rank has read so many steps of `rank`'s slot. Sleepers are woken before this rank waits. */
void node_read_tell(node_operation *op, int rank, uint64_t steps);
/* This rank has read everything that it needs. */
void node_read_all(node_operation *op);

/* A step's cells. */
uint8_t *node_own_offer(const node_operation *op, uint64_t step);
uint8_t *node_own_reduced(const node_operation *op, uint64_t step);
const uint8_t *node_peer_offer(const node_operation *op, int rank, uint64_t step);
const uint8_t *node_peer_reduced(const node_operation *op, int rank, uint64_t step);

#endif
