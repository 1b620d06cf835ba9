#include "overflow.h"

#include <pthread.h>
#include "capture.h"
#include "base/error.h"
#include "base/log.h"
#include "job/options.h"
#include "device/devices.h"
#include "observe.h"
#include "shims/cuda/types.h"
#include "trace/trace.h"

#define SEGMENTS_MAX 16384

typedef struct segment {
    uintptr_t address; /* 0: a handle, mapped by its owner */
    uint64_t pages;
    size_t bytes; /* whole units; 0: free */
    int device;
} segment;

static segment segments[SEGMENTS_MAX];
static uint32_t segments_end; /* all after it are free. Atomic: 0: there never was one */
static uint64_t segments_bytes, segments_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the four */

/* ---- how often it was asked for ---- */

static __thread struct {
    size_t bytes; /* of the last failure; 0: none */
    int device;
    bool served; /* from host memory: until the device has room */
} failed __attribute__((tls_model("initial-exec")));

bool overflow_is_last(int device, size_t bytes) {
    if (failed.bytes == bytes && failed.device == device)
        return true;
    failed.bytes = bytes;
    failed.device = device;
    failed.served = false;
    return false;
}

void overflow_not_needed(void) {
    if (failed.served)
        failed.bytes = 0;
}

static __thread bool may_fail __attribute__((tls_model("initial-exec")));

void overflow_optional(bool optional) {
    may_fail = optional;
}

/* ---- segments ---- */

static segment *segment_free(void) {
    for (uint32_t i = 0; i < SEGMENTS_MAX; i++)
        if (!segments[i].bytes) {
            if (i >= segments_end)
                __atomic_store_n(&segments_end, i + 1, __ATOMIC_RELEASE);
            return &segments[i];
        }
    return NULL;
}

static segment *segment_find(uintptr_t address, uint64_t pages) {
    for (uint32_t i = 0; i < segments_end; i++)
        if (segments[i].bytes && segments[i].address == address && (address || segments[i].pages == pages))
            return &segments[i];
    return NULL;
}

static void segment_add(segment *place, const segment *s) {
    *place = *s;
    segments_bytes += s->bytes;
    segments_count++;
    trace_gauge_set(GAUGE_OVERFLOW_BYTES, segments_bytes);
    trace_gauge_set(GAUGE_OVERFLOW_SEGMENTS, segments_count);
}

static void segment_remove(segment *s) {
    segments_bytes -= s->bytes;
    segments_count--;
    s->bytes = 0;
    trace_gauge_set(GAUGE_OVERFLOW_BYTES, segments_bytes);
    trace_gauge_set(GAUGE_OVERFLOW_SEGMENTS, segments_count);
}

static bool segments_any(void) {
    return __atomic_load_n(&segments_end, __ATOMIC_ACQUIRE) != 0;
}

static castor_status room_check(const device_driver *driver, int device, uint64_t bytes) {
    uint64_t most = options()->overflow, left = driver->host_room(driver->context);
    if (bytes > most - segments_bytes)
        return error_set(CASTOR_ERR_MEMORY, "of CASTOR_OVERFLOW=%B device %d needs %B more, and %B are taken",
                         most, device, bytes, segments_bytes);
    if (bytes > left)
        return error_set(CASTOR_ERR_MEMORY, "%B of the host for device %d: it has %B left", bytes, device,
                         left);
    return CASTOR_OK;
}

static castor_status segment_map(const device_driver *driver, int device, size_t unit, segment *s) {
    castor_status status = driver->reserve(driver->context, device, s->bytes, unit, &s->address);
    if (status != CASTOR_OK)
        return status;
    status = driver->map(driver->context, device, s->address, s->bytes, s->pages);
    if (status != CASTOR_OK)
        driver->unreserve(driver->context, s->address, s->bytes);
    return status;
}

/* `mapped`: under an address. */
static castor_status segment_make(int device, size_t bytes, bool mapped, segment *out) {
    const device_driver *driver = devices_driver();
    size_t unit = driver->granularity(driver->context, device);
    segment s = {.bytes = (bytes + unit - 1) / unit * unit, .device = device};
    if (!mapped && s.bytes != bytes)
        return error_set(CASTOR_ERR_MEMORY, "%B are not whole units of %B", (uint64_t)bytes, (uint64_t)unit);
    castor_status status = room_check(driver, device, s.bytes);
    segment *place = status == CASTOR_OK ? segment_free() : NULL;
    if (!place)
        return status == CASTOR_OK ? error_set(CASTOR_ERR_MEMORY, "too many segments") : status;
    status = driver->create(driver->context, device, DEVICE_TIER_HOST, s.bytes, &s.pages);
    if (status != CASTOR_OK)
        return status;
    if (mapped && (status = segment_map(driver, device, unit, &s)) != CASTOR_OK) {
        driver->release(driver->context, s.pages);
        return status;
    }
    segment_add(place, &s);
    *out = s;
    return CASTOR_OK;
}

/* ---- the last resort ---- */

static bool first_time(bool said[DEVICES_MAX], int device) {
    return !__atomic_exchange_n(&said[device], true, __ATOMIC_RELAXED);
}

static void option_name(int device, size_t bytes) {
    static bool said[DEVICES_MAX];
    const device_driver *driver = devices_driver();
    homes_statistics found;
    uint64_t homes = 0;
    homes_statistics_get(devices_homes(device), &found);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        homes += found.count[kind];
    if (homes && driver->host_room(driver->context) > bytes && first_time(said, device))
        LOG_W("device %d is out of memory: with CASTOR_OVERFLOW=8G PyTorch's further memory would be host "
              "memory, read and written over the link",
              device);
}

static bool make(int device, size_t bytes, bool mapped, segment *out) {
    static bool said[DEVICES_MAX], said_not[DEVICES_MAX];
    failed.bytes = 0;
    if (device < 0 || !devices_homes(device) || homes_are_fixed(devices_homes(device)) || capture_runs() ||
        may_fail)
        return false; /* where homes are fixed nothing of the host can be mapped, as was said at their start */
    if (!options()->overflow) {
        option_name(device, bytes);
        return false;
    }
    pthread_mutex_lock(&lock);
    castor_status status = segment_make(device, bytes, mapped, out);
    pthread_mutex_unlock(&lock);
    if (status != CASTOR_OK) {
        if (first_time(said_not, device))
            LOG_W("device %d is out of memory: %s", device, error_text());
        return false;
    }
    if (first_time(said, device))
        LOG_I("device %d was out of memory: PyTorch's further memory, up to %B, is host memory", device,
              options()->overflow);
    return true;
}

bool overflow_allocate(int device, size_t bytes, void **out) {
    segment made = {0};
    if (!make(device, bytes, true, &made))
        return false;
    *out = (void *)made.address;
    return true;
}

/* A segment of PyTorch is of many handles. Those that follow are of the host too, at once. */
bool overflow_create(int device, size_t bytes, uint64_t *handle) {
    segment made = {0};
    if (!make(device, bytes, false, &made))
        return false;
    *handle = made.pages;
    failed.bytes = bytes;
    failed.device = device;
    failed.served = true;
    return true;
}

/* ---- death ---- */

/* What is enqueued may still use it; the real function waits as well. */
static void segment_end(segment *s) {
    const device_driver *driver = devices_driver();
    if (driver->drain(driver->context, s->device) || driver->unmap(driver->context, s->address, s->bytes)) {
        LOG_W("%s: host memory of device %d is not freed", error_text(), s->device);
        return;
    }
    driver->release(driver->context, s->pages);
    driver->unreserve(driver->context, s->address, s->bytes);
    segment_remove(s);
}

static cudaError_t freed_cudaFree(void *address) {
    cudaError_t (*real)(void *) = hooks_find(HOOK_cudaFree);
    if (!address || !segments_any())
        return real(address);
    pthread_mutex_lock(&lock);
    segment *s = segment_find((uintptr_t)address, 0);
    if (s)
        segment_end(s);
    pthread_mutex_unlock(&lock);
    return s ? cudaSuccess : real(address);
}

static CUresult freed_cuMemRelease(CUmemGenericAllocationHandle_v1 handle) {
    CUresult (*real)(CUmemGenericAllocationHandle_v1) = hooks_find(HOOK_cuMemRelease);
    if (!segments_any())
        return real(handle);
    pthread_mutex_lock(&lock);
    segment *s = segment_find(0, handle);
    CUresult status = real(handle);
    if (s && status == CUDA_SUCCESS)
        segment_remove(s);
    pthread_mutex_unlock(&lock);
    return status;
}

void overflow_install(void) {
    observe_target_replace(HOOK_cudaFree, (void *)freed_cudaFree);
    observe_target_replace(HOOK_cuMemRelease, (void *)freed_cuMemRelease);
}
