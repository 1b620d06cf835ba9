/* Ranks that a cluster's launcher starts, each with a `castor run` of its own (srun, mpirun).
 *
 * The variables of PyTorch's scripts (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set from
 * the launcher's variables; those that are set already stay. */
#ifndef CASTOR_LAUNCHER_RUN_ENVIRONMENT_H
#define CASTOR_LAUNCHER_RUN_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

enum { CLUSTER_HOST_MAX = 256 };

typedef struct run_cluster {
    const char *launcher; /* for messages */
    long rank, world, local_rank;
    long local_world;              /* 0: not told */
    char master[CLUSTER_HOST_MAX]; /* the node of rank 0; "": not told */
    unsigned port;
} run_cluster;

/* Whether a launcher of cluster.def has started this process as one of several ranks; `get` looks up a variable. */
bool run_cluster_find(const char *(*get)(const void *context, const char *name), const void *context,
                      run_cluster *out);

/* The first host of a list in Slurm's notation ("gpu[007-009,12]-ib,login"). False: it is not well formed, or too long. */
bool run_cluster_first_host(const char *list, char *out, size_t out_size);
/* The number of ranks on a node, by Slurm's list ("4(x2),3": 4 on the first two, 3 on the third). 0: unknown. */
long run_cluster_ranks_of_node(const char *list, long node);

#endif
