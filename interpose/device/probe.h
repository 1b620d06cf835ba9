/* What a device and its driver can do of what homes need, found by doing it on a little memory (`castor doctor`).
 *
 * Levels, each with all before it but for host memory, which is what there is in place of host pages
 *   pages       pages of the device are made, mapped at an address of ours, written and read
 *   host memory the driver maps no pages of the host. What it allocates there is written and read by the device: homes on the host
 *               stay there, and so do those on the device
 *   host pages  pages of the host as those of the device
 *   flips       a home moves to the host and back, with its bytes */
#ifndef CASTOR_DEVICE_PROBE_H
#define CASTOR_DEVICE_PROBE_H

#include "homes.h"

typedef enum device_level {
    DEVICE_LEVEL_NONE,
    DEVICE_LEVEL_PAGES,
    DEVICE_LEVEL_HOST_MEMORY,
    DEVICE_LEVEL_HOST_PAGES,
    DEVICE_LEVEL_FLIPS
} device_level;

typedef struct device_probe {
    device_level level; /* that was reached */
    uint64_t unit_bytes;
    uint64_t free_bytes, total_bytes; /* of the device's memory */
    uint64_t host_bytes;              /* that may become host pages */
    uint64_t copy_bytes,
        copy_ns[DEVICE_TIER_COUNT]; /* of one copy between the host's and the device's memory, by where to */
} device_probe;

/* `copy_bytes`: of a timed copy, rounded up to units. CASTOR_OK: all levels. Else the error's text says what the next level, or the one
 * after host memory, lacks. Nothing is left behind. The device has nothing else to do in this process. */
castor_status device_probe_run(const device_driver *driver, int device, uint64_t copy_bytes,
                               device_probe *out);

#endif
