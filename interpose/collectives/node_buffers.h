/* The buffers of a group's memory, and waits for other ranks; node_group.h has the words. Private to node_*.c. */
#ifndef CASTOR_COLLECTIVES_NODE_BUFFERS_H
#define CASTOR_COLLECTIVES_NODE_BUFFERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/spin.h"
#include "node_group.h"

#define NODE_CELLS 8          /* of half a buffer */
#define NODE_DONE  UINT32_MAX /* as an acknowledgement: the reader has read all */
/* Where ranks outnumber processors, a move to another one pays only in operations that take longer. */
#define NODE_CROWDED_SECONDS 0.002

/* Of a rank: two for each thread, which may go on while others read its last operation. */
enum { NODE_BUFFERS = 2 * NODE_THREADS_MAX };

/* What must be the same on all ranks for one operation. */
typedef struct node_shape {
    uint32_t kind, root;
    uint64_t bytes;
    uint64_t element_bytes;
} node_shape;

typedef struct node_buffer {
    _Atomic uint64_t key; /* 0: none */
    node_shape shape;     /* written before the key */
    _Atomic uint32_t offered;
    _Atomic uint32_t reduced;              /* as `offered`, of the buffer's second half */
    _Atomic uint32_t read[NODE_RANKS_MAX]; /* by each reader: the steps it has read, or NODE_DONE */
} __attribute__((aligned(128))) node_buffer;

typedef struct node_thread {
    _Atomic uintptr_t self; /* pthread_self, 0: free */
    uint64_t last;          /* operation and tag of its last call */
    uint32_t repeated;      /* calls with them before */
} node_thread;

typedef struct node_control node_control;

struct node_group {
    int rank, world;
    int32_t called[NODE_RANKS_MAX]; /* how errors name each rank */
    int pauses;                     /* checks without a yield, at the begin of a spin */
    spin_patience patience;         /* of all threads */
    _Atomic double moves_from;      /* when a thread may move to another processor again */
    node_control *control;
    uint8_t *data;
    size_t bytes;      /* mapped at `control` */
    size_t cell_bytes; /* at most NODE_CELL_BYTES, the same on all ranks */
    node_thread thread[NODE_THREADS_MAX];
};

node_buffer *node_buffer_of(const node_group *g, int rank, int index);
/* The two halves of a buffer's data, NODE_CELLS cells each, one after the other. An operation without a reduction
 * offers in both. */
uint8_t *node_buffer_offer(const node_group *g, int rank, int index);
uint8_t *node_buffer_reduced(const node_group *g, int rank, int index);

/* The calling thread's own buffers are [*first, *first + 2). CASTOR_ERR_UNSUPPORTED: too many threads. */
castor_status node_thread_find(node_group *g, node_thread **thread, int *first);

typedef struct node_wait {
    bool (*ready)(void *context);
    void *context;
    int rank; /* that is waited for */
    double deadline;
    const char *what; /* "allreduce" */
} node_wait;

castor_status node_wait_until(node_group *g, const node_wait *w);
/* Wakes whoever waits for a change of `rank`. */
void node_notify(node_group *g, int rank);
/* The group has failed before: the error's text is set. */
castor_status node_check(node_group *g);

#endif
