/* What a call touches and the processors may still be at (device/updates.h): before the call, its stream waits for that.
 *
 * As with joined homes, a call is known by its addresses, and a launch touches each home that has an address among its arguments; a call of
 * which that is not known waits for all. No wait blocks the host. Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_AWAITED_H
#define CASTOR_HOOKS_CUDA_AWAITED_H

#include "device/devices.h"
#include "observe.h"

void awaited_homes(uintptr_t address, size_t bytes, uint64_t stream);
/* Of homes that hold some of these bytes; 0 bytes: of that which holds the address. The stream is one of the thread's device. */
static inline void awaited(const void *address, size_t bytes, uint64_t stream) {
    if (updates_matter() && devices_may_hold((uintptr_t)address))
        awaited_homes((uintptr_t)address, bytes, stream);
}
void awaited_all(uint64_t stream);
/* In any stream: it is not known in which the call runs. Here the host waits. */
void awaited_by_host(void);
/* Of a call of the runtime or the driver whose row says what it touches. */
void awaited_announced(effect_writes writes, effect_reads reads, const observe_facts *facts);

#endif
