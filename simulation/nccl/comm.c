/* Communicators: how ranks meet, wait for each other, and part. */
#include "nccl_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 50000000 /* between looks at whether the peers live */

struct address { /* what a unique id holds */
    uint32_t magic;
    int32_t pid, fd;
    uint64_t inode;
};

static _Thread_local char last_error[256];

ncclResult_t nccl_error(ncclResult_t result, const char *format, ...) {
    va_list list;

    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    if (sim_config()->verbose)
        sim_say("nccl: %s", last_error);
    return result;
}

/* ---- waiting ---- */

void comm_wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

bool comm_lost(struct ncclComm *comm) {
    return atomic_load(&comm->abort) || atomic_load(&comm->async);
}

static atomic_bool failed;
static char
    failure[256]; /* of the first communicator of this process that failed; whoever sets `failed` writes it */

void comm_fail(struct ncclComm *comm, ncclResult_t error, const char *what) {
    int none = 0;

    if (!atomic_compare_exchange_strong(&comm->async, &none, (int)error))
        return;
    if (!atomic_exchange(&failed, true))
        snprintf(failure, sizeof failure, "%s", what);
    sim_say("nccl: rank %d of %d: %s", comm->rank, comm->ranks, what);
}

static bool alive(int pid) {
    char path[64], text[256], *state;

    if (kill(pid, 0) && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return false;
    text[bytes] = 0;
    state = strrchr(text, ')');
    return !state || strlen(state) < 3 || (state[2] != 'Z' && state[2] != 'X');
}

static void look_at_peers(struct ncclComm *comm) {
    for (int rank = 0; rank < comm->ranks; rank++) {
        int pid = atomic_load(&comm->shared->pids[rank]);
        if (pid && !alive(pid)) {
            comm_fail(comm, ncclRemoteError, "a peer has died");
            return;
        }
    }
}

int comm_wait(struct ncclComm *comm, atomic_uint *word, unsigned value) {
    struct timespec patience = {0, LOOK_NS};

    if (comm_lost(comm))
        return -1;
    if (syscall(SYS_futex, word, FUTEX_WAIT, value, &patience, NULL, 0) && errno == ETIMEDOUT)
        look_at_peers(comm);
    return comm_lost(comm) ? -1 : 0;
}

int comm_barrier(struct ncclComm *comm, struct barrier *barrier) {
    unsigned generation = atomic_load(&barrier->generation);

    if (comm_lost(comm))
        return -1;
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 == (unsigned)comm->ranks) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->generation, 1);
        comm_wake(&barrier->generation);
        return 0;
    }
    while (atomic_load(&barrier->generation) == generation) {
        if (comm_wait(comm, &barrier->generation, generation))
            return -1;
    }
    return 0;
}

/* ---- meeting ---- */

static ncclResult_t make_segment(struct address *address) {
    struct stat status;
    int fd = memfd_create("sim-nccl", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, sizeof(struct segment)) || fstat(fd, &status)) {
        if (fd >= 0)
            close(fd);
        return nccl_error(ncclSystemError, "no memory for a communicator: %s", strerror(errno));
    }
    *address = (struct address){SEGMENT_MAGIC, getpid(), fd, status.st_ino};
    return ncclSuccess; /* the descriptor stays open: ranks may come late */
}

BOTH(GetUniqueId, (ncclUniqueId * uniqueId)) {
    struct address address;

    ENTER();
    ncclResult_t result = make_segment(&address);
    if (!result) {
        memset(uniqueId, 0, sizeof *uniqueId);
        memcpy(uniqueId, &address, sizeof address);
    }
    return result;
}

static ncclResult_t open_segment(const struct address *address, struct segment **shared, int *fd) {
    struct stat status;
    char path[64];

    if (address->magic != SEGMENT_MAGIC)
        return nccl_error(ncclInvalidArgument,
                          "the unique id was not made by ncclGetUniqueId of the simulation");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)address->pid, (int)address->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &status) || status.st_ino != address->inode)
        return nccl_error(ncclSystemError, "the process %d that made the unique id is gone",
                          (int)address->pid);
    *shared = mmap(NULL, sizeof **shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
    if (*shared == MAP_FAILED)
        return nccl_error(ncclSystemError, "a communicator's memory cannot be mapped: %s", strerror(errno));
    return ncclSuccess;
}

static ncclResult_t join(struct ncclComm *comm, const struct address *address) {
    ncclResult_t result = open_segment(address, &comm->shared, &comm->fd);

    if (result)
        return result;
    atomic_store(&comm->shared->pids[comm->rank], getpid());
    if (comm_barrier(comm, &comm->shared->joining))
        return nccl_error(ncclRemoteError, "not all of the %d ranks came", comm->ranks);
    return ncclSuccess;
}

static struct ncclComm *comm_make(int ranks, int rank) {
    struct ncclComm *comm = calloc(1, sizeof *comm);

    if (!comm)
        return NULL;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->device = sim_device();
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->turned, NULL);
    return comm;
}

struct joining {
    struct ncclComm *comm;
    struct address address;
    ncclComm_t *out;
};

static ncclResult_t run_join(void *argument) {
    struct joining *joining = argument;
    ncclResult_t result = join(joining->comm, &joining->address);

    if (!result)
        *joining->out = joining->comm;
    free(joining);
    return result;
}

static ncclResult_t init_rank(ncclComm_t *out, int ranks, const ncclUniqueId *id, int rank) {
    struct joining *joining;

    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
        return nccl_error(ncclInvalidArgument, "rank %d of %d; at most %d ranks", rank, ranks, RANKS_MAX);
    if (!(joining = calloc(1, sizeof *joining)) || !(joining->comm = comm_make(ranks, rank)))
        return nccl_error(ncclSystemError, "out of memory");
    memcpy(&joining->address, id, sizeof joining->address);
    joining->out = out;
    *out = NULL;
    return group_job(run_join, joining);
}

BOTH(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank)) {
    ENTER();
    return init_rank(comm, nranks, &commId, rank);
}

BOTH(CommInitRankConfig,
     (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)) {
    (void)config;
    ENTER();
    return init_rank(comm, nranks, &commId, rank);
}

BOTH(CommInitRankScalable,
     (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config)) {
    (void)config;
    ENTER();
    if (nId < 1)
        return nccl_error(ncclInvalidArgument, "no unique id");
    return init_rank(newcomm, nranks, commIds, myrank);
}

BOTH(CommInitAll, (ncclComm_t * comm, int ndev, const int *devlist)) {
    int device = sim_device();
    ncclUniqueId id;

    ENTER();
    ncclResult_t result = pncclGetUniqueId(&id);
    pncclGroupStart();
    for (int rank = 0; rank < ndev && !result; rank++) {
        if (sim_device_set(devlist ? devlist[rank] : rank))
            result = nccl_error(ncclInvalidArgument, "no device %d", devlist ? devlist[rank] : rank);
        else
            result = init_rank(&comm[rank], ndev, &id, rank);
    }
    ncclResult_t ended = pncclGroupEnd();
    sim_device_set(device);
    return result ? result : ended;
}

struct splitting {
    struct ncclComm *parent;
    int color, key;
    ncclComm_t *out;
};

/* The first rank of a color makes the segment of its part and says where it is. */
static ncclResult_t run_split(void *argument) {
    struct splitting split = *(struct splitting *)argument;
    struct ncclComm *parent = split.parent;
    struct offer *offers = parent->shared->offers;
    int rank = 0, ranks = 0, first = -1;
    struct address address = {.magic = 0};
    ncclResult_t result = ncclSuccess;

    free(argument);
    *split.out = NULL;
    offers[parent->rank] = (struct offer){split.color, split.key, 0, -1};
    if (comm_barrier(parent, &parent->shared->joining))
        return nccl_error(ncclRemoteError, "not all ranks split the communicator");
    for (int other = 0; other < parent->ranks; other++) {
        if (offers[other].color != split.color)
            continue;
        ranks++;
        rank += offers[other].key < split.key || (offers[other].key == split.key && other < parent->rank);
        if (first < 0 || offers[other].key < offers[first].key)
            first = other;
    }
    bool takes_part = split.color != NCCL_SPLIT_NOCOLOR;
    if (takes_part && first == parent->rank && !(result = make_segment(&address))) {
        offers[parent->rank].pid = address.pid;
        offers[parent->rank].fd = address.fd;
    }
    if (comm_barrier(parent, &parent->shared->joining))
        return nccl_error(ncclRemoteError, "not all ranks split the communicator");
    if (takes_part && !result) {
        struct ncclComm *comm = comm_make(ranks, rank);
        struct stat status;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", offers[first].pid, offers[first].fd);
        if (!comm || stat(path, &status))
            result = nccl_error(ncclSystemError, "the first rank of the part is gone");
        else
            address = (struct address){SEGMENT_MAGIC, offers[first].pid, offers[first].fd, status.st_ino};
        if (!result && !(result = join(comm, &address)))
            *split.out = comm;
    }
    /* Nobody may split again before all have read. */
    comm_barrier(parent, &parent->shared->joining);
    return result;
}

BOTH(CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)) {
    struct splitting *split = calloc(1, sizeof *split);

    (void)config;
    ENTER();
    if (!split)
        return nccl_error(ncclSystemError, "out of memory");
    *split = (struct splitting){comm, color, key, newcomm};
    return group_job(run_split, split);
}

/* ---- parting ---- */

static void drain(ncclComm_t comm) {
    pthread_mutex_lock(&comm->lock);
    while (comm->turn != comm->submitted)
        pthread_cond_wait(&comm->turned, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

/* The structure stays: a graph may hold operations of it. */
static void part(ncclComm_t comm) {
    drain(comm);
    atomic_store(&comm->abort, 1);
    close(comm->fd);
}

BOTH(CommFinalize, (ncclComm_t comm)) {
    ENTER();
    drain(comm);
    return ncclSuccess;
}

BOTH(CommDestroy, (ncclComm_t comm)) {
    ENTER();
    part(comm);
    return ncclSuccess;
}

BOTH(CommAbort, (ncclComm_t comm)) {
    ENTER();
    atomic_store(&comm->abort, 1);
    comm_wake(&comm->shared->streams.generation);
    comm_wake(&comm->shared->joining.generation);
    comm_wake(&comm->shared->activity);
    part(comm);
    return ncclSuccess;
}

BOTH(CommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError)) {
    ENTER();
    *asyncError = (ncclResult_t)atomic_load(&comm->async);
    return ncclSuccess;
}

BOTH(CommCount, (const ncclComm_t comm, int *count)) {
    ENTER();
    *count = comm->ranks;
    return ncclSuccess;
}

BOTH(CommCuDevice, (const ncclComm_t comm, int *device)) {
    ENTER();
    *device = comm->device;
    return ncclSuccess;
}

BOTH(CommUserRank, (const ncclComm_t comm, int *rank)) {
    ENTER();
    *rank = comm->rank;
    return ncclSuccess;
}

BOTH(GetVersion, (int *version)) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *pncclGetLastError(ncclComm_t comm) {
    (void)comm; /* PyTorch asks without one */
    return failure[0] ? failure : last_error;
}
const char *ncclGetLastError(ncclComm_t comm) __attribute__((weak, alias("pncclGetLastError")));

const char *pncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "NCCL operation in progress"};

    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}
const char *ncclGetErrorString(ncclResult_t result) __attribute__((weak, alias("pncclGetErrorString")));
