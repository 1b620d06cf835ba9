/* Allocation, registration, pointer attributes, pools, sharing between processes. */
#include "runtime.h"

#include <string.h>

cudaError_t cudaMalloc(void **devPtr, size_t size) {
    ENTER();
    *devPtr = NULL;
    if (!size)
        return cudaSuccess;
    return runtime_result(sim_memory_allocate(sim_device(), size, (CUdeviceptr *)devPtr));
}

cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height) {
    ENTER();
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(devPtr, *pitch * height);
}

cudaError_t cudaMallocManaged(void **devPtr, size_t size, unsigned int flags) {
    ENTER();
    return runtime_result(sim_memory_managed(size, flags, (CUdeviceptr *)devPtr));
}

cudaError_t cudaFree(void *devPtr) {
    ENTER();
    return runtime_result(sim_memory_free((CUdeviceptr)devPtr));
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags) {
    ENTER();
    return runtime_result(sim_host_allocate(size, flags, pHost));
}

cudaError_t cudaMallocHost(void **ptr, size_t size) {
    ENTER();
    return runtime_result(sim_host_allocate(size, 0, ptr));
}

cudaError_t cudaFreeHost(void *ptr) {
    ENTER();
    return runtime_result(sim_host_free(ptr));
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags) {
    ENTER();
    return runtime_result(sim_host_register(ptr, size, flags));
}

cudaError_t cudaHostUnregister(void *ptr) {
    ENTER();
    return runtime_result(sim_host_unregister(ptr));
}

static bool is_host(const struct sim_pointer *pointer) {
    return pointer->found &&
           (pointer->block.kind == SIM_HOST_MEMORY || pointer->block.kind == SIM_REGISTERED);
}

cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags) {
    struct sim_pointer pointer = sim_memory_find(pHost);

    (void)flags;
    ENTER();
    if (!is_host(&pointer))
        return runtime_result(cudaErrorInvalidValue);
    *pDevice = pHost;
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned int *pFlags, void *pHost) {
    struct sim_pointer pointer = sim_memory_find(pHost);

    ENTER();
    if (!is_host(&pointer))
        return runtime_result(cudaErrorInvalidValue);
    *pFlags = pointer.block.flags;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    ENTER();
    return runtime_result(sim_memory_info(sim_device(), free, total));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr) {
    struct sim_pointer pointer = sim_memory_find(ptr);

    ENTER();
    memset(attributes, 0, sizeof *attributes);
    if (!pointer.found) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = (void *)ptr;
        return cudaSuccess;
    }
    attributes->device = pointer.block.device < 0 ? 0 : pointer.block.device;
    attributes->devicePointer = (void *)ptr;
    if (pointer.block.kind == SIM_DEVICE_MEMORY || pointer.block.kind == SIM_MAPPED) {
        attributes->type = pointer.block.device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    } else {
        attributes->type = pointer.block.kind == SIM_MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
        attributes->hostPointer = (void *)ptr;
    }
    return cudaSuccess;
}

/* Managed memory is in one place here; advice and prefetching have nothing to do. */
cudaError_t cudaMemAdvise(const void *devPtr, size_t count, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation location) {
    (void)devPtr, (void)count, (void)advice, (void)location;
    ENTER();
    return cudaSuccess;
}

/* ---- pools ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *memPool, int device) {
    ENTER();
    return runtime_result(sim_pool_default(device, memPool));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *memPool, int device) {
    ENTER();
    return runtime_result(sim_pool_current(device, memPool));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t memPool) {
    ENTER();
    return runtime_result(sim_pool_set_current(device, memPool));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *memPool, const struct cudaMemPoolProps *poolProps) {
    ENTER();
    if (poolProps->location.type != cudaMemLocationTypeDevice)
        return runtime_result(cudaErrorNotSupported);
    return runtime_result(sim_pool_create(poolProps->location.id, memPool));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t memPool) {
    ENTER();
    return runtime_result(sim_pool_destroy(memPool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep) {
    ENTER();
    return runtime_result(sim_pool_trim(memPool, minBytesToKeep));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value) {
    ENTER();
    return runtime_result(sim_pool_attribute(memPool, (int)attr, value, true));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value) {
    ENTER();
    return runtime_result(sim_pool_attribute(memPool, (int)attr, value, false));
}

/* All simulated devices reach each other. */
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t memPool, const struct cudaMemAccessDesc *descList,
                                 size_t count) {
    (void)memPool, (void)descList, (void)count;
    ENTER();
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t memPool,
                                 struct cudaMemLocation *location) {
    (void)memPool, (void)location;
    ENTER();
    *flags = cudaMemAccessFlagsProtReadWrite;
    return cudaSuccess;
}

/* ---- other processes ---- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr) {
    ENTER();
    return runtime_result(sim_ipc_export((CUdeviceptr)devPtr, handle));
}

cudaError_t cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags) {
    (void)flags;
    ENTER();
    return runtime_result(sim_ipc_open(&handle, (CUdeviceptr *)devPtr));
}

cudaError_t cudaIpcCloseMemHandle(void *devPtr) {
    ENTER();
    return runtime_result(sim_ipc_close((CUdeviceptr)devPtr));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    ENTER();
    return runtime_result(sim_event_export(event, handle));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    ENTER();
    return runtime_result(sim_event_open(&handle, event));
}
