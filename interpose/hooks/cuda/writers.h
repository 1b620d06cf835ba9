/* Whoever may write a home says so to the slots (device/slots.h), after what it has enqueued.
 *
 * Calls that write where their arguments say are noted with the bytes that they write: copies and sets, what a collective receives, the
 * outputs of products (blas.c). A launch is noted for each storage that an address among its arguments lies in: it may read it only. Where no address can be had, all storages are noted.
 *
 * Addresses that a kernel finds in the device's memory cannot be seen when it is launched. Homes whose addresses a copy from the host
 * has brought there have no slots from then on. Not noted at all: addresses that a kernel has stored itself, or finds in
 * memory of the host, and kernels that a library launches past the hooks. Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_WRITERS_H
#define CASTOR_HOOKS_CUDA_WRITERS_H

#include "base/status.h"
#include "device/devices.h"

#define WRITERS_OPEN 0 /* bytes: how many is unknown, anything in the home */

/* From now on everything that writes homes is noted. More than one call is one. */
castor_status writers_install(void);

/* What has just been enqueued in `stream` may have changed these bytes. Where they are in no home nothing happens. */
void writers_note_home(uintptr_t address, size_t bytes, uint64_t stream);
static inline void writers_note(const void *address, size_t bytes, uint64_t stream) {
    if (__builtin_expect(devices_may_hold((uintptr_t)address), 0))
        writers_note_home((uintptr_t)address, bytes, stream);
}
/* ... may have changed any home. */
void writers_note_all(uint64_t stream);

/* Whether there can be homes. */
static inline bool writers_matter(void) {
    return __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED) != 0;
}

#endif
