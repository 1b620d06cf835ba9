#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/status.h"
#include "job/rendezvous.h"
#include "placement/chunk.h"
#include "wait.h"
#include "tensor.h"

/* The files that a node store is made of: its control block, and the chunks of each kind.
 *
 * Chunk files are in memory; where chunks may be on disk alone, they are unlinked files in a folder. */
#define STORE_FILES (1 + CHUNK_KIND_COUNT)

#define MODEL_DATA_FACTOR   4            /* parameters, gradients, and two states as Adam keeps them */
#define PART_BYTES          (1ull << 40) /* of memory files; sparse */
#define PART_BYTES_DISK     (1ull << 37) /* file systems limit a file to 16 TiB */
#define OFFLOAD_DIR_DEFAULT "/var/tmp"   /* for large files, and no part of memory */

#ifndef F_ADD_SEALS
#define F_ADD_SEALS   1033
#define F_SEAL_SEAL   1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW   4
#endif

/* Where chunk files lie; "": in memory. `places`: chunks may be on disk alone. */
static const char *store_files_folder(const char *offload_dir, bool places) {
    return *offload_dir || !places ? offload_dir : OFFLOAD_DIR_DEFAULT;
}

/* How large one rank's section of the states' file may be, and the whole file of parameters or of gradients. */
static uint64_t store_files_section_bytes(const char *folder) {
    return *folder ? PART_BYTES_DISK : PART_BYTES;
}

static int memory_file(const char *name, uint64_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int disk_file(const char *directory, uint64_t bytes) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static castor_status no_memory_files(void) {
    const char *advice = "see the kernel's log (dmesg)";
    if (errno == EFBIG)
        advice = "raise the limit on file size (ulimit -f)";
    else if (errno == EMFILE || errno == ENFILE)
        advice = "raise the limit on open files (ulimit -n)";
    else if (errno == EPERM || errno == EACCES || errno == ENOSYS)
        advice = "the sandbox or container (seccomp) forbids memfd_create, which Castor needs: allow it";
    else if (errno == ENOMEM || errno == ENOSPC)
        advice = "memory is out, or a limit on it (ulimit -v, a cgroup) is too low";
    return error_set(CASTOR_ERR_SYSTEM, "cannot make the store's memory files (errno %d): %s", errno, advice);
}

/* Files there are memory that counts like any other: what lies "on disk" bounds nothing. */
static void say_if_memory(const char *folder, int fd) {
    struct statfs system;
    if (fstatfs(fd, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
        LOG_W("CASTOR_OFFLOAD_DIR=%s is on a file system in memory (tmpfs): what lies there saves no memory; "
              "name a directory on a disk",
              folder);
}

/* Rank 0 calls them. On an error no file stays open. */
static castor_status store_files_make_chunks(int world, const char *folder, int fds[CHUNK_KIND_COUNT]) {
    static const char *const names[CHUNK_KIND_COUNT] = {"castor-param", "castor-grad", "castor-optim"};
    uint64_t section_bytes = store_files_section_bytes(folder);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        uint64_t bytes = kind == CHUNK_OPTIM ? section_bytes * (uint64_t)world : section_bytes;
        fds[kind] = *folder ? disk_file(folder, bytes) : memory_file(names[kind], bytes);
        if (fds[kind] >= 0)
            continue;
        castor_status status =
            *folder
                ? error_set(CASTOR_ERR_SYSTEM,
                            "cannot make a chunk file in CASTOR_OFFLOAD_DIR=%s (errno %d): name a writable "
                            "directory "
                            "of a local file system that has O_TMPFILE (ext4, xfs, btrfs, tmpfs)",
                            folder, errno)
                : no_memory_files();
        while (kind-- > 0) {
            close(fds[kind]);
            fds[kind] = -1;
        }
        return status;
    }
    if (*folder)
        say_if_memory(folder, fds[0]);
    return CASTOR_OK;
}

static castor_status store_files_make(int world, uint64_t control_bytes, const char *folder,
                                      int fds[STORE_FILES]) {
    fds[0] = memory_file("castor-control", control_bytes);
    if (fds[0] < 0)
        return no_memory_files();
    castor_status status = store_files_make_chunks(world, folder, fds + 1);
    if (status) {
        close(fds[0]);
        fds[0] = -1;
    }
    return status;
}

_Static_assert(sizeof(store_control) <= STORE_CONTROL_BYTES, "the control block fits its place");

/* Written by the thread that opens stores; read by atfork handlers and by the arena's callbacks. */
static store *_Atomic first_store;

store *store_first(void) {
    return atomic_load(&first_store);
}

static size_t tensor_control_bytes(int world) {
    return (sizeof(tensor_control) + (size_t)world * sizeof(tensor_progress) + 63) & ~63ul;
}

static size_t control_file_bytes(int world) {
    return STORE_CONTROL_BYTES + (size_t)world * STORE_EXCHANGE_BYTES +
           STORE_TENSORS_MAX * tensor_control_bytes(world);
}

tensor_control *store_tensor_control(const store *s, uint32_t id) {
    char *base = (char *)s->control + STORE_CONTROL_BYTES + (size_t)s->world * STORE_EXCHANGE_BYTES;
    return (tensor_control *)(base + id * tensor_control_bytes(s->world));
}

/* From here on every rank looks after the processes that came to rank 0, also before they have opened their part. */
static void peers_announce(store *s, const int *pids) {
    for (int rank = 1; rank < s->world; rank++) {
        rank_control *peer = &s->control->rank[rank];
        if (!pids[rank])
            continue;
        uint64_t ticks = process_start_ticks(pids[rank]);
        peer->pid = pids[rank];
        peer->start_ticks = ticks ? ticks : 1; /* no process's: it is dead already */
        atomic_store(&peer->joined, 1);
    }
}

static void demand_lock_make(pthread_mutex_t *lock) {
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &shared);
    pthread_mutexattr_destroy(&shared);
}

/* Rank 0 makes the store's files, the others get them: the control block's, and one for each kind of chunk. */
static castor_status files_share(const char *token, const char *group, int rank, int world,
                                 const store_settings *settings, const char *folder, int *fds, int *pids) {
    castor_status status = CASTOR_OK;
    if (rank == 0)
        status = store_files_make(world, control_file_bytes(world), folder, fds);
    if (status == CASTOR_OK && world > 1)
        status =
            rendezvous_share(token, group, rank, world, fds, STORE_FILES, settings->timeout_seconds, pids);
    return status;
}

static void control_join(store *s, const int *pids) {
    rank_control *own = &s->control->rank[s->rank];
    own->pid = getpid();
    own->start_ticks = process_start_ticks(own->pid);
    atomic_store(&own->joined, 1);
    if (s->rank != 0)
        return;
    s->control->magic = STORE_MAGIC;
    demand_lock_make(&s->control->demand_lock);
    s->control->world = s->world;
    peers_announce(s, pids);
}

/* The limit of the chunks' memory: as it is set, or to be decided with the first tensors. */
static castor_status bound_open(store *s, const char *token, const char *group,
                                const store_settings *settings, bool places) {
    bool automatic = settings->budget_bytes == STORE_BUDGET_AUTO;
    s->budget_bytes = automatic ? 0 : settings->budget_bytes;
    s->placement = settings->placement;
    s->bound = settings->bound;
    s->moments_dir = settings->moments_dir;
    if (places) {
        castor_status status = s->bound->start(s);
        return status ? store_fail(s, status) : CASTOR_OK;
    }
    if (!automatic)
        return CASTOR_OK;
    s->offload_dir = settings->offload_dir;
    s->token = strdup(token);
    s->group = strdup(group);
    if (s->token && s->group)
        return CASTOR_OK;
    return store_fail(s, error_set(CASTOR_ERR_MEMORY, "no memory for the store's tables"));
}

castor_status store_open(const char *token, const char *group, int rank, int world,
                         const store_settings *settings, store **out) {
    if (world < 1 || world > STORE_RANKS_MAX || rank < 0 || rank >= world)
        return error_set(CASTOR_ERR_ARGUMENT, "%d ranks on one node: at most %d are supported", world,
                         STORE_RANKS_MAX);
    int fds[STORE_FILES] = {-1, -1, -1, -1}, pids[STORE_RANKS_MAX] = {0};
    bool places = (settings->budget_bytes && settings->budget_bytes != STORE_BUDGET_AUTO) ||
                  placement_offloads(&settings->placement);
    const char *folder = store_files_folder(settings->offload_dir, places);
    store *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the store's tables");
    castor_status status = files_share(token, group, rank, world, settings, folder, fds, pids);
    if (status)
        goto fail;
    void *control = mmap(NULL, control_file_bytes(world), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (control == MAP_FAILED) {
        status = error_set(CASTOR_ERR_MEMORY, "cannot map the store's control block: raise ulimit -v");
        goto fail;
    }
    s->rank = rank;
    s->world = s->owners = world;
    s->node_count = 1;
    s->control_fd = fds[0];
    s->control = control;
    s->timeout_seconds = settings->timeout_seconds;
    pthread_mutex_init(&s->lock, NULL);
    chunk_table_init(&s->chunks, settings->chunk_bytes, store_files_section_bytes(folder));
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        s->chunks.list[kind].fd = fds[1 + kind];
    control_join(s, pids);
    /* After a failure s->control stays mapped: a peer's thread may be in it, and the process is about to end. */
    if ((status = wait_barrier(s, "the opening of the node store")) ||
        (status = bound_open(s, token, group, settings, places)))
        goto fail;
    s->next = atomic_load(&first_store);
    atomic_store(&first_store, s);
    *out = s;
    return CASTOR_OK;
fail:
    for (int i = 0; i < STORE_FILES; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(s);
    return status;
}

uint64_t store_budget_automatic(uint64_t parameter_bytes, uint64_t available) {
    if (available == UINT64_MAX || parameter_bytes <= available / 10 * 8 / MODEL_DATA_FACTOR)
        return 0;
    return available / 10 * 9;
}

/* The files that the store began with, which nothing is in yet, give way to files on disk. */
static castor_status files_to_disk(store *s) {
    const char *folder = store_files_folder(s->offload_dir, true);
    int fds[CHUNK_KIND_COUNT] = {-1, -1, -1};
    castor_status status = CASTOR_OK;
    if (s->rank == 0)
        status = store_files_make_chunks(s->world, folder, fds);
    if (status == CASTOR_OK && s->world > 1)
        status = rendezvous_share(s->token, s->group, s->rank, s->world, fds, CHUNK_KIND_COUNT,
                                  s->timeout_seconds, NULL);
    if (status)
        return store_fail(s, status);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        close(s->chunks.list[kind].fd);
    chunk_table_init(&s->chunks, s->chunks.chunk_bytes, store_files_section_bytes(folder));
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        s->chunks.list[kind].fd = fds[kind];
    return CASTOR_OK;
}

castor_status store_budget_decide(store *s, uint64_t parameter_bytes) {
    if (!s->token)
        return CASTOR_OK;
    uint64_t available = s->rank == 0 ? machine_memory_available("") : 0;
    /* Page faults load what other nodes keep into files of memory alone: that the rest fits was found before. */
    uint64_t budget = s->demand ? 0 : store_budget_automatic(parameter_bytes, available);
    castor_status status = ranks_broadcast(s, &budget, sizeof budget, "the memory budget");
    if (status == CASTOR_OK && budget && (status = files_to_disk(s)) == CASTOR_OK) {
        s->budget_bytes = budget;
        if ((status = s->bound->start(s)) != CASTOR_OK)
            store_fail(s, status);
        else if (s->rank == 0)
            LOG_I("parameters, gradients and Adam states need %B, and %B of memory is free: chunks beyond a "
                  "budget of %B stay on disk (CASTOR_MEMORY_BUDGET=auto)",
                  parameter_bytes * MODEL_DATA_FACTOR, available, budget);
    }
    free(s->token);
    free(s->group);
    s->token = s->group = NULL;
    return status;
}

castor_status store_job_ranks_set(store *s, const int32_t *ranks) {
    int32_t *kept = malloc((size_t)s->world * sizeof *kept);
    if (!kept)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the store's tables");
    memcpy(kept, ranks, (size_t)s->world * sizeof *kept);
    free(s->job_ranks);
    s->job_ranks = kept;
    return CASTOR_OK;
}

castor_status store_shard(store *s, int node, int node_count) {
    if (node < 0 || node >= node_count || s->tensor_count)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "node %d of %d: out of range, or tensors are registered already", node, node_count);
    s->node_load = calloc((size_t)node_count * STORE_RANKS_MAX, sizeof *s->node_load);
    if (!s->node_load)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the table of nodes");
    s->node = node;
    s->node_count = node_count;
    return CASTOR_OK;
}

void store_leave(store *s) {
    if (s->bounded)
        s->bound->stop(s);
    arena_stats arena;
    arena_get_stats(&arena);
    if (arena.loan_peak_bytes)
        LOG_D("blocks of up to %B lay on sums of gradients; %B were moved from there", arena.loan_peak_bytes,
              arena.moved_bytes);
    if (!s->detached)
        store_activity_set(s, ACTIVITY_ENDED);
}

uint64_t store_resident_bytes(const store *s, chunk_kind kind) {
    struct stat st;
    if (s->bounded)
        return s->bound->resident_bytes(s, kind);
    return fstat(s->chunks.list[kind].fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}
