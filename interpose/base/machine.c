#include "machine.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"

#define PATH_BYTES 4600

/* The beginning of a file, as text. false: there is nothing to read. */
static bool read_text(const char *root, const char *path, char *out, size_t out_size) {
    char whole[PATH_BYTES];
    log_format(whole, sizeof whole, "%s%s", root, path);
    int fd = open(whole, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t length = 1;
    while (fd >= 0 && length > 0 && used < out_size - 1) {
        length = read(fd, out + used, out_size - 1 - used);
        used += length > 0 ? (size_t)length : 0;
    }
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    return used > 0;
}

bool machine_read_number(const char *root, const char *path, uint64_t *out) {
    char text[64], *end;
    if (!read_text(root, path, text, sizeof text))
        return false;
    *out = strtoull(text, &end, 10);
    return end != text;
}

/* The number behind NAME at the beginning of a line. */
static bool find_line(const char *text, const char *name, uint64_t *out) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && (line[length] == ':' || line[length] == ' ')) {
            *out = strtoull(line + length + 1, NULL, 10);
            return true;
        }
    }
    return false;
}

bool machine_meminfo(const char *root, const char *name, uint64_t *out) {
    char text[8192];
    if (!read_text(root, "/proc/meminfo", text, sizeof text) || !find_line(text, name, out))
        return false;
    *out *= 1024;
    return true;
}

/* "name" in "cpu,cpuacct", which ends at a colon. */
static bool names_controller(const char *list, const char *name) {
    size_t length = strlen(name);
    while (*list != ':') {
        size_t word = strcspn(list, ",:");
        if (word == length && memcmp(list, name, length) == 0)
            return true;
        list += word + (list[word] == ',');
    }
    return false;
}

/* Calls `visit` with the folder of each control group around the process that the controller limits, the innermost first, until
 * it returns true; returns whether it did. */
static bool cgroups_walk(const char *root, const char *controller,
                         bool (*visit)(const char *folder, bool v2, void *context), void *context) {
    char text[4096], folder[PATH_BYTES];
    if (!read_text(root, "/proc/self/cgroup", text, sizeof text))
        return false;
    for (char *line = text, *next; line != NULL && *line; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        bool v2 = controllers[1] == ':';
        if (!v2 && !names_controller(controllers + 1, controller))
            continue;
        group++;
        /* Inside a container the path may be the host's: the root of the mount counts then. */
        for (;;) {
            log_format(folder, sizeof folder, "/sys/fs/cgroup%s%s%s", v2 ? "" : "/", v2 ? "" : controller,
                       strcmp(group, "/") == 0 ? "" : group);
            if (visit(folder, v2, context))
                return true;
            char *slash = strrchr(group, '/');
            if (slash == NULL || group[0] == '\0')
                break;
            *slash = '\0';
        }
    }
    return false;
}

struct limit_visit {
    const char *root;
    const machine_controller *controller;
    char *out;
};

static bool visit_limit(const char *folder, bool v2, void *context) {
    const struct limit_visit *l = context;
    char path[PATH_BYTES + 64];
    log_format(path, sizeof path, "%s/%s", folder, v2 ? l->controller->file_v2 : l->controller->file_v1);
    return read_text(l->root, path, l->out, 64) && strncmp(l->out, "max", 3) != 0;
}

bool machine_cgroup_limit(const char *root, const machine_controller *controller, char out[64]) {
    return cgroups_walk(root, controller->name, visit_limit, &(struct limit_visit){root, controller, out});
}

struct memory_visit {
    const char *root;
    uint64_t left;
};

static bool cgroup_number(const char *root, const char *folder, const char *file, uint64_t *out) {
    char path[PATH_BYTES + 64];
    log_format(path, sizeof path, "%s/%s", folder, file);
    return machine_read_number(root, path, out);
}

/* A group's clean pages of files are the kernel's to take: they are the inactive ones, about. */
static bool visit_memory(const char *folder, bool v2, void *context) {
    struct memory_visit *l = context;
    char path[PATH_BYTES + 64], stat[8192];
    uint64_t limit, used, inactive = 0;
    if (!cgroup_number(l->root, folder, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) ||
        !cgroup_number(l->root, folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        return false;
    log_format(path, sizeof path, "%s/memory.stat", folder);
    if (read_text(l->root, path, stat, sizeof stat))
        find_line(stat, v2 ? "inactive_file" : "total_inactive_file", &inactive);
    used -= inactive < used ? inactive : used;
    uint64_t left = used < limit ? limit - used : 0;
    l->left = left < l->left ? left : l->left;
    return false;
}

uint64_t machine_memory_available(const char *root) {
    struct memory_visit l = {root, UINT64_MAX};
    machine_meminfo(root, "MemAvailable", &l.left);
    cgroups_walk(root, "memory", visit_memory, &l);
    return l.left;
}

unsigned long machine_cores_usable(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (unsigned long)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than cpu_set_t holds */
    return online > 0 ? (unsigned long)online : 1;
}
