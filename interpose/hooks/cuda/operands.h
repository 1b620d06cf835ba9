/* What CUDA's functions do for homes and slots: everything that a process needs once it has homes. */
#ifndef CASTOR_HOOKS_CUDA_OPERANDS_H
#define CASTOR_HOOKS_CUDA_OPERANDS_H

#include "base/status.h"

/* From now on library calls read operands from slots, writers are noted, and allocations that fail are rescued. Does nothing
 * the second time. */
castor_status cuda_operands_install(void);

#endif
