/* The place of a rank in its job, as the variables of the launcher that started it tell it. No malloc. */
#ifndef CASTOR_JOB_CLUSTER_H
#define CASTOR_JOB_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>

enum { CLUSTER_HOST_MAX = 256, CLUSTER_JOB_MAX = 256 };

typedef struct cluster {
    const char *launcher; /* for messages */
    long rank, world, local_rank;
    long local_world;              /* 0: not told */
    char master[CLUSTER_HOST_MAX]; /* the node of rank 0; "": not told */
    unsigned port;
    char job[CLUSTER_JOB_MAX]; /* what tells this job from all others, on all its ranks; "": not told */
} cluster;

/* Looks up a variable; NULL: it is not set. */
typedef const char *cluster_get(const void *context, const char *name);

/* Whether a launcher of cluster.def, which starts each rank by itself, has started this process as one of several ranks. */
bool cluster_find(cluster_get *get, const void *context, cluster *out);
/* The same by the variables of PyTorch's scripts, RANK and its like, whoever has set them: rank, world and local_world only. */
bool cluster_find_torch(cluster_get *get, const void *context, cluster *out);

/* The variables by which a script finds that it is a rank, of these launchers and of torchrun. NULL-terminated. */
extern const char *const cluster_variables[];

/* The first host of a list in Slurm's notation ("gpu[007-009,12]-ib,login"). False: it is not well formed, or too long. */
bool cluster_first_host(const char *list, char *out, size_t out_size);
/* The number of ranks on a node, by Slurm's list ("4(x2),3": 4 on the first two, 3 on the third). 0: unknown. */
long cluster_ranks_of_node(const char *list, long node);

#endif
