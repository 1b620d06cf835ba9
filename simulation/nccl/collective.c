/* The collectives, piece by piece through the slots, and point-to-point transfers through the boxes. They run on the
 * threads of streams. */
#include "nccl_sim.h"

#include <stdio.h>
#include <string.h>

size_t type_bytes(ncclDataType_t type) {
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned)type < sizeof bytes ? bytes[type] : 0;
}

static bool same(const struct description *a, const struct description *b) {
    bool custom = a->op >= ncclNumOps && b->op >= ncclNumOps; /* numbered by each rank for itself */
    return a->kind == b->kind && a->type == b->type && a->root == b->root && a->count == b->count &&
           (a->op == b->op || custom);
}

/* "allreduce of 100 x float32 by max", "broadcast of 8 x int64 from 1": as a description says it, in what makes a difference. */
static void describe(const struct description *what, char *out, size_t out_size) {
    static const char *const kinds[] = {"allreduce",      "reduce",   "broadcast", "allgather",
                                        "reduce_scatter", "alltoall", "gather",    "scatter"};
    static const char *const types[] = {"int8",    "uint8",    "int32",         "uint32",
                                        "int64",   "uint64",   "float16",       "float32",
                                        "float64", "bfloat16", "float8 (e4m3)", "float8 (e5m2)"};
    static const char *const ops[] = {"sum", "product", "max", "min", "average"};
    bool adds =
        what->kind == TASK_ALL_REDUCE || what->kind == TASK_REDUCE || what->kind == TASK_REDUCE_SCATTER;
    bool rooted = what->kind == TASK_REDUCE || what->kind == TASK_BROADCAST || what->kind == TASK_GATHER ||
                  what->kind == TASK_SCATTER;
    int used =
        snprintf(out, out_size, "%s of %zu x %s%s%s", kinds[what->kind], what->count,
                 (unsigned)what->type < sizeof types / sizeof *types ? types[what->type] : "another type",
                 adds ? " by " : "",
                 !adds                                           ? ""
                 : (unsigned)what->op < sizeof ops / sizeof *ops ? ops[what->op]
                                                                 : "an operation of its own");
    if (rooted && used > 0 && (size_t)used < out_size)
        snprintf(out + used, out_size - (size_t)used, ", root %d", what->root);
}

/* Tells the others what comes, and compares when all have. */
static int agree(const struct task *task) {
    struct ncclComm *comm = task->comm;
    struct segment *shared = comm->shared;
    struct description *mine = &shared->descriptions[comm->rank];

    *mine = (struct description){(int)task->kind, (int)task->type, task->op, task->root, task->count};
    if (comm_barrier(comm, &shared->streams))
        return -1;
    for (int rank = 0; rank < comm->ranks; rank++) {
        const struct description *other = &shared->descriptions[rank];
        if (!same(mine, other)) {
            char called[96], others[96], text[256];
            describe(mine, called, sizeof called);
            describe(other, others, sizeof others);
            snprintf(text, sizeof text, "the ranks called different collectives: rank %d %s, rank %d %s",
                     comm->rank, called, rank, others);
            comm_fail(comm, ncclInvalidUsage, text);
            return -1;
        }
    }
    /* Nobody may describe the next one before all have compared. */
    return comm_barrier(comm, &shared->streams);
}

static double scalar_of(const struct task *task) {
    if (task->op < ncclNumOps)
        return 1;
    return task->custom.on_device ? scalar_load(task->custom.address, task->custom.type)
                                  : task->custom.scalar;
}

static atomic_ulong counts[TASK_RECEIVE + 1], sums[TASK_RECEIVE + 1];

static void tally(const struct task *task) {
    atomic_fetch_add(&counts[task->kind], 1);
    atomic_fetch_add(&sums[task->kind], task->count * type_bytes(task->type));
}

void sim_nccl_tally(int kind, struct nccl_tally *out) {
    out->count = atomic_load(&counts[kind]);
    out->bytes = atomic_load(&sums[kind]);
}

/* A piece of the work: `count` elements from `offset` on. */
static int run_piece(const struct task *task, size_t offset, size_t count, size_t part_bytes, double scalar) {
    struct ncclComm *comm = task->comm;
    struct segment *shared = comm->shared;
    size_t element = type_bytes(task->type), bytes = count * element,
           half = (comm->half++ & 1) * (SLOT_BYTES / 2);
    unsigned char *mine = shared->slots[comm->rank] + half;
    const char *send = task->send;
    char *receive = task->receive;
    const void *sources[RANKS_MAX];
    int rank = comm->rank, ranks = comm->ranks;
    bool root = rank == task->root;

    switch (task->kind) { /* into the slot */
    case TASK_REDUCE_SCATTER:
    case TASK_ALL_TO_ALL:
    case TASK_SCATTER:
        for (int to = 0; to < ranks && (task->kind != TASK_SCATTER || root); to++)
            memcpy(mine + (size_t)to * part_bytes, send + ((size_t)to * task->count + offset) * element,
                   bytes);
        break;
    case TASK_BROADCAST:
        if (root)
            memcpy(mine, send + offset * element, bytes);
        break;
    default:
        memcpy(mine, send + offset * element, bytes);
    }
    if (comm_barrier(comm, &shared->streams))
        return -1;
    switch (task->kind) { /* out of the slots; the halves keep the next piece from overtaking */
    case TASK_ALL_REDUCE:
    case TASK_REDUCE:
    case TASK_REDUCE_SCATTER:
        for (int from = 0; from < ranks; from++)
            sources[from] = shared->slots[from] + half +
                            (task->kind == TASK_REDUCE_SCATTER ? (size_t)rank * part_bytes : 0);
        if ((task->kind != TASK_REDUCE || root) &&
            reduce(receive + offset * element, sources, ranks, count, task->type, task->op, scalar)) {
            comm_fail(comm, ncclInvalidArgument, "this type cannot be reduced");
            return -1;
        }
        break;
    case TASK_BROADCAST:
        memmove(receive + offset * element, shared->slots[task->root] + half, bytes);
        break;
    case TASK_SCATTER:
        memcpy(receive + offset * element, shared->slots[task->root] + half + (size_t)rank * part_bytes,
               bytes);
        break;
    default:
        for (int from = 0; from < ranks && (task->kind != TASK_GATHER || root); from++)
            memcpy(receive + ((size_t)from * task->count + offset) * element,
                   shared->slots[from] + half +
                       (task->kind == TASK_ALL_TO_ALL ? (size_t)rank * part_bytes : 0),
                   bytes);
    }
    return 0;
}

/* Buffers that this rank reads and writes, in elements. */
static bool reachable(const struct task *task) {
    size_t ranks = (size_t)task->comm->ranks, element = type_bytes(task->type);
    size_t send = task->count, receive = task->count;
    bool root = task->comm->rank == task->root;

    switch (task->kind) {
    case TASK_ALL_GATHER:
        receive *= ranks;
        break;
    case TASK_REDUCE_SCATTER:
        send *= ranks;
        break;
    case TASK_ALL_TO_ALL:
        send *= ranks;
        receive *= ranks;
        break;
    case TASK_GATHER:
        receive = root ? receive * ranks : 0;
        break;
    case TASK_SCATTER:
        send = root ? send * ranks : 0;
        break;
    case TASK_REDUCE:
        receive = root ? receive : 0;
        break;
    case TASK_BROADCAST:
        send = root ? send : 0;
        break;
    case TASK_SEND:
        receive = 0;
        break;
    case TASK_RECEIVE:
        send = 0;
        break;
    default:
        break;
    }
    return sim_memory_valid(task->send, send * element) && sim_memory_valid(task->receive, receive * element);
}

int task_run(struct task *task) {
    struct ncclComm *comm = task->comm;
    size_t element = type_bytes(task->type);
    bool parts =
        task->kind == TASK_REDUCE_SCATTER || task->kind == TASK_ALL_TO_ALL || task->kind == TASK_SCATTER;
    size_t part_bytes = SLOT_BYTES / 2 / (parts ? (size_t)comm->ranks : 1) / 8 * 8,
           piece = part_bytes / element;

    if (!reachable(task)) {
        comm_fail(comm, ncclUnhandledCudaError, "a buffer is not mapped");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (agree(task))
        return 0;
    double scalar = scalar_of(task);
    for (size_t offset = 0; offset < task->count && !sim_config()->blank; offset += piece) {
        size_t count = task->count - offset < piece ? task->count - offset : piece;
        if (run_piece(task, offset, count, part_bytes, scalar))
            return 0; /* the communicator has the error */
    }
    tally(task);
    return 0;
}

/* ---- point to point ---- */

/* Moves what can be moved now; true when something was. */
static bool move_some(struct task *task) {
    struct ncclComm *comm = task->comm;
    bool sends = task->kind == TASK_SEND;
    struct box *box =
        sends ? &comm->shared->boxes[comm->rank][task->root] : &comm->shared->boxes[task->root][comm->rank];
    size_t total = task->count * type_bytes(task->type), left = total - task->done;
    size_t there = atomic_load_explicit(&box->bytes, memory_order_acquire);

    if (sends == (there != 0))
        return false;
    size_t bytes = sends ? (left < BOX_BYTES ? left : BOX_BYTES) : there;
    if (bytes > left) {
        comm_fail(comm, ncclInvalidUsage, "a receive is shorter than what was sent");
        return false;
    }
    if (sends && !sim_config()->blank)
        memcpy(box->data, (const char *)task->send + task->done, bytes);
    else if (!sim_config()->blank)
        memcpy((char *)task->receive + task->done, box->data, bytes);
    task->done += bytes;
    atomic_store_explicit(&box->bytes, sends ? (unsigned)bytes : 0, memory_order_release);
    atomic_fetch_add(&comm->shared->activity, 1);
    comm_wake(&comm->shared->activity);
    return true;
}

/* An earlier task with the same peer and direction comes first. */
static bool behind(const struct task *tasks, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (tasks[i].kind == tasks[index].kind && tasks[i].root == tasks[index].root &&
            tasks[i].done < tasks[i].count * type_bytes(tasks[i].type))
            return true;
    }
    return false;
}

int tasks_exchange(struct ncclComm *comm, struct task *tasks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        tasks[i].done = 0;
        if (!reachable(&tasks[i])) {
            comm_fail(comm, ncclUnhandledCudaError, "a buffer is not mapped");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    for (;;) {
        unsigned activity = atomic_load(&comm->shared->activity);
        bool moved = false, open = false;
        for (size_t i = 0; i < count; i++) {
            if (tasks[i].done == tasks[i].count * type_bytes(tasks[i].type))
                continue;
            open = true;
            moved |= !behind(tasks, i) && move_some(&tasks[i]);
        }
        if (!open)
            break;
        if (!moved && comm_wait(comm, &comm->shared->activity, activity))
            return 0;
    }
    for (size_t i = 0; i < count; i++)
        tally(&tasks[i]);
    return 0;
}
