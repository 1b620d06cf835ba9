/* The driver of device/ over CUDA (device/driver.h).
 *
 * Calls go to the real functions of libcuda, never to the wrappers: nothing of them is recorded, and none passes the gate. Each runs
 * in the device's primary context, which is the runtime's and so PyTorch's, and leaves the thread's own context as it was; and
 * outside of what the thread's captures forbid, so that it does not break them.
 *
 * Host pages are of the NUMA node of the device where the driver takes that, else of any; which, is found once per device by making and
 * mapping one unit of them. They are mapped for the processors as well where the driver takes that. Private to hooks/. */
#ifndef CASTOR_HOOKS_CUDA_DRIVER_H
#define CASTOR_HOOKS_CUDA_DRIVER_H

#include "device/driver.h"

const device_driver *cuda_driver(void);

#endif
