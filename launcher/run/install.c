#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/version.h"

/* DIRECTORY/RELATIVE made absolute, if it is there. */
static bool resolve(const char *directory, const char *relative, char *out) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", directory, relative);
    return length > 0 && length < PATH_MAX && realpath(path, out) && access(out, R_OK) == 0;
}

int run_install_find_from(const char *binary, run_install *out) {
    char directory[PATH_MAX], package[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", binary);
    char *slash = strrchr(directory, '/');
    if (slash)
        *slash = '\0';
    if (!resolve(directory, "../lib/" CASTOR_SONAME, out->library)) {
        LOG_E("%s/../lib/" CASTOR_SONAME " is missing; run make, or make install again", directory);
        return RUN_EXIT_SYSTEM;
    }
    if (!resolve(directory, "../lib/castor", out->python) || !resolve(out->python, "castor", package)) {
        LOG_E("%s/../lib/castor, the Python part of Castor, is missing; run make, or make install again",
              directory);
        return RUN_EXIT_SYSTEM;
    }
    if (!resolve(directory, "../lib/castor-simulation", out->simulation))
        out->simulation[0] = '\0';
    /* The dynamic linker splits LD_PRELOAD at spaces and colons, Python splits PYTHONPATH at colons; neither
     * has a way to quote them. */
    if (strpbrk(out->library, " :") || strchr(out->python, ':')) {
        LOG_E("%s: Castor cannot work from a path with spaces or colons; install it elsewhere", out->library);
        return RUN_EXIT_SYSTEM;
    }
    return 0;
}

int run_install_find(run_install *out) {
    char binary[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", binary, sizeof binary - 1);
    if (length < 0) {
        LOG_E("/proc/self/exe cannot be read (%s); is /proc mounted?", strerror(errno));
        return RUN_EXIT_SYSTEM;
    }
    binary[length] = '\0';
    return run_install_find_from(binary, out);
}
