/* CASTOR_OVERFLOW: when nothing can free memory of a device any more, allocations are pages of the host under addresses of the device. Any access
 * is right there, at the link's speed.
 *
 * PyTorch answers a failure by freeing what it caches and asking again for the same size. So the first failure passes, and the second
 * one in a row is the last resort. What is refused then is out of memory for good. Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_OVERFLOW_H
#define CASTOR_HOOKS_CUDA_OVERFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of this thread: an allocation has failed. True: PyTorch has asked again. */
bool overflow_is_last(int device, size_t bytes);
/* ... has succeeded. */
void overflow_not_needed(void);
/* After overflow_is_last. False: the allocation fails. Says once for each device what happens, or which option would help. Not while a
 * stream is captured. */
bool overflow_allocate(int device, size_t bytes, void **out);     /* freed by cudaFree */
bool overflow_create(int device, size_t bytes, uint64_t *handle); /* freed by cuMemRelease */
/* This thread's allocations are of this kind until it says otherwise: its caller does without them, so they may fail, and nothing is said. */
void overflow_optional(bool optional);
void overflow_install(void);

#endif
