/* The operations, and the devices: what each can do. */
#include "driver.h"
#include <pthread.h>
#include <stdlib.h>
#include "base/bounded.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/thread.h"
#include "hooks/lookup/wrapper.h"
#include "base/status.h"
#include "shims/cuda/types.h"
#include "capture.h"

/* Found with the first device. */
typedef struct cuda_calls {
#define CALL(version, function, symbol, parameters) CUresult(*function) parameters;
#include "driver_calls.def"
} cuda_calls;

/* Constant once it was found. */
typedef struct cuda_device {
    CUcontext context; /* NULL: not found yet */
    CUstream copies;   /* of copies that the caller waits for */
    size_t unit;       /* 0: it cannot map memory */
    CUmemLocation_v1 host;
    bool host_is_mapped; /* the processors may access host pages */
    bool rdma;
    CUresult refused; /* why no host pages are mapped at its addresses; CUDA_SUCCESS: they are */
    char why[160];    /* the same in words */
} cuda_device;

/* What a thread has while a call of ours runs, and gets back. */
typedef struct scope {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
} scope;

/* The devices, and what each can do, found by doing it. */

#define DEVICES       64
#define PATTERN       0x5ac0b7e1u
#define PATTERN_WORDS 1024
#define READ_WRITE    CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static cuda_calls cu;
static cuda_device devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is found once */

static const char *cuda_text(CUresult result) {
    const char *text = NULL;
    return cu.cuGetErrorString(result, &text) == CUDA_SUCCESS && text ? text : "unknown error";
}

/* `bytes`: 0: the call has no size. */
static castor_status cuda_failed(CUresult result, const char *call, int device, uint64_t bytes) {
    castor_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? CASTOR_ERR_MEMORY : CASTOR_ERR_SYSTEM;
    char size[32] = "";
    if (bytes)
        log_format(size, sizeof size, " of %B", bytes);
    return error_set(status, "%s%s on device %d: %s (error %d)", call, size, device, cuda_text(result),
                     (int)result);
}

/* ---- where calls run ---- */

static void scope_begin_in_stream(const cuda_device *d, scope *s) {
    CUcontext current = NULL;
    s->relaxed = false;
    s->pushed = (cu.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != d->context) &&
                cu.cuCtxPushCurrent(d->context) == CUDA_SUCCESS;
}

static void cuda_scope_begin(const cuda_device *d, scope *s) {
    scope_begin_in_stream(d, s);
    s->relaxed = true;
    s->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu.cuThreadExchangeStreamCaptureMode(&s->mode);
}

static void cuda_scope_end(scope *s) {
    CUcontext popped;
    if (s->relaxed)
        cu.cuThreadExchangeStreamCaptureMode(&s->mode);
    if (s->pushed)
        cu.cuCtxPopCurrent(&popped);
}

static castor_status calls_find(void) {
    static bool found;
    if (found)
        return CASTOR_OK;
#define CALL(version, function, symbol, parameters)                                                          \
    if (!(cu.function = (CUresult(*) parameters)hooks_driver_symbol(#symbol)))                               \
        return error_set(CASTOR_ERR_UNSUPPORTED, "there is no %s in the driver of CUDA of this machine",     \
                         #symbol);
#include "driver_calls.def"
    CUresult result = cu.cuInit(0);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "cuInit", 0, 0);
    found = true;
    return CASTOR_OK;
}

/* ---- what a device can do, found by doing it ---- */

static CUmemAllocationProp_v1 cuda_property(const cuda_device *d, CUmemLocation_v1 location) {
    CUmemAllocationProp_v1 property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                       .location = location};
    property.allocFlags.gpuDirectRDMACapable = location.type == CU_MEM_LOCATION_TYPE_DEVICE && d->rdma;
    return property;
}

static CUmemLocation_v1 cuda_location(int device) {
    return (CUmemLocation_v1){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

/* Makes mapped pages accessible for the device and, if their location is given, for the processors. */
static CUresult cuda_access_set(uintptr_t address, size_t bytes, int device, const CUmemLocation_v1 *host,
                                CUmemAccess_flags flags) {
    CUmemAccessDesc_v1 access[2] = {
        {.location = cuda_location(device), .flags = flags},
        {.flags = flags},
    };
    if (host)
        access[1].location = *host;
    return cu.cuMemSetAccess(address, bytes, access, host ? 2 : 1);
}

/* ---- host memory ---- */

/* The device writes at an address of host memory, and what a copy brings from there is what it wrote. */
static CUresult written_check(const cuda_device *d, uintptr_t address) {
    static uint32_t read[PATTERN_WORDS]; /* guarded by `lock` */
    for (size_t i = 0; i < PATTERN_WORDS; i++)
        read[i] = 0;
    CUresult result = cu.cuMemsetD32Async(address, PATTERN, PATTERN_WORDS, d->copies);
    if (result == CUDA_SUCCESS)
        result = cu.cuMemcpyAsync((uintptr_t)read, address, sizeof read, d->copies);
    if (result == CUDA_SUCCESS)
        result = cu.cuStreamSynchronize(d->copies);
    for (size_t i = 0; i < PATTERN_WORDS && result == CUDA_SUCCESS; i++)
        if (read[i] != PATTERN)
            result = CUDA_ERROR_NOT_SUPPORTED;
    return result;
}

/* One unit of host pages under an address of the device. */
static CUresult pages_try(cuda_device *d, int device, CUmemLocation_v1 host) {
    CUmemAllocationProp_v1 property = cuda_property(d, host);
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address;
    size_t unit = 0;
    CUresult result = cu.cuMemGetAllocationGranularity(&unit, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    size_t bytes = unit > d->unit ? unit : d->unit;
    if ((result = cu.cuMemCreate(&pages, bytes, &property, 0)) != CUDA_SUCCESS)
        return result;
    if ((result = cu.cuMemAddressReserve(&address, bytes, 0, 0, 0)) != CUDA_SUCCESS)
        goto release;
    if ((result = cu.cuMemMap(address, bytes, 0, pages, 0)) != CUDA_SUCCESS)
        goto unreserve;
    bool mapped = cuda_access_set(address, bytes, device, &host, READ_WRITE) == CUDA_SUCCESS;
    if (!mapped)
        result = cuda_access_set(address, bytes, device, NULL, READ_WRITE);
    if (result == CUDA_SUCCESS)
        result = written_check(d, address);
    if (result == CUDA_SUCCESS) {
        d->host = host;
        d->host_is_mapped = mapped;
        d->unit = bytes;
    }
    cu.cuMemUnmap(address, bytes);
unreserve:
    cu.cuMemAddressFree(address, bytes);
release:
    cu.cuMemRelease(pages);
    return result;
}

/* Memory of the host, aligned to `unit`, that the device has at the same address. `block`: what cuMemFreeHost takes. The thread is in
 * the device's scope. */
static castor_status cuda_host_make(int device, size_t bytes, size_t unit, uintptr_t *address,
                                    uint64_t *block) {
    CUdeviceptr found = 0;
    void *made = NULL;
    size_t more = 0; /* the driver may align to less */
    for (;; more = unit) {
        CUresult result =
            cu.cuMemHostAlloc(&made, bytes + more, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (result != CUDA_SUCCESS)
            return cuda_failed(result, "cuMemHostAlloc", device, bytes + more);
        result = cu.cuMemHostGetDevicePointer(&found, made, 0);
        if (result != CUDA_SUCCESS || found != (uintptr_t)made) {
            cu.cuMemFreeHost(made);
            return result != CUDA_SUCCESS
                       ? cuda_failed(result, "cuMemHostGetDevicePointer", device, 0)
                       : error_set(CASTOR_ERR_SYSTEM,
                                   "device %d has memory of the host at other addresses than the processors",
                                   device);
        }
        if (more || (uintptr_t)made % unit == 0)
            break;
        cu.cuMemFreeHost(made);
    }
    *address = ((uintptr_t)made + unit - 1) / unit * unit;
    *block = (uintptr_t)made;
    return CASTOR_OK;
}

/* One unit of memory that the driver allocates on the host. */
static castor_status allocated_try(cuda_device *d, int device) {
    uintptr_t address;
    uint64_t block;
    castor_status status = cuda_host_make(device, d->unit, d->unit, &address, &block);
    if (status != CASTOR_OK)
        return status;
    CUresult result = written_check(d, address);
    cu.cuMemFreeHost((void *)block);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, "a write to host memory", device, 0);
}

static castor_status host_find(cuda_device *d, int device) {
    int node = 0;
    if (cu.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) != CUDA_SUCCESS || node < 0)
        node = 0; /* no NUMA */
    const CUmemLocation_v1 hosts[] = {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node},
                                      {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0},
                                      {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if ((d->refused = pages_try(d, device, hosts[i])) == CUDA_SUCCESS)
            return CASTOR_OK;
    log_message(d->why, sizeof d->why, "device %d maps no memory of the host at its addresses: %s (error %d)",
                device, cuda_text(d->refused), (int)d->refused);
    castor_status status = allocated_try(d, device);
    if (status == CASTOR_OK)
        return CASTOR_OK;
    char why[160];
    log_message(why, sizeof why, "%s", error_text());
    return error_set(CASTOR_ERR_UNSUPPORTED, "%s; %s", d->why, why);
}

/* ---- a device ---- */

static castor_status memory_find(cuda_device *d, int device) {
    int able = 0, rdma = 0;
    CUmemAllocationProp_v1 property = cuda_property(d, cuda_location(device));
    cu.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    if (!able)
        return error_set(CASTOR_ERR_UNSUPPORTED, "device %d cannot map memory (no virtual memory management)",
                         device);
    CUresult result = cu.cuMemGetAllocationGranularity(&d->unit, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "cuMemGetAllocationGranularity", device, 0);
    cu.cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
    d->rdma = rdma != 0;
    return host_find(d, device);
}

static castor_status device_open(cuda_device *d, int device) {
    castor_status status = calls_find();
    if (status != CASTOR_OK)
        return status;
    cuda_device found = {0};
    CUresult result = cu.cuDevicePrimaryCtxRetain(&found.context, device);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "cuDevicePrimaryCtxRetain", device, 0);
    scope s;
    cuda_scope_begin(&found, &s);
    result = cu.cuStreamCreate(&found.copies, CU_STREAM_NON_BLOCKING);
    status = result == CUDA_SUCCESS ? memory_find(&found, device)
                                    : cuda_failed(result, "cuStreamCreate", device, 0);
    if (status != CASTOR_OK && found.copies)
        cu.cuStreamDestroy(found.copies);
    cuda_scope_end(&s);
    if (status != CASTOR_OK)
        return status;
    CUcontext context = found.context;
    found.context = NULL;
    *d = found;
    __atomic_store_n(&d->context, context, __ATOMIC_RELEASE);
    return CASTOR_OK;
}

/* The device, ready for calls. NULL: it is none, or cannot map memory; the error's text says why. */
static cuda_device *cuda_device_find(int device) {
    if (device < 0 || device >= DEVICES) {
        error_set(CASTOR_ERR_SYSTEM, "there is no device %d", device);
        return NULL;
    }
    cuda_device *d = &devices[device];
    if (__atomic_load_n(&d->context, __ATOMIC_ACQUIRE))
        return d;
    pthread_mutex_lock(&lock);
    castor_status status = d->context ? CASTOR_OK : device_open(d, device);
    pthread_mutex_unlock(&lock);
    return status == CASTOR_OK ? d : NULL;
}

/* The device of a call, and the thread's scope from here to cuda_scope_end. */
static cuda_device *cuda_device_enter(int device, scope *s) {
    cuda_device *d = cuda_device_find(device);
    if (d)
        cuda_scope_begin(d, s);
    return d;
}

/* The same for calls that no capture of another stream forbids: in a stream, or about it. */
static bool cuda_device_enter_in_stream(int device, scope *s) {
    const cuda_device *d = cuda_device_find(device);
    if (d)
        scope_begin_in_stream(d, s);
    return d != NULL;
}

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

static bool host_is_reached(void *context, int device) {
    (void)context;
    const cuda_device *d = cuda_device_find(device);
    return d && d->refused == CUDA_SUCCESS && d->host_is_mapped;
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

static castor_status create_shared(void *context, int device, size_t bytes, uint64_t *pages,
                                   int *descriptor) {
    scope s;
    const cuda_device *d = cuda_device_find(device);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    if (!maps_host(context, device))
        return CASTOR_ERR_UNSUPPORTED;
    if (d->host.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return error_set(CASTOR_ERR_UNSUPPORTED, "device %d maps host memory that no other process can have",
                         device);
    CUmemAllocationProp_v1 property = cuda_property(d, d->host);
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    cuda_scope_begin(d, &s);
    const char *call = "cuMemCreate of host memory that processes share,";
    CUresult result = cu.cuMemCreate(&handle, bytes, &property, 0);
    if (result == CUDA_SUCCESS) {
        call = "cuMemExportToShareableHandle";
        result =
            cu.cuMemExportToShareableHandle(descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result != CUDA_SUCCESS)
            cu.cuMemRelease(handle);
    }
    cuda_scope_end(&s);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, call, device, bytes);
    *pages = (uint64_t)handle;
    return CASTOR_OK;
}

static castor_status take_shared(void *context, int device, int descriptor, uint64_t *pages) {
    (void)context;
    scope s;
    if (!cuda_device_enter(device, &s))
        return CASTOR_ERR_SYSTEM;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    cuda_scope_end(&s);
    if (result != CUDA_SUCCESS)
        return cuda_failed(result, "cuMemImportFromShareableHandle", device, 0);
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
        call = "cuMemSetAccess";
        CUmemAllocationProp_v1 property = {0};
        bool host = d->host_is_mapped &&
                    cu.cuMemGetAllocationPropertiesFromHandle(&property, pages) == CUDA_SUCCESS &&
                    property.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
        result = cuda_access_set(address, bytes, device, host ? &d->host : NULL, READ_WRITE);
        if (result != CUDA_SUCCESS)
            cu.cuMemUnmap(address, bytes);
    }
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, call, device, bytes);
}

static castor_status read_only(void *context, int device, uintptr_t address, size_t bytes) {
    (void)context;
    scope s;
    const cuda_device *d = cuda_device_enter(device, &s);
    if (!d)
        return CASTOR_ERR_SYSTEM;
    const CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (d->host_is_mapped)
        result = cuda_access_set(address, bytes, device, &d->host, flags);
    if (result != CUDA_SUCCESS) /* no processor writes there */
        result = cuda_access_set(address, bytes, device, NULL, flags);
    cuda_scope_end(&s);
    return result == CUDA_SUCCESS ? CASTOR_OK
                                  : cuda_failed(result, "cuMemSetAccess for reading alone", device, bytes);
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
    if (machine_cgroup_limit("", &memory, text)) {
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

#define AT_LEAST 0 /* CU_STREAM_WAIT_VALUE_GEQ */

#define VALUE(name, call, flags)                                                                             \
    static castor_status name(void *context, int device, uintptr_t address, uint64_t value,                  \
                              uint64_t stream) {                                                             \
        (void)context;                                                                                       \
        scope s;                                                                                             \
        if (!cuda_device_enter_in_stream(device, &s))                                                        \
            return CASTOR_ERR_SYSTEM;                                                                        \
        CUresult result = cu.call((CUstream)stream, address, value, flags);                                  \
        cuda_scope_end(&s);                                                                                  \
        return result == CUDA_SUCCESS ? CASTOR_OK : cuda_failed(result, #call, device, 0);                   \
    }
VALUE(value_write, cuStreamWriteValue64, 0)
VALUE(value_wait, cuStreamWaitValue64, AT_LEAST)

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
        .host_is_reached = host_is_reached,
        .host_make = host_make,
        .host_end = host_end,
        .create = create,
        .create_shared = create_shared,
        .take_shared = take_shared,
        .release = release,
        .map = map,
        .read_only = read_only,
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
        .value_write = value_write,
        .value_wait = value_wait,
        .now_ns = now_ns,
    };
    return &driver;
}
