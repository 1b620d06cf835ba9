/* The kernel's counts of processes that it killed because memory was out. */
#ifndef CASTOR_LAUNCHER_RUN_KILLS_H
#define CASTOR_LAUNCHER_RUN_KILLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct run_kills {
    bool cgroup_complete; /* `cgroup` is complete: those of all groups below are in it */
    uint64_t cgroup; /* processes of this process's control group that were killed, whyever memory was out */
    uint64_t limits; /* times that limits of the group and of those above it were reached */
    uint64_t system; /* processes killed on this machine */
} run_kills;

/* `root`: "", or another root for a test. What cannot be read is 0. */
void run_kills_read(const char *root, run_kills *out);
/* What was killed since `before`: by limits of control groups, and for other reasons. */
void run_kills_since(const char *root, const run_kills *before, uint64_t *by_cgroup, uint64_t *by_kernel);

#endif
