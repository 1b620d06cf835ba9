/* A descriptor of userfaultfd, by which a process hears of faults in its own memory. */
#ifndef CASTOR_BASE_USERFAULT_H
#define CASTOR_BASE_USERFAULT_H

#include <stdint.h>

/* A descriptor with these features (UFFD_FEATURE_), also for faults of system calls; closed by execve. -1 and errno: the kernel has
 * not all of them, or refuses it to this process. */
int userfault_open(uint64_t features);

#endif
