/* What the files of the budget share. */
#ifndef CASTOR_BUDGET_INSIDE_H
#define CASTOR_BUDGET_INSIDE_H

#include <pthread.h>
#include "disk/queue.h"
#include "placement/chunk_manager.h"
#include "budget.h"

#define PART_SHARE     16 /* a part's parameters have this part of the rank's share at most */
#define PART_BYTES_MIN (1ul << 16)
#define BUDGET_NONE    UINT32_MAX
/* A rank keeps freed blocks resident for this part of its share of the budget at most. */
#define BUDGET_FREED_SHARE 32

/* A chunk that the manager knows. It stays where it is: the disk queue has its operation's address. */
typedef struct budget_chunk {
    store *store;
    chunk_kind kind;
    uint32_t index; /* in the kind's list */
    uint64_t offset, bytes;
    disk_operation operation;
    _Atomic uint64_t finished_ns; /* 0: the operation goes on */
    _Atomic uint64_t left_bytes;  /* that its last eviction left in memory: somebody had them mapped */
    uint32_t summed_in;           /* the number of the last backward that made a sum of it, from 1 on */
    uint32_t computing;           /* tensors whose sums are being made; under the budget's lock */
    uint32_t used_in;             /* the number of the last part that used it, counted over all steps */
} budget_chunk;

typedef struct budget {
    store *store;
    uint64_t bytes;
    struct touches *touches; /* NULL: nothing that a forward touches is placed */
    chunk_manager *manager;
    disk_queue *queue;
    pthread_mutex_t lock;  /* of the tables below, and never held while something is waited for */
    budget_chunk **chunks; /* by the manager's number */
    uint32_t count, capacity;
    uint32_t *numbers
        [CHUNK_KIND_COUNT]; /* by index: the manager's number; BUDGET_NONE: not this rank's, or not closed */
    uint32_t closed[CHUNK_KIND_COUNT], numbers_capacity[CHUNK_KIND_COUNT];
    uint32_t *part; /* the running part's chunks, accessed */
    uint32_t part_count, part_capacity, parts;
    uint64_t part_most;                      /* of the last division (budget_part_bytes) */
    _Atomic uint64_t used[CHUNK_KIND_COUNT]; /* bytes of data in the chunks that the manager knows */
    _Atomic uint64_t left_bytes;             /* of all of them */
    _Atomic uint64_t own_load, all_load;     /* bytes of parameters that this rank owns, and all do */
    pthread_cond_t moved;                    /* a move has ended, or the thread has to end */
    uint32_t backwards;                      /* from 1 on */
    bool stopping, running;
    bool told;              /* that a share is left out */
    _Atomic bool disk_told; /* that a move has failed */
} budget;

static inline budget *budget_of(const store *s) {
    return s->bounded;
}

/* The bytes of parameters of one part, at most, under a budget. */
static inline uint64_t budget_part_bytes_under(const budget *b, uint64_t budget_bytes) {
    uint64_t bytes = budget_bytes / (uint64_t)b->store->owners / PART_SHARE;
    if (!budget_bytes)
        bytes = b->store->chunks.chunk_bytes;
    return bytes > PART_BYTES_MIN ? bytes : PART_BYTES_MIN;
}

#endif
