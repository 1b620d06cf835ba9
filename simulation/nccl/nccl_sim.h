/* NCCL over memory that the ranks share.
 *
 * segment   a memfd that every rank of a communicator maps; its creator is named by the unique id, and the others
 *           open it through the creator's /proc entry
 * slot      a rank's part of the segment for collectives, in two halves that are used in turn
 * box       the place in the segment for what one rank sends another
 * task      one call (a collective, a send, a receive); a group gathers tasks and submits them when it ends
 * turn      the tasks of a communicator run in the order in which they were submitted, whatever their streams
 *
 * What must hold: a wait for other ranks ends with their arrival, with the communicator's abort, or with a peer's death,
 * which becomes the communicator's asynchronous error. Reductions add in the order of the ranks and round once. */
#ifndef SIM_NCCL_NCCL_SIM_H
#define SIM_NCCL_NCCL_SIM_H

#include "sim.h"

#include <nccl.h>

#define RANKS_MAX     64
#define SLOT_BYTES    (1u << 20) /* both halves */
#define BOX_BYTES     (1u << 16)
#define CUSTOM_OPS    64
#define SEGMENT_MAGIC 0x4e43434cu

enum task_kind {
    TASK_ALL_REDUCE,
    TASK_REDUCE,
    TASK_BROADCAST,
    TASK_ALL_GATHER,
    TASK_REDUCE_SCATTER,
    TASK_ALL_TO_ALL,
    TASK_GATHER,
    TASK_SCATTER,
    TASK_SEND,
    TASK_RECEIVE
};

struct description { /* what a rank does next, for the others to compare with */
    int kind, type, op, root;
    uint64_t count;
};

struct barrier {
    atomic_uint arrived, generation;
};

struct box {
    atomic_uint bytes; /* 0: empty */
    unsigned char data[BOX_BYTES];
};

struct offer { /* what a rank says in a split */
    int color, key, pid, fd;
};

struct segment {
    uint32_t magic;
    int ranks;
    atomic_int pids[RANKS_MAX];
    struct barrier joining, streams; /* of the callers' threads, and of the streams' threads */
    struct description descriptions[RANKS_MAX];
    struct offer offers[RANKS_MAX];
    atomic_uint activity; /* grows whenever a box changes */
    _Alignas(4096) unsigned char slots[RANKS_MAX][SLOT_BYTES];
    struct box boxes[RANKS_MAX][RANKS_MAX]; /* by sender, receiver; touched pages alone take memory */
};

struct custom_op {
    bool used, on_device;
    ncclDataType_t type;
    double scalar;
    const void *address;
};

struct ncclComm {
    struct segment *shared;
    int fd, rank, ranks, device;
    atomic_int abort, async;
    uint64_t half; /* which half of the slots comes next; the running task's */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    uint64_t submitted, turn;
    struct custom_op ops[CUSTOM_OPS];
};

struct task {
    enum task_kind kind;
    ncclComm_t comm;
    cudaStream_t stream;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    int op, root;            /* root: also the peer of a send or receive */
    struct custom_op custom; /* as it was at the call: it may be destroyed before the task runs */
    size_t done;             /* bytes, of a send or receive */
};

/* comm.c */
int comm_wait(struct ncclComm *comm, atomic_uint *word,
              unsigned value); /* waits a while for *word to differ */
int comm_barrier(struct ncclComm *comm, struct barrier *barrier);
void comm_fail(struct ncclComm *comm, ncclResult_t error, const char *what);
void comm_wake(atomic_uint *word);
bool comm_lost(struct ncclComm *comm); /* aborted, or failed */
ncclResult_t nccl_error(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* group.c: queues the task, or submits it when no group is open. */
ncclResult_t group_add(const struct task *task);
/* A job that other ranks must take part in; in a group it runs, beside the others, when the group ends. */
ncclResult_t group_job(ncclResult_t (*run)(void *), void *argument);

/* For tests, over ctypes: how many tasks of a kind this process has run, and the bytes of their elements. */
struct nccl_tally {
    uint64_t count, bytes;
};
void sim_nccl_tally(int kind, struct nccl_tally *tally);

/* collective.c: runs on the stream's thread. */
int task_run(struct task *task);
int tasks_exchange(struct ncclComm *comm, struct task *tasks, size_t count);
size_t type_bytes(ncclDataType_t type);

/* reduce.c: out[i] = sources[0][i] op sources[1][i] op …; for an average, divided by their number. */
int reduce(void *out, const void *const *sources, int source_count, size_t count, ncclDataType_t type, int op,
           double scalar);

double scalar_load(const void *address, ncclDataType_t type);

/* `pncclX` is the function, `ncclX` a weak name for it, as in the real library. */
#define BOTH(name, parameters)                                                                               \
    ncclResult_t nccl##name parameters __attribute__((weak, alias("pnccl" #name)));                          \
    ncclResult_t pnccl##name parameters

#define ENTER() SIM_ENTER(ncclResult_t, __func__ + 1)

#endif
