#include "kills.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

#define CGROUPS_MOUNT "/sys/fs/cgroup"

static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = '\0';
    return length >= 0;
}

/* The number after `name` on a line of its own. */
static bool find_number(const char *text, const char *name, uint64_t *out) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            *out = strtoull(line + length, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool read_number(const char *root, const char *folder, const char *file, const char *name,
                        uint64_t *out) {
    char path[2 * PATH_MAX], text[16384];
    log_format(path, sizeof path, "%s%s%s", root, folder, file);
    return read_text(path, text, sizeof text) && find_number(text, name, out);
}

/* This process's group in the hierarchy whose line has `controller` between its colons. False: it is in none, or in one that is not
 * to be seen from here. */
static bool find_cgroup(const char *root, const char *controller, char out[PATH_MAX]) {
    char path[PATH_MAX], text[8192], *rest = NULL;
    log_format(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text, sizeof text))
        return false;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ':'), *folder = names == NULL ? NULL : strchr(names + 1, ':');
        if (folder == NULL || strstr(folder, "/..") != NULL)
            continue;
        *folder++ = '\0';
        if (strcmp(names + 1, controller) == 0 && log_format(out, PATH_MAX, "%s", folder) + 1 < PATH_MAX)
            return true;
    }
    return false;
}

/* Version 2: a kill counts in the process's group and all above it; a limit that was reached, in its group and above. */
static bool read_unified(const char *root, const char *mount, run_kills *out) {
    char cgroup[PATH_MAX], folder[2 * PATH_MAX];
    if (!find_cgroup(root, "", cgroup))
        return false;
    bool own = true;
    for (;;) {
        uint64_t limits = 0;
        char *slash = strrchr(cgroup, '/');
        log_format(folder, sizeof folder, "%s%s", mount, slash != NULL && slash[1] == '\0' ? "" : cgroup);
        if (own && !read_number(root, folder, "/memory.events", "oom_kill", &out->cgroup))
            return false;
        own = false;
        if (read_number(root, folder, "/memory.events", "oom", &limits))
            out->limits += limits;
        if (slash == NULL || (slash == cgroup && slash[1] == '\0'))
            return true;
        slash[slash == cgroup] = '\0';
    }
}

/* Version 1: a kill counts in the process's own cgroup, which may be one below this. */
static bool read_version_1(const char *root, run_kills *out) {
    char cgroup[PATH_MAX], folder[2 * PATH_MAX];
    if (!find_cgroup(root, "memory", cgroup))
        return false;
    log_format(folder, sizeof folder, CGROUPS_MOUNT "/memory%s", cgroup);
    return read_number(root, folder, "/memory.oom_control", "oom_kill", &out->cgroup) ||
           /* In a container the mount shows the group itself. */
           read_number(root, CGROUPS_MOUNT "/memory", "/memory.oom_control", "oom_kill", &out->cgroup);
}

void run_kills_read(const char *root, run_kills *out) {
    *out = (run_kills){0};
    read_number(root, "/proc", "/vmstat", "oom_kill", &out->system);
    if (read_version_1(root, out))
        out->limits = out->cgroup; /* it does not count them apart */
    else
        out->cgroup_complete =
            read_unified(root, CGROUPS_MOUNT, out) || read_unified(root, CGROUPS_MOUNT "/unified", out);
}

static uint64_t growth(uint64_t before, uint64_t after) {
    return after > before ? after - before : 0;
}

void run_kills_since(const char *root, const run_kills *before, uint64_t *by_cgroup, uint64_t *by_kernel) {
    run_kills now;
    run_kills_read(root, &now);
    uint64_t killed = growth(before->cgroup, now.cgroup);
    bool limited = killed > 0 && growth(before->limits, now.limits) > 0;
    if (killed == 0 && !(now.cgroup_complete && before->cgroup_complete))
        killed = growth(before->system, now.system);
    *by_cgroup = limited ? killed : 0;
    *by_kernel = limited ? 0 : killed;
}
