#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/log.h"
#include "launcher/common/suffix.h"

/* ---- finding the file ---- */

static bool is_executable(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static int refuse_file(const char *name, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 && errno != EACCES) {
        LOG_E("%s: no such command%s", name,
              has_suffix(name, ".py") ? " and no such file; a script is run as: castor run -- python SCRIPT"
                                      : "");
        return RUN_EXIT_NOT_FOUND;
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        LOG_E("%s: is a directory, not a command", name);
    else if (has_suffix(name, ".py"))
        LOG_E("%s: not executable; run it as: castor run -- python %s", name, name);
    else
        LOG_E("%s: not executable", name);
    return RUN_EXIT_NOT_EXECUTABLE;
}

int run_command_find(const char *name, const char *search, char *path, size_t path_size) {
    if (strchr(name, '/')) {
        if (strlen(name) >= path_size) {
            LOG_E("%.100s...: the name is too long", name);
            return RUN_EXIT_NOT_FOUND;
        }
        strcpy(path, name);
        return is_executable(path) ? 0 : refuse_file(name, path);
    }
    char other[PATH_MAX] = ""; /* found, but not to be executed */
    if (!search || !search[0])
        search = "/usr/local/bin:/usr/bin:/bin";
    for (const char *element = search; element;) {
        const char *colon = strchr(element, ':');
        int length = colon ? (int)(colon - element) : (int)strlen(element);
        /* An empty element of PATH is the working directory. */
        int size = snprintf(path, path_size, "%.*s/%s", length ? length : 1, length ? element : ".", name);
        if (size > 0 && (size_t)size < path_size) {
            if (is_executable(path))
                return 0;
            if (!other[0] && access(path, F_OK) == 0 && size < PATH_MAX)
                strcpy(other, path);
        }
        element = colon ? colon + 1 : NULL;
    }
    if (other[0])
        return refuse_file(name, other);
    if (access(name, F_OK) == 0 && has_suffix(name, ".py")) {
        LOG_E("%s: a script, not a command; run it as: castor run -- python %s", name, name);
        return RUN_EXIT_NOT_FOUND;
    }
    LOG_E("%s: command not found in PATH", name);
    return RUN_EXIT_NOT_FOUND;
}

/* ---- recognizing other launchers ---- */

static const struct launcher {
    const char *name, *fix;
} launchers[] = {
    {"torchrun", "--nproc-per-node"},
    {"accelerate", "--num_processes"},
    {"deepspeed", "--num_gpus"},
    {"mpirun", "-n"},
    {"mpiexec", "-n"},
    {"srun", "--ntasks"},
    {"horovodrun", "-np"},
};

/* What `python -m` starts under these names. */
static const struct launcher_module {
    const char *name, *fix;
} launcher_modules[] = {
    {"torch.distributed.run", "--nproc-per-node"},
    {"torch.distributed.launch", "--nproc-per-node"},
    {"accelerate.commands.launch", "--num_processes"},
    {"accelerate.commands.accelerate_cli", "--num_processes"},
    {"deepspeed.launcher.runner", "--num_gpus"},
    {"horovod.runner.launch", "-np"},
};

/* Commands that start the command among their arguments. */
static const char *const wrappers[] = {"env",    "nohup",   "nice",  "ionice", "time",    "timeout",
                                       "stdbuf", "taskset", "chrt",  "setsid", "numactl", "uv",
                                       "poetry", "pipenv",  "conda", "mamba",  "pixi"};

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *find_launcher(const char *word, const char **fix) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (strcmp(base_name(word), launchers[i].name) == 0) {
            *fix = launchers[i].fix;
            return launchers[i].name;
        }
    return NULL;
}

static const char *find_module(const char *module, const char **fix) {
    for (size_t i = 0; i < sizeof launcher_modules / sizeof *launcher_modules; i++)
        if (strcmp(module, launcher_modules[i].name) == 0) {
            *fix = launcher_modules[i].fix;
            return launcher_modules[i].name;
        }
    return NULL;
}

/* python, python3, python3.12, pypy3 */
static bool is_python(const char *word) {
    const char *name = base_name(word);
    size_t length = strncmp(name, "python", 6) == 0 ? 6 : strncmp(name, "pypy", 4) == 0 ? 4 : 0;
    return length && strspn(name + length, "0123456789.") == strlen(name + length);
}

/* What a Python command line runs: options up to the first of -m MODULE, -c CODE or a script. */
static const char *find_python_launcher(char *const *arguments, const char **fix) {
    for (; *arguments; arguments++) {
        const char *word = *arguments;
        if (word[0] != '-')
            return find_launcher(word, fix);
        if (strncmp(word, "--", 2) == 0) {
            if (strcmp(word, "--check-hash-based-pycs") == 0 && arguments[1])
                arguments++;
            continue;
        }
        for (const char *letter = word + 1; *letter; letter++) { /* letters may be joined: -um MODULE */
            if (*letter == 'c')
                return NULL;
            if (*letter == 'm')
                return letter[1]      ? find_module(letter + 1, fix)
                       : arguments[1] ? find_module(arguments[1], fix)
                                      : NULL;
            if (*letter == 'W' || *letter == 'X') {
                if (!letter[1] && arguments[1])
                    arguments++;
                break;
            }
        }
    }
    return NULL;
}

const char *run_command_launcher(char *const *command, const char **fix) {
    bool wrapped = false;
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        wrapped |= command[0] && strcmp(base_name(command[0]), wrappers[i]) == 0;
    for (; *command; command++) {
        const char *found = find_launcher(*command, fix);
        if (found)
            return found;
        if (is_python(*command))
            return find_python_launcher(command + 1, fix);
        if (!wrapped)
            break;
    }
    return NULL;
}
