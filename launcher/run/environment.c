#include "environment.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "job/options.h"
#include "job/plugin.h"
#include "launcher/common/limits.h"
#include "run.h"

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

/* ---- the block ---- */

static size_t name_length(const char *entry) {
    return strcspn(entry, "=");
}

static bool has_name(const char *entry, const char *name, size_t length) {
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/* Takes `entry` over, also when memory is out. */
static bool append(run_environment *environment, char *entry) {
    if (!entry)
        return false;
    if (environment->count + 1 >= environment->capacity) {
        size_t capacity = environment->capacity ? 2 * environment->capacity : 64;
        char **entries = realloc(environment->entries, capacity * sizeof *entries);
        if (!entries) {
            free(entry);
            return false;
        }
        environment->entries = entries;
        environment->capacity = capacity;
    }
    environment->entries[environment->count++] = entry;
    environment->entries[environment->count] = NULL;
    return true;
}

static void unset(run_environment *environment, const char *name) {
    size_t length = strlen(name), kept = 0;
    for (size_t i = 0; i < environment->count; i++) {
        if (has_name(environment->entries[i], name, length))
            free(environment->entries[i]);
        else
            environment->entries[kept++] = environment->entries[i];
    }
    environment->count = kept;
    if (environment->entries)
        environment->entries[kept] = NULL;
}

static bool set(run_environment *environment, const char *name, const char *value) {
    size_t size = strlen(name) + strlen(value) + 2;
    char *entry = malloc(size);
    if (entry)
        snprintf(entry, size, "%s=%s", name, value);
    unset(environment, name);
    return append(environment, entry);
}

static bool set_number(run_environment *environment, const char *name, unsigned long value) {
    char text[24];
    snprintf(text, sizeof text, "%lu", value);
    return set(environment, name, text);
}

static bool set_if_unset(run_environment *environment, const char *name, const char *value) {
    const char *present = run_environment_get(environment, name);
    return present && present[0] ? true : set(environment, name, value);
}

static bool set_number_if_unset(run_environment *environment, const char *name, unsigned long value) {
    char text[24];
    snprintf(text, sizeof text, "%lu", value);
    return set_if_unset(environment, name, text);
}

const char *run_environment_get(const run_environment *environment, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < environment->count; i++)
        if (has_name(environment->entries[i], name, length))
            return environment->entries[i] + length + 1;
    return NULL;
}

void run_environment_free(run_environment *environment) {
    for (size_t i = 0; i < environment->count; i++)
        free(environment->entries[i]);
    free(environment->entries);
    *environment = (run_environment){0};
}

/* ---- lists of paths ---- */

/* Puts `first` before the elements of the list in `name`, which keep their order. An element that is `first`
 * is not repeated; an empty one becomes `empty`, or goes when that is NULL. */
static bool prepend(run_environment *environment, const char *name, const char *separators, const char *first,
                    const char *empty) {
    const char *list = run_environment_get(environment, name);
    if (!list)
        list = "";
    size_t size = strlen(first) + 1;
    for (const char *c = list; *c; c++)
        size += strchr(separators, *c) && empty ? strlen(empty) + 2 : 2;
    size += empty ? strlen(empty) + 1 : 1;
    char *joined = malloc(size);
    if (!joined)
        return false;
    strcpy(joined, first);
    size_t used = strlen(first);
    for (const char *element = list; *list;) {
        size_t length = strcspn(element, separators);
        const char *text = length ? element : empty;
        size_t text_length = length ? length : empty ? strlen(empty) : 0;
        if (text && !(text_length == strlen(first) && memcmp(text, first, text_length) == 0)) {
            joined[used++] = ':';
            memcpy(joined + used, text, text_length);
            used += text_length;
        }
        if (!element[length])
            break;
        element += length + 1;
    }
    joined[used] = '\0';
    bool done = set(environment, name, joined);
    free(joined);
    return done;
}

/* ---- what a job gets ---- */

bool run_environment_settle(const run_request *request, char *const *base, run_environment *out) {
    *out = (run_environment){0};
    for (; *base; base++) {
        if (!strchr(*base, '='))
            continue;
        if (!append(out, strdup(*base)))
            goto fail;
    }
    /* Inside another `castor run` this is a job of its own, with a directory of its own. */
    if (run_environment_get(out, "CASTOR_JOB"))
        unset(out, "CASTOR_LOG_DIR");
    for (int id = 0; id < OPTION_COUNT; id++)
        if (option_table[id].internal)
            unset(out, option_table[id].env);
    for (size_t i = 0; i < request->setting_count; i++) {
        const char *setting = request->settings[i];
        char *name = strndup(setting, name_length(setting));
        bool done = name && set(out, name, setting + strlen(name) + 1);
        free(name);
        if (!done)
            goto fail;
    }
    return true;
fail:
    run_environment_free(out);
    return false;
}

static const char *lookup(const void *context, const char *name) {
    return run_environment_get(context, name);
}

bool run_environment_cluster(const run_request *request, const run_environment *environment,
                             run_cluster *out) {
    const char *fix, *rank = run_environment_get(environment, "RANK");
    return request->ranks == 1 && !(rank && rank[0]) && run_cluster_find(lookup, environment, out) &&
           !run_command_launcher(request->command, &fix);
}

/* What PyTorch's scripts ask for, as torchrun would tell it. */
static bool set_place(run_environment *out, const run_cluster *cluster) {
    bool done = set_number_if_unset(out, "RANK", (unsigned long)cluster->rank) &&
                set_number_if_unset(out, "WORLD_SIZE", (unsigned long)cluster->world) &&
                set_number_if_unset(out, "LOCAL_RANK", (unsigned long)cluster->local_rank) &&
                set_number_if_unset(out, "MASTER_PORT", cluster->port);
    if (cluster->local_world > 0)
        done = done && set_number_if_unset(out, "LOCAL_WORLD_SIZE", (unsigned long)cluster->local_world);
    if (cluster->master[0])
        done = done && set_if_unset(out, "MASTER_ADDR", cluster->master);
    return done;
}

/* The same on all ranks of a job, from 1 to 2^32 - 1; another one in the next job, as Python's own. */
static unsigned long hash_seed(const char *token) {
    char digits[9];
    snprintf(digits, sizeof digits, "%.8s", token);
    unsigned long seed = strtoul(digits, NULL, 16);
    return seed ? seed : 1;
}

/* Another launcher around this one is not theirs: what it told its process would make each rank the only one of a group. */
static void hide_other_launcher(run_environment *out) {
    static const char *const names[] = {
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
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unset(out, names[i]);
}

/* The ranks are one process: rank 0's files are its files (docs/files.md). */
static bool set_files(const run_job *job, run_environment *out) {
    char path[PATH_MAX + 16];
    const char *temporary = run_environment_get(out, "TMPDIR");
    run_files_path(&job->directory, path, sizeof path);
    return set(out, "CASTOR_FILES", path) && set(out, "CASTOR_TEMPORARY_DIR", temporary ? temporary : "");
}

/* Simulated devices instead of real ones, behind the library of Castor (docs/rehearse.md). */
static bool set_simulation(const run_job *job, run_environment *out) {
    static const char *const libraries[] = {"libcuda.so.1", "libcudart.so.13", "libcublas.so.13",
                                            "libcublasLt.so.13", "libnccl.so.2"};
    enum { LIBRARIES = sizeof libraries / sizeof *libraries };
    char text[PATH_MAX + 32], visible[64];
    bool done = true;
    for (int i = LIBRARIES - 1; i >= 0; i--) {
        snprintf(text, sizeof text, "%s/%s", job->install.simulation, libraries[i]);
        done = done && prepend(out, "LD_PRELOAD", ": ", text, NULL);
    }
    size_t used = 0;
    for (int device = 0; device < options()->rehearse_devices; device++)
        used +=
            (size_t)snprintf(visible + used, sizeof visible - used, "%s%d", device > 0 ? "," : "", device);
    done = done && set(out, "CUDA_VISIBLE_DEVICES", visible);
    done = done && set_number(out, "SIM_DEVICES", (unsigned long)options()->rehearse_devices);
    done = done && set_number(out, "SIM_MEMORY", options()->rehearse_memory);
    return done;
}

/* In front of the agent, which replaces kernels for CUDA as well: who comes later replaces the other's, and the numbers must be those of all. */
static bool set_numbers(const run_job *job, run_environment *out) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/numbers", job->install.simulation);
    return prepend(out, "PYTHONPATH", ":", path, NULL);
}

bool run_environment_preload(const run_install *install, run_environment *out) {
    bool done = true;
    if (!run_environment_get(out, "CASTOR_PLUGIN"))
        done = set(out, "CASTOR_PLUGIN", "none");
    /* The linker takes spaces and colons; an empty element means nothing to it. To Python it means the
     * working directory, which "." says as well. */
    done = done && prepend(out, "LD_PRELOAD", ": ", install->library, NULL);
    const char *python_path = run_environment_get(out, "PYTHONPATH");
    const char *empty = python_path && *python_path ? "." : NULL;
    const char *compat = run_environment_get(out, "CASTOR_COMPAT");
    if (compat && strcmp(compat, "1") == 0) {
        /* An import of another name of the package may come before that of torch, which starts the agent. */
        char names[PATH_MAX + 16];
        snprintf(names, sizeof names, "%s/castor/names", install->python);
        done = done && prepend(out, "PYTHONPATH", ":", names, empty);
    }
    return done && prepend(out, "PYTHONPATH", ":", install->python, empty);
}

bool run_environment_build(const run_job *job, char *const *base, int rank, int log_file, int line,
                           run_environment *out) {
    if (!run_environment_settle(job->request, base, out))
        return false;
    bool done = options()->rehearse_devices == 0 || set_simulation(job, out); /* behind Castor's library */
    done = done && run_environment_preload(&job->install, out);
    if (options()->rehearse_devices > 0 && options()->rehearse_numbers)
        done = done && set_numbers(job, out);
    done = done && set(out, "CASTOR_LOG_DIR", job->directory.path);
    done = done && set(out, "CASTOR_JOB", job->token);
    run_cluster cluster;
    if (done && run_environment_cluster(job->request, out, &cluster))
        done = set_place(out, &cluster) && set(out, "CASTOR_BEGUN", "runs");
    if (job->request->command && run_command_serves(job->request->command) && plugin()->engine &&
        options()->fork == CASTOR_FORK_AUTO)
        done = done && set(out, "CASTOR_FORK_SERVER", "1");
    int ranks = job->request->ranks;
    if (ranks > 1) {
        unsigned long threads = limit_cores_usable() / (unsigned long)ranks;
        hide_other_launcher(out);
        done = done && set_number(out, "CASTOR_RANK", (unsigned long)rank);
        done = done && set_number(out, "CASTOR_WORLD_SIZE", (unsigned long)ranks);
        done = done && set_number_if_unset(out, "OMP_NUM_THREADS", threads ? threads : 1);
        done = done && set_number_if_unset(out, "PYTHONHASHSEED", hash_seed(job->token));
        if (log_file >= 0)
            done = done && set_number(out, "CASTOR_LOG_FILE", (unsigned long)log_file);
        if (line >= 0)
            done = done && set_number(out, "CASTOR_FORK_LINE", (unsigned long)line);
        done = done && set_files(job, out);
    }
    if (!done)
        run_environment_free(out);
    return done;
}
