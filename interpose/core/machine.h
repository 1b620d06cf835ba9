/* What the machine and the control groups around a process give it, as /proc and /sys tell. No malloc, no stdio.
 *
 * `root` is put before each path: "" is the machine itself, a test has a tree of its own. */
#ifndef CASTOR_CORE_MACHINE_H
#define CASTOR_CORE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number that a file begins with. false: there is none. */
bool machine_read_number(const char *root, const char *path, uint64_t *out);
/* A line "NAME:   123 kB" of /proc/meminfo, in bytes. */
bool machine_meminfo(const char *root, const char *name, uint64_t *out);

/* A controller of control groups, and the names of a file of it in versions 2 and 1. */
typedef struct machine_controller {
    const char *name, *file_v2, *file_v1;
} machine_controller;

/* The text of a limit: of the innermost control group that has one. */
bool machine_group_limit(const char *root, const machine_controller *controller, char out[64]);

/* Bytes of memory that this machine's processes can still get: what is available, and no more than each control group leaves,
 * where clean pages of files count as free. UINT64_MAX: nothing tells. */
uint64_t machine_memory_available(const char *root);

#endif
