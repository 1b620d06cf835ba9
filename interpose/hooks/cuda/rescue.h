/* A device that is out of memory gets room: homes move to the host, and the allocation is tried again before its caller hears of it.
 *
 * What is rescued: cudaMalloc, cudaMallocAsync, cuMemAlloc, and cuMemCreate of memory of a device (PyTorch's expandable segments). Never while a
 * stream is captured. What no home can help gets the memory of slots, and then that of the host (overflow.h). Other calls of CUDA wait meanwhile, and what was enqueued is done first.
 *
 * cudaMemGetInfo and cuMemGetInfo count what could move as free, so that a script that fills the free memory fills it. Private to hooks/. */
#ifndef CASTOR_HOOKS_CUDA_RESCUE_H
#define CASTOR_HOOKS_CUDA_RESCUE_H

#include "base/status.h"

/* Once, when the gate is armed. CASTOR_ERR_UNSUPPORTED: there is no runtime of CUDA to rescue. */
castor_status rescue_install(void);

#endif
