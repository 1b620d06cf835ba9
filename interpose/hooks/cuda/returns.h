/* Homes come back to the device between steps, or leave it for a smaller budget. Private to hooks/ and api/. */
#ifndef CASTOR_HOOKS_CUDA_RETURNS_H
#define CASTOR_HOOKS_CUDA_RETURNS_H

#include <stdint.h>

/* A step is over. Other calls of CUDA wait while homes move, and what was enqueued is done first; never while a stream is captured.
 * Does nothing for a device that was not started. */
void cuda_homes_step_end(int device);
/* The budget of a device is another one from now on, and what is beyond it moves to the host. What cannot move stays, with a line. */
void cuda_budget_set(int device, uint64_t budget_bytes);

#endif
