/* The bytes that this process has allocated on its devices, from the calls that the wrappers observe: cudaMalloc, cuMemCreate and
 * the like, until they are freed. Memory of homes and slots is not among them, since the library makes it without a wrapper. */
#ifndef CASTOR_TRACE_DEVICE_MEMORY_H
#define CASTOR_TRACE_DEVICE_MEMORY_H

#include <stdint.h>

typedef enum device_memory_action {
    DEVICE_MEMORY_NONE,
    DEVICE_MEMORY_ALLOCATE,
    DEVICE_MEMORY_FREE
} device_memory_action;

/* A call has succeeded. `object`: the address, or the handle of cuMemCreate. Of allocations beyond what the table holds nothing is
 * known: they count as none. Takes a lock that nothing is waited for under. */
void device_memory_note(device_memory_action action, uint64_t object, uint64_t bytes);
/* Atomic. */
uint64_t device_memory_bytes(void);
void device_memory_reset(void); /* in a forked child: it has no device */

#endif
