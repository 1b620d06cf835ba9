/* The cores and the memory that this process may use. */
#ifndef CASTOR_LAUNCHER_COMMON_LIMITS_H
#define CASTOR_LAUNCHER_COMMON_LIMITS_H

#include <stdint.h>

double limit_cores_given(void);    /* the processor time that a control group gives, in cores; 0: no limit */
uint64_t limit_memory_bytes(void); /* what a control group allows; 0: no limit */

#endif
