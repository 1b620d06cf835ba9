/* The driver of a device, as homes and slots see it: the only way in which `device/` touches memory, streams or a clock.
 *
 * hooks/cuda/driver.c is the one of CUDA; tests/support/fake_device.h is one without a device.
 *
 * Vocabulary
 *   pages    physical memory of a device or of the host (a "handle" of the CUDA driver), of one or more units
 *   unit     the granularity: sizes and addresses of pages and maps are multiples of it
 *   stream, event, as in CUDA, as numbers; stream 0 is the legacy default stream of the device,
 *            DEVICE_STREAM_PER_THREAD the default stream of the calling thread: another one in each thread
 *
 * What every driver guarantees
 *   - the functions are safe from any thread, and none calls back into `device/`
 *   - a function that fails has changed nothing and sets the error's text. A lack of memory is CASTOR_ERR_MEMORY, anything else
 *     CASTOR_ERR_SYSTEM
 *   - streams and events of a device are used with that device only */
#ifndef CASTOR_DEVICE_DRIVER_H
#define CASTOR_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define DEVICE_STREAM_PER_THREAD 2

typedef enum device_tier { DEVICE_TIER_DEVICE, DEVICE_TIER_HOST, DEVICE_TIER_COUNT } device_tier;

typedef struct device_driver {
    void *context;

    /* ---- memory ---- */
    /* The unit in bytes, a power of two; 0: this device cannot map memory, and error_text says why. */
    size_t (*granularity)(void *context, int device);
    /* A range of addresses without pages, aligned to `alignment` (a power of two). */
    castor_status (*reserve)(void *context, int device, size_t bytes, size_t alignment, uintptr_t *address);
    castor_status (*unreserve)(void *context, uintptr_t address, size_t bytes);
    /* Whether the device maps pages of the host; if not, error_text says why, and no others than its own are created. */
    bool (*maps_host)(void *context, int device);
    /* Whether the processors read and write pages of the host where the device maps them. */
    bool (*host_is_reached)(void *context, int device);
    /* Memory of the host that the device reads and writes at the same address as the process does, aligned to a unit, until
     * `block` ends. The driver chooses the address. */
    castor_status (*host_make)(void *context, int device, size_t bytes, uintptr_t *address, uint64_t *block);
    castor_status (*host_end)(void *context, int device, uint64_t block);
    castor_status (*create)(void *context, int device, device_tier tier, size_t bytes, uint64_t *pages);
    /* Pages of the host that other processes of the machine can have, by a descriptor of them, which the caller closes. Not every driver
     * makes such pages: CASTOR_ERR_UNSUPPORTED. */
    castor_status (*create_shared)(void *context, int device, size_t bytes, uint64_t *pages, int *descriptor);
    castor_status (*take_shared)(void *context, int device, int descriptor, uint64_t *pages);
    void (*release)(void *context, uint64_t pages);
    /* All of `pages` at `address`, readable and writable by the device. Pages may be mapped at two addresses. */
    castor_status (*map)(void *context, int device, uintptr_t address, size_t bytes, uint64_t pages);
    /* What is mapped there can be read, and writes fault: by the device and by the processors. */
    castor_status (*read_only)(void *context, int device, uintptr_t address, size_t bytes);
    castor_status (*unmap)(void *context, uintptr_t address, size_t bytes);
    /* Between mapped addresses, or the process's own memory; the caller waits until it is done. Not ordered with any stream. */
    castor_status (*copy)(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes);
    /* Everything that was enqueued on the device is done. CASTOR_ERR_TIMEOUT: it is not, after a bounded wait. */
    castor_status (*drain)(void *context, int device);
    /* Bytes of the device's memory: free now, and in all. */
    void (*room)(void *context, int device, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Bytes of host memory that may still become pages. */
    uint64_t (*host_room)(void *context);

    /* ---- streams ---- */
    /* One that does not wait for the default stream. */
    castor_status (*stream_make)(void *context, int device, uint64_t *stream);
    void (*stream_end)(void *context, uint64_t stream);
    /* Whether any stream of this process may be captured into a graph now. Cheap. */
    bool (*captures_run)(void *context);
    /* True: what is enqueued there is captured. */
    bool (*stream_captures)(void *context, int device, uint64_t stream);
    castor_status (*event_make)(void *context, int device, uint64_t *event);
    void (*event_end)(void *context, uint64_t event);
    castor_status (*event_record)(void *context, int device, uint64_t event, uint64_t stream);
    /* What is enqueued in `stream` from now on waits for the event's last record. */
    castor_status (*event_wait)(void *context, int device, uint64_t stream, uint64_t event);
    /* Whether the event's last record is done; true where it was never recorded. */
    bool (*event_done)(void *context, uint64_t event);
    castor_status (*copy_enqueue)(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes,
                                  uint64_t stream);

    /* A number of 8 bytes in memory of host_make. Written when all that was enqueued in the stream before is done, and its writes are there for
     * the processors. */
    castor_status (*value_write)(void *context, int device, uintptr_t address, uint64_t value,
                                 uint64_t stream);
    /* What is enqueued from now on waits until the number is `value` or more. Takes no processor. */
    castor_status (*value_wait)(void *context, int device, uintptr_t address, uint64_t value,
                                uint64_t stream);

    uint64_t (*now_ns)(void *context); /* never goes back */
} device_driver;

#endif
