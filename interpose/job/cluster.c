#include "cluster.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

/* Ports below the ones that Linux gives out by itself (32768). */
enum { PORT_FIRST = 20000, PORT_COUNT = 10000 };

static const struct launcher {
    const char *name, *rank, *world, *local_rank, *local_world, *nodes, *job, *step, *restarts;
} launchers[] = {
#define CLUSTER(name, rank, world, local_rank, local_world, nodes, job, step, restarts)                      \
    {name, rank, world, local_rank, local_world, nodes, job, step, restarts},
#include "cluster.def"
};

const char *const cluster_variables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "PMI_RANK",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    NULL,
};

static bool parse_number(const char *text, long *out) {
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    *out = strtol(text, &end, 10);
    return !*end && *out <= INT32_MAX;
}

bool cluster_first_host(const char *list, char *out, size_t out_size) {
    size_t used = 0;
    for (; *list && *list != ','; list++) {
        if (*list == '[') { /* of a range the first: 007-009,12 */
            size_t digits = strspn(list + 1, "0123456789");
            const char *end = strchr(list, ']');
            if (!digits || !end || used + digits >= out_size)
                return false;
            memcpy(out + used, list + 1, digits);
            used += digits;
            list = end;
        } else if (used + 1 < out_size) {
            out[used++] = *list;
        } else {
            return false;
        }
    }
    out[used] = '\0';
    return used > 0;
}

long cluster_ranks_of_node(const char *list, long node) {
    while (*list >= '0' && *list <= '9') {
        char *end;
        long ranks = strtol(list, &end, 10), nodes = 1;
        if (end[0] == '(' && end[1] == 'x')
            nodes = strtol(end + 2, &end, 10), end += *end == ')';
        if (node < nodes)
            return ranks;
        node -= nodes;
        if (*end != ',')
            return 0;
        list = end + 1;
    }
    return 0;
}

static unsigned port_of(const char *job) {
    uint32_t hash = 2166136261u;
    for (; *job; job++)
        hash = (hash ^ (unsigned char)*job) * 16777619u;
    return PORT_FIRST + hash % PORT_COUNT;
}

bool cluster_find(cluster_get *get, const void *context, cluster *out) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        *out = (cluster){.launcher = l->name};
        if (!parse_number(get(context, l->rank), &out->rank) ||
            !parse_number(get(context, l->world), &out->world) ||
            !parse_number(get(context, l->local_rank), &out->local_rank) || out->world < 2 ||
            out->rank >= out->world)
            continue;
        const char *local_world = get(context, l->local_world),
                   *nodes = l->nodes[0] ? get(context, l->nodes) : NULL;
        const char *job = get(context, l->job);
        long node = 0;
        parse_number(get(context, "SLURM_NODEID"), &node); /* only Slurm's list has several entries */
        out->local_world = local_world ? cluster_ranks_of_node(local_world, node) : 0;
        if (out->local_world == out->world)
            strcpy(out->master, "127.0.0.1");
        else if (!nodes || !cluster_first_host(nodes, out->master, sizeof out->master))
            out->master[0] = '\0';
        const char *step = get(context, l->step), *restarts = get(context, l->restarts);
        if (job && job[0])
            log_format(out->job, sizeof out->job, "%s %s step %s restart %s", l->name, job, step ? step : "",
                       restarts ? restarts : "");
        out->port = port_of(out->job);
        return true;
    }
    return false;
}

bool cluster_find_torch(cluster_get *get, const void *context, cluster *out) {
    *out = (cluster){.launcher = "torchrun"};
    if (!parse_number(get(context, "RANK"), &out->rank) ||
        !parse_number(get(context, "WORLD_SIZE"), &out->world) || out->world < 2 || out->rank >= out->world)
        return false;
    if (!parse_number(get(context, "LOCAL_WORLD_SIZE"), &out->local_world))
        out->local_world = 0;
    return true;
}
