/* Joined homes (device/homes.h) can only be read. Before a call that may write to one, the home leaves: it gets pages of its own.
 *
 * Whoever says to the slots what a call may have written (writers.h) says it here before the call. A launch may write through each address
 * among its arguments, so a joined home stays joined only while products and copies alone read it. What nobody
 * announces faults. None of it may be called within a real call, which the gate would wait for. Private to hooks/cuda, and to
 * the API, which has the processors write (api/device_steps_exports.c). */
#ifndef CASTOR_HOOKS_CUDA_JOINED_H
#define CASTOR_HOOKS_CUDA_JOINED_H

#include "device/devices.h"
#include "observe.h"

/* Whether there are any. */
static inline bool joined_matter(void) {
    return __builtin_expect(__atomic_load_n(&homes_joined, __ATOMIC_RELAXED) != 0, 0);
}
/* Homes that hold some of these bytes leave; 0 bytes: that which holds the address. on_host: as for home_leave(). */
void joined_leave_homes(uintptr_t address, size_t bytes, bool on_host);
static inline void joined_leave(const void *address, size_t bytes) {
    if (joined_matter() && devices_may_hold((uintptr_t)address))
        joined_leave_homes((uintptr_t)address, bytes, false);
}
/* All leave: it is not known which the call writes to, or it is captured. */
void joined_leave_all(void);
/* Of a call of the runtime or the driver that writes where its row says. */
void joined_announced(effect_writes writes, const observe_facts *facts);

#endif
