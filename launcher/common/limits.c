#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/machine.h"

double limit_cores_given(void) {
    char quota[64];
    double limit = 0, period = 0;
    if (!machine_cgroup_limit("", &(machine_controller){"cpu", "cpu.max", "cpu.cfs_quota_us"}, quota) ||
        sscanf(quota, "%lf %lf", &limit, &period) < 1 || limit <= 0)
        return 0;
    return limit / (period > 0 ? period : 100000);
}

uint64_t limit_memory_bytes(void) {
    char text[64];
    return machine_cgroup_limit("", &(machine_controller){"memory", "memory.max", "memory.limit_in_bytes"},
                                text)
               ? strtoull(text, NULL, 10)
               : 0;
}
