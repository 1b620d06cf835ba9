/* Homes come back to the device between steps. Private to hooks/ and api/. */
#ifndef CASTOR_HOOKS_CUDA_RETURNS_H
#define CASTOR_HOOKS_CUDA_RETURNS_H

/* A step is over. Other calls of CUDA wait while homes move, and what was enqueued is done first; never while a stream is captured.
 * Does nothing for a device that was not started. */
void cuda_homes_step_end(int device);

#endif
