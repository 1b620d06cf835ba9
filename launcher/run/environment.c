#include "run.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/machine.h"
#include "job/options.h"
#include "job/plugin.h"

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

bool run_environment_cluster(const run_request *request, const run_environment *environment, cluster *out) {
    const char *fix, *rank = run_environment_get(environment, "RANK");
    return request->ranks == 1 && !(rank && rank[0]) && cluster_find(lookup, environment, out) &&
           !run_command_launcher(request->command, &fix);
}

/* A launcher has started this `castor run` as one of several ranks, and its variables are PyTorch's. */
static bool is_one_of_several(const run_request *request, const run_environment *environment) {
    const char *fix;
    cluster place;
    return request->ranks == 1 && cluster_find_torch(lookup, environment, &place) &&
           !run_command_launcher(request->command, &fix);
}

/* What PyTorch's scripts ask for, as torchrun would tell it. */
static bool set_place(run_environment *out, const cluster *place) {
    bool done = set_number_if_unset(out, "RANK", (unsigned long)place->rank) &&
                set_number_if_unset(out, "WORLD_SIZE", (unsigned long)place->world) &&
                set_number_if_unset(out, "LOCAL_RANK", (unsigned long)place->local_rank) &&
                set_number_if_unset(out, "MASTER_PORT", place->port);
    if (place->local_world > 0)
        done = done && set_number_if_unset(out, "LOCAL_WORLD_SIZE", (unsigned long)place->local_world);
    if (place->master[0])
        done = done && set_if_unset(out, "MASTER_ADDR", place->master);
    return done;
}

/* Another launcher around this one is not theirs: what it told its process would make each rank the only one of a group. */
static void hide_other_launcher(run_environment *out) {
    for (size_t i = 0; cluster_variables[i]; i++)
        unset(out, cluster_variables[i]);
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
    bool done = prepend(out, "PYTHONPATH", ":", path, NULL);
    if (options()->rehearse_numbers)
        return done;
    /* Of ranks that are one process no script sends anything over devices by which it goes on, as DistributedDataParallel and lists of
     * objects do. */
    if (job->request->ranks > 1)
        done = done && set(out, "SIM_BLANK", "1");
    return done && set(out, "SIM_NUMBERS", "0") && set(out, "TRITON_LIBCUDA_PATH", job->install.simulation);
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
    if (options()->rehearse_devices > 0)
        done = done && set_numbers(job, out);
    done = done && set(out, "CASTOR_LOG_DIR", job->directory.path);
    done = done && set(out, "CASTOR_JOB", job->token);
    cluster place;
    if (done && run_environment_cluster(job->request, out, &place))
        done = set_place(out, &place) && set(out, "CASTOR_BEGUN", "runs");
    else if (done && options()->nproc == CASTOR_NPROC_AUTO && is_one_of_several(job->request, out))
        done = set(out, "CASTOR_BEGUN", "runs");
    if (job->request->command && run_command_serves(job->request->command) && plugin()->engine &&
        options()->fork == CASTOR_FORK_AUTO)
        done = done && set(out, "CASTOR_FORK_SERVER", "1");
    int ranks = job->request->ranks;
    if (ranks == 1 &&
        options()->nproc == CASTOR_NPROC_AUTO) /* ranks that the launcher's own Python forks have its seed */
        done = done && set_if_unset(out, "PYTHONHASHSEED", JOB_JOINED_HASH_SEED);
    if (ranks > 1) {
        unset(out, "CASTOR_NPROC");
        unsigned long threads = machine_cores_usable() / (unsigned long)ranks;
        hide_other_launcher(out);
        done = done && set_number(out, "CASTOR_RANK", (unsigned long)rank);
        done = done && set_number(out, "CASTOR_WORLD_SIZE", (unsigned long)ranks);
        done = done && set_number_if_unset(out, "OMP_NUM_THREADS", threads ? threads : 1);
        done = done && set_number_if_unset(out, "PYTHONHASHSEED", job_hash_seed(job->token));
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
