/* The devices, and what each can do, found by doing it. */
#include "driver_inside.h"

#include <pthread.h>
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "hooks/lookup/wrapper.h"

#define DEVICES       64
#define PATTERN       0x5ac0b7e1u
#define PATTERN_WORDS 1024

cuda_calls cu;
static cuda_device devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is found once */

const char *cuda_text(CUresult result) {
    const char *text = NULL;
    return cu.cuGetErrorString(result, &text) == CUDA_SUCCESS && text ? text : "unknown error";
}

castor_status cuda_failed(CUresult result, const char *call, int device, uint64_t bytes) {
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

void cuda_scope_begin(const cuda_device *d, scope *s) {
    scope_begin_in_stream(d, s);
    s->relaxed = true;
    s->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu.cuThreadExchangeStreamCaptureMode(&s->mode);
}

void cuda_scope_end(scope *s) {
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

CUmemAllocationProp_v1 cuda_property(const cuda_device *d, CUmemLocation_v1 location) {
    CUmemAllocationProp_v1 property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                       .location = location};
    property.allocFlags.gpuDirectRDMACapable = location.type == CU_MEM_LOCATION_TYPE_DEVICE && d->rdma;
    return property;
}

CUmemLocation_v1 cuda_location(int device) {
    return (CUmemLocation_v1){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult cuda_access_set(uintptr_t address, size_t bytes, int device, const CUmemLocation_v1 *host) {
    CUmemAccessDesc_v1 access[2] = {
        {.location = cuda_location(device), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
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
    bool mapped = cuda_access_set(address, bytes, device, &host) == CUDA_SUCCESS;
    if (!mapped)
        result = cuda_access_set(address, bytes, device, NULL);
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

castor_status cuda_host_make(int device, size_t bytes, size_t unit, uintptr_t *address, uint64_t *block) {
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

cuda_device *cuda_device_find(int device) {
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

cuda_device *cuda_device_enter(int device, scope *s) {
    cuda_device *d = cuda_device_find(device);
    if (d)
        cuda_scope_begin(d, s);
    return d;
}

bool cuda_device_enter_in_stream(int device, scope *s) {
    const cuda_device *d = cuda_device_find(device);
    if (d)
        scope_begin_in_stream(d, s);
    return d != NULL;
}
