#include "words.h"

#include <string.h>

static const known_launcher launchers[] = {
    {"torchrun", "--nproc-per-node", false},
    {"accelerate", "--num_processes", false},
    {"deepspeed", "--num_gpus", false},
    {"mpirun", "-n", true},
    {"mpiexec", "-n", true},
    {"srun", "--ntasks", true},
    {"horovodrun", "-np", true},
    {"jupyter", NULL, false},
    {"jupyter-lab", NULL, false},
    {"jupyter-notebook", NULL, false},
    {"jupyter-console", NULL, false},
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
    {"ipykernel_launcher", NULL},
    {"ipykernel", NULL},
};

const char *words_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const known_launcher *words_launcher_of(const char *word) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (strcmp(words_base_name(word), launchers[i].name) == 0)
            return &launchers[i];
    return NULL;
}

const char *words_find_launcher(const char *word, const char **fix) {
    const known_launcher *launcher = words_launcher_of(word);
    if (launcher)
        *fix = launcher->fix;
    return launcher ? launcher->name : NULL;
}

static const char *find_module(const char *module, const char **fix) {
    for (size_t i = 0; i < sizeof launcher_modules / sizeof *launcher_modules; i++)
        if (strcmp(module, launcher_modules[i].name) == 0) {
            *fix = launcher_modules[i].fix;
            return launcher_modules[i].name;
        }
    return NULL;
}

bool words_is_python(const char *word) {
    const char *name = words_base_name(word);
    size_t length = strncmp(name, "python", 6) == 0 ? 6 : strncmp(name, "pypy", 4) == 0 ? 4 : 0;
    return length && strspn(name + length, "0123456789.") == strlen(name + length);
}

static bool is_standard_input(const char *script) {
    static const char *const names[] = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(script, names[i]) == 0)
            return true;
    return false;
}

python_line words_python_line(char *const *arguments) {
    python_line line = {0};
    for (; *arguments; arguments++) {
        const char *word = *arguments;
        if (word[0] != '-' || !word[1]) {
            line.launcher = words_find_launcher(word, &line.fix);
            line.from_input = is_standard_input(word);
            return line;
        }
        if (strncmp(word, "--help", 6) == 0 || strcmp(word, "--version") == 0)
            return line;
        if (strncmp(word, "--", 2) == 0) {
            if (strcmp(word, "--check-hash-based-pycs") == 0 && arguments[1])
                arguments++;
            continue;
        }
        for (const char *letter = word + 1; *letter; letter++) { /* letters may be joined: -um MODULE */
            if (strchr("chV?", *letter))
                return line;
            if (*letter == 'E' || *letter == 'I')
                line.alone = *letter;
            if (*letter == 'm') {
                const char *module = letter[1] ? letter + 1 : arguments[1];
                line.launcher = module ? find_module(module, &line.fix) : NULL;
                return line;
            }
            if (*letter == 'W' || *letter == 'X') {
                if (!letter[1] && arguments[1])
                    arguments++;
                break;
            }
        }
    }
    line.from_input = true;
    return line;
}
