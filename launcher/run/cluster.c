#include "cluster.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ports below the ones that Linux gives out by itself (32768). */
enum { PORT_FIRST = 20000, PORT_COUNT = 10000 };

static const struct launcher {
    const char *name, *rank, *world, *local_rank, *local_world, *nodes, *job;
} launchers[] = {
#define CLUSTER(name, rank, world, local_rank, local_world, nodes, job)                                      \
    {name, rank, world, local_rank, local_world, nodes, job},
#include "cluster.def"
};

static bool parse_number(const char *text, long *out) {
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    *out = strtol(text, &end, 10);
    return !*end && *out <= INT32_MAX;
}

bool run_cluster_first_host(const char *list, char *out, size_t out_size) {
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

long run_cluster_ranks_of_node(const char *list, long node) {
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

bool run_cluster_find(const char *(*get)(const void *context, const char *name), const void *context,
                      run_cluster *out) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        *out = (run_cluster){.launcher = l->name};
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
        out->local_world = local_world ? run_cluster_ranks_of_node(local_world, node) : 0;
        if (out->local_world == out->world)
            strcpy(out->master, "127.0.0.1");
        else if (!nodes || !run_cluster_first_host(nodes, out->master, sizeof out->master))
            out->master[0] = '\0';
        out->port = port_of(job ? job : "");
        return true;
    }
    return false;
}
