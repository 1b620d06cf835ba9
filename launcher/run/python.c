/* Where a Python has torch, and where another one has it: by the folders beside the interpreter. No Python is started for that. */
#include "run.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

/* The folder above that of the interpreter; false: the path is too long or has none. */
static bool prefix_of(const char *path, char *out) {
    if (strlen(path) >= PATH_MAX)
        return false;
    strcpy(out, path);
    for (int level = 0; level < 2; level++) {
        char *slash = strrchr(out, '/');
        if (!slash && level > 0) { /* bin/python */
            strcpy(out, ".");
            return true;
        }
        if (!slash)
            return false;
        *slash = '\0';
    }
    return true;
}

static bool exists(const char *prefix, const char *below) {
    char pattern[PATH_MAX + 64];
    glob_t found;
    log_format(pattern, sizeof pattern, "%s/%s", prefix, below);
    bool any = glob(pattern, GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return any;
}

static bool prefix_has_torch(const char *prefix) {
    static const char *const places[] = {
        "lib/python3*/site-packages/torch/version.py",
        "lib64/python3*/site-packages/torch/version.py",
        "lib/python3*/dist-packages/torch/version.py",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (exists(prefix, places[i]))
            return true;
    return false;
}

/* Whether a virtual environment takes the packages of the Python that it was made from. */
static bool takes_others(const char *prefix) {
    char path[PATH_MAX + 16], line[256];
    bool takes = false;
    log_format(path, sizeof path, "%s/pyvenv.cfg", prefix);
    FILE *file = fopen(path, "re");
    if (!file)
        return true; /* none: a Python of its own, perhaps by a link */
    while (!takes && fgets(line, sizeof line, file))
        takes = strncmp(line, "include-system-site-packages", 28) == 0 && strstr(line, "true");
    fclose(file);
    return takes;
}

run_torch run_python_torch(const char *path, const char *home) {
    char prefix[PATH_MAX], real[PATH_MAX], local[PATH_MAX];
    if (!prefix_of(path, prefix))
        return RUN_TORCH_UNKNOWN;
    bool known = exists(prefix, "lib/python3*");
    if (prefix_has_torch(prefix))
        return RUN_TORCH_HERE;
    if (takes_others(prefix)) {
        if (!realpath(path, real) || !prefix_of(real, prefix))
            return RUN_TORCH_UNKNOWN;
        known = known || exists(prefix, "lib/python3*");
        log_format(local, sizeof local, "%s/.local", home ? home : "");
        if (prefix_has_torch(prefix) || prefix_has_torch("/usr/local") || (home && prefix_has_torch(local)))
            return RUN_TORCH_HERE;
    }
    return known ? RUN_TORCH_MISSING : RUN_TORCH_UNKNOWN;
}

/* Whether `path` may be suggested in place of `except`. */
static bool is_better(const char *path, const char *except) {
    char prefix[PATH_MAX];
    return strcmp(path, except) != 0 && access(path, X_OK) == 0 && prefix_of(path, prefix) &&
           prefix_has_torch(prefix);
}

bool run_python_other(const char *search, const char *except, char *out, size_t out_size) {
    static const char *const folders[] = {".venv/bin/python", "venv/bin/python"};
    static const char *const names[] = {"python", "python3"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        log_format(out, out_size, "%s", folders[i]);
        if (is_better(out, except))
            return true;
    }
    for (const char *element = search; element && *element;) {
        size_t length = strcspn(element, ":");
        for (size_t i = 0; i < sizeof names / sizeof *names && length; i++) {
            if (log_format(out, out_size, "%.*s/%s", (int)length, element, names[i]) + 1 < out_size &&
                is_better(out, except))
                return true;
        }
        element += length + (element[length] == ':');
    }
    return false;
}
