/* The resources that the machine and its control groups give to a process, from /proc and /sys. No malloc, no stdio.
 *
 * `root` is put before each path: "" is the machine itself; a test uses a tree of its own. */
#ifndef CASTOR_BASE_MACHINE_H
#define CASTOR_BASE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number at the beginning of a file. False: there is none. */
bool machine_read_number(const char *root, const char *path, uint64_t *out);
/* A line "NAME:   123 kB" of /proc/meminfo, in bytes. */
bool machine_meminfo(const char *root, const char *name, uint64_t *out);

/* The processors that this process may use. */
unsigned long machine_cores_usable(void);

/* A controller of control groups, and the names of a file of it in versions 2 and 1. */
typedef struct machine_controller {
    const char *name, *file_v2, *file_v1;
} machine_controller;

/* The text of a limit, from the innermost control group that has one. */
bool machine_cgroup_limit(const char *root, const machine_controller *controller, char out[64]);

/* Bytes of memory that this process can still get: the machine's available memory, bounded by the free part of each of its
 * control groups, where clean pages of files count as free. UINT64_MAX: unknown. */
uint64_t machine_memory_available(const char *root);

#endif
