/* The operations; driver_find.c finds the devices. */
#include "driver_inside.h"

#include "capture.h"

#include <stdlib.h>
#include "base/bounded.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"

#ifndef CUDA_DRAIN_NS
#define CUDA_DRAIN_NS UINT64_C(60000000000)
#endif
#define HOST_RESERVE_BYTES (UINT64_C(4) << 30) /* left to everybody else, at most */
#define HOST_RESERVE_PART  16                  /* of the memory that there is */

/* ---- memory ---- */

static size_t granularity(void *context, int device) {
    (void)context;
    cuda_device *d = cuda_device_find(device);
    return d ? d->unit : 0;
}

static castor_status reserve(void *context, int device, size_t bytes, size_t alignment, uintptr_t *address) {
    (void)context;
    scope s;
    if (!cuda_device_enter(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUdeviceptr found = 0;
    CUresult result = cu.cuMemAddressReserve(&found, bytes, alignment, 0, 0);
    cuda_scope_end(&s);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "cuMemAddressReserve", device, bytes);
    *address = (uintptr_t)found;
    return CASTOR_OK;
}

static castor_status unreserve(void *context, uintptr_t address, size_t bytes) {
    (void)context;
    CUresult result = cu.cuMemAddressFree(address, bytes);
    return result == CUDA_SUCCESS ? CASTOR_OK
                                  : error_set(CASTOR_ERR_SYSTEM, "cuMemAddressFree of %B: %s (error %d)",
                                              (uint64_t)bytes, cuda_text(result), (int)result);
}

/* ... and why not. */
static bool maps_host(void *context, int device) {
    (void)context;
    const cuda_device *d = cuda_device_find(device);
    if (!d || d->refused == CUDA_SUCCESS)
        return d != NULL;
    error_set(CASTOR_ERR_UNSUPPORTED, "%s", d->why);
    return false;
}

static castor_status host_make(void *context, int device, size_t bytes, uintptr_t *address, uint64_t *block) {
    (void)context;
    scope s;
    const cuda_device *d = cuda_device_enter(device, &s);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    castor_status status = cuda_host_make(device, bytes, d->unit, address, block);
    cuda_scope_end(&s);
    return status;
}

static castor_status host_end(void *context, int device, uint64_t block) {
    (void)context;
    scope s;
    if (!cuda_device_enter(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUresult result = cu.cuMemFreeHost((void *)block);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "cuMemFreeHost", device, 0);
}

static castor_status create(void *context, int device, device_tier tier, size_t bytes, uint64_t *pages) {
    (void)context;
    scope s;
    const cuda_device *d = cuda_device_find(device);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    if (tier == DEVICE_TIER_HOST && !maps_host(context, device))
        return CASTOR_ERR_UNSUPPORTED;
    cuda_scope_begin(d, &s);
    CUmemAllocationProp_v1 property =
        cuda_property(d, tier == DEVICE_TIER_DEVICE ? cuda_location(device) : d->host);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cu.cuMemCreate(&handle, bytes, &property, 0);
    cuda_scope_end(&s);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, tier == DEVICE_TIER_DEVICE ? "cuMemCreate" : "cuMemCreate of host memory,",
                           device, bytes);
    *pages = (uint64_t)handle;
    return CASTOR_OK;
}

static void release(void *context, uint64_t pages) {
    (void)context;
    CUresult result = cu.cuMemRelease(pages);
    if (result != CUDA_SUCCESS)
        LOG_W("cuMemRelease: %s (error %d)", cuda_text(result), (int)result);
}

static castor_status map(void *context, int device, uintptr_t address, size_t bytes, uint64_t pages) {
    (void)context;
    scope s;
    const cuda_device *d = cuda_device_enter(device, &s);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    const char *call = "cuMemMap";
    CUresult result = cu.cuMemMap(address, bytes, 0, pages, 0);
    if (result == CUDA_SUCCESS) {
        CUmemAllocationProp_v1 property = {0};
        bool host = d->host_is_mapped &&
                    cu.cuMemGetAllocationPropertiesFromHandle(&property, pages) == CUDA_SUCCESS &&
                    property.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
        call = "cuMemSetAccess";
        result = cuda_access_set(address, bytes, device, host ? &d->host : NULL);
        if (result != CUDA_SUCCESS)
            cu.cuMemUnmap(address, bytes);
    }
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, call, device, bytes);
}

static castor_status unmap(void *context, uintptr_t address, size_t bytes) {
    (void)context;
    CUresult result = cu.cuMemUnmap(address, bytes);
    return result == CUDA_SUCCESS ? CASTOR_OK
                                  : error_set(CASTOR_ERR_SYSTEM, "cuMemUnmap of %B: %s (error %d)",
                                              (uint64_t)bytes, cuda_text(result), (int)result);
}

static castor_status copy(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes) {
    (void)context;
    scope s;
    const cuda_device *d = cuda_device_enter(device, &s);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    /* cuMemcpy does not wait for copies between pages of the device, and waits for the default stream. */
    CUresult result = cu.cuMemcpyAsync(to, from, bytes, d->copies);
    if (result == CUDA_SUCCESS)
        result = cu.cuStreamSynchronize(d->copies);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "a copy", device, bytes);
}

static void room(void *context, int device, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)context;
    size_t available = 0, total = 0;
    scope s;
    if (cuda_device_enter(device, &s)) {
        if (cu.cuMemGetInfo(&available, &total) != CUDA_SUCCESS)
            available = total = 0;
        cuda_scope_end(&s);
    }
    *free_bytes = available;
    *total_bytes = total;
}

/* Pages that the driver has pinned are missing from what is available, so that they count once. */
static uint64_t host_room(void *context) {
    (void)context;
    static const machine_controller memory = {"memory", "memory.max", "memory.limit_in_bytes"};
    uint64_t total = UINT64_MAX, available = machine_memory_available("");
    char text[64];
    machine_meminfo("", "MemTotal", &total);
    if (machine_group_limit("", &memory, text)) {
        uint64_t limit = strtoull(text, NULL, 10);
        total = limit < total ? limit : total;
    }
    uint64_t kept =
        total / HOST_RESERVE_PART < HOST_RESERVE_BYTES ? total / HOST_RESERVE_PART : HOST_RESERVE_BYTES;
    return available > kept ? available - kept : 0;
}

/* ---- waiting for a device ---- */

static int device_wait(const void *context) {
    scope s;
    cuda_scope_begin(context, &s);
    CUresult result = cu.cuCtxSynchronize();
    cuda_scope_end(&s);
    return (int)result;
}

/* No call of CUDA waits for all streams of a device with a bound. */
static castor_status drain(void *context, int device) {
    (void)context;
    int result = 0;
    const cuda_device *d = cuda_device_find(device);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    castor_status status = bounded_call(device_wait, d, CUDA_DRAIN_NS, &result);
    if (status == CASTOR_ERR_TIMEOUT)
        return error_set(status, "device %d did not come to rest within %d s", device,
                         (int)(CUDA_DRAIN_NS / 1000000000u));
    if (status == CASTOR_OK && result != CUDA_SUCCESS)
        status = cuda_failed((CUresult)result, "cuCtxSynchronize", device, 0);
    return status;
}

/* ---- streams ---- */

/* A stream or an event, of the type `made`. */
#define MAKE(name, made, call, flags)                                                                        \
    static castor_status name(void *context, int device, uint64_t *out) {                                    \
        (void)context;                                                                                       \
        scope s;                                                                                             \
        if (!cuda_device_enter(device, &s))                                                                  \
            return CASTOR_ERR_SYSTEM;                                                                        \
        made given = NULL;                                                                                   \
        CUresult result = cu.call(&given, flags);                                                            \
        cuda_scope_end(&s);                                                                                  \
        if (result != CUDA_SUCCESS)                                                                          \
            return cuda_failed(result, #call, device, 0);                                                    \
        *out = (uint64_t)given;                                                                              \
        return CASTOR_OK;                                                                                    \
    }
MAKE(stream_make, CUstream, cuStreamCreate, CU_STREAM_NON_BLOCKING)
MAKE(event_make, CUevent, cuEventCreate, CU_EVENT_DISABLE_TIMING)

static void stream_end(void *context, uint64_t stream) {
    (void)context;
    cu.cuStreamDestroy((CUstream)stream);
}

static bool captures_run(void *context) {
    (void)context;
    return capture_runs();
}

/* Where the driver does not say, nothing may be done in the stream that a capture could notice. */
static bool stream_captures(void *context, int device, uint64_t stream) {
    (void)context;
    scope s;
    if (!cuda_device_enter_in_stream(device, &s))
        return true;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = cu.cuStreamIsCapturing((CUstream)stream, &status);
    cuda_scope_end(&s);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void event_end(void *context, uint64_t event) {
    (void)context;
    cu.cuEventDestroy((CUevent)event);
}

static castor_status event_record(void *context, int device, uint64_t event, uint64_t stream) {
    (void)context;
    scope s;
    if (!cuda_device_enter_in_stream(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUresult result = cu.cuEventRecord((CUevent)event, (CUstream)stream);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "cuEventRecord", device, 0);
}

static castor_status event_wait(void *context, int device, uint64_t stream, uint64_t event) {
    (void)context;
    scope s;
    if (!cuda_device_enter_in_stream(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUresult result = cu.cuStreamWaitEvent((CUstream)stream, (CUevent)event, 0);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "cuStreamWaitEvent", device, 0);
}

/* On a device that has failed, nothing will ever be done: nobody shall wait for it. */
static bool event_done(void *context, uint64_t event) {
    (void)context;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu.cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = cu.cuEventQuery((CUevent)event);
    cu.cuThreadExchangeStreamCaptureMode(&mode);
    return result != CUDA_ERROR_NOT_READY && (result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
                                              result > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

static castor_status copy_enqueue(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes,
                                  uint64_t stream) {
    (void)context;
    scope s;
    if (!cuda_device_enter(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUresult result = cu.cuMemcpyAsync(to, from, bytes, (CUstream)stream);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "a copy", device, bytes);
}

static uint64_t now_ns(void *context) {
    (void)context;
    return clock_ns(CLOCK_MONOTONIC);
}

const device_driver *cuda_driver(void) {
    static const device_driver driver = {
        .granularity = granularity,
        .reserve = reserve,
        .unreserve = unreserve,
        .maps_host = maps_host,
        .host_make = host_make,
        .host_end = host_end,
        .create = create,
        .release = release,
        .map = map,
        .unmap = unmap,
        .copy = copy,
        .drain = drain,
        .room = room,
        .host_room = host_room,
        .stream_make = stream_make,
        .stream_end = stream_end,
        .captures_run = captures_run,
        .stream_captures = stream_captures,
        .event_make = event_make,
        .event_end = event_end,
        .event_record = event_record,
        .event_wait = event_wait,
        .event_done = event_done,
        .copy_enqueue = copy_enqueue,
        .now_ns = now_ns,
    };
    return &driver;
}
