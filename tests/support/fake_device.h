/* A device without a device: the driver of `device/` for unit tests.
 *
 * Addresses are real: a range of this process, where pages are shared files (memfd) that are mapped and unmapped for good, so a
 * touch of an unmapped address faults. Streams hold operations that run when the test says so, in any order that events allow:
 * fake_device_run runs one that may run, chosen by the seed, so that a missing event shows as wrong bytes. The test enqueues
 * operations of its own (reads and writes) with fake_device_enqueue. It checks what the seam promises (device/driver.h), and fails
 * where a test wants. New pages are not zero. Safe from any thread; operations run with its lock held.
 *
 * Streams below 1000 are the test's own and need not be made. No stream waits for another without an event, nor for stream 0.
 * All numbers of devices below 64 are one memory; streams and events remember with which they were used. */
#ifndef CASTOR_TESTS_SUPPORT_FAKE_DEVICE_H
#define CASTOR_TESTS_SUPPORT_FAKE_DEVICE_H

#include "device/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_device fake_device;
/* What the driver makes of the host's memory: pages; blocks at addresses of its choice, of which some are below and some above what is
 * reserved; or nothing, so that it has no granularity either. */
typedef enum fake_host { FAKE_HOST_PAGES, FAKE_HOST_BLOCKS, FAKE_HOST_NONE } fake_host;
typedef struct fake_device_settings {
    size_t unit_bytes;     /* 0: 64 KiB */
    uint64_t device_bytes; /* memory of the device */
    uint64_t host_bytes;   /* of the host that may become pages */
    uint64_t seed;
    fake_host host;
} fake_device_settings;

fake_device *fake_device_make(const fake_device_settings *settings, device_driver *driver);
void fake_device_end(fake_device *d);

/* A test's own operation in a stream. */
void fake_device_enqueue(fake_device *d, uint64_t stream, void (*operation)(void *argument), void *argument);
/* Runs one operation that may run; false: there is none. */
bool fake_device_run(fake_device *d);
void fake_device_run_all(fake_device *d);
void fake_device_captures(fake_device *d, uint64_t stream, bool captures);
/* Call number `call` of the driver, counted as fake_device_calls does, fails; `more`: all after it fail too; 0: none. */
void fake_device_fail(fake_device *d, uint64_t call, bool more);
/* Of those that may fail, since the beginning. */
uint64_t fake_device_calls(fake_device *d);
/* With which status they fail; CASTOR_OK: CASTOR_ERR_MEMORY where memory is made or mapped, else CASTOR_ERR_SYSTEM. */
void fake_device_fail_with(fake_device *d, castor_status status);
void fake_device_drain_hangs(fake_device *d, bool hangs);
/* Of the driver's drain, those that failed too. A drain runs what is enqueued. */
uint64_t fake_device_drains(fake_device *d);
/* Memory that others took: so much less is free. */
void fake_device_others(fake_device *d, uint64_t device_bytes, uint64_t host_bytes);
uint64_t fake_device_used(fake_device *d, device_tier tier);
/* Maps of pages that exist now; a block counts as one. */
uint64_t fake_device_maps(fake_device *d);
/* Whether pages of one tier lie under the whole range; DEVICE_TIER_COUNT: none or several do. */
device_tier fake_device_tier(fake_device *d, uintptr_t address, size_t bytes);
/* NULL, or the first promise that was not kept. */
const char *fake_device_broken(fake_device *d);

#ifdef __cplusplus
}
#endif

#endif
