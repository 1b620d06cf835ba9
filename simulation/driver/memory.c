/* Allocation, virtual memory management, registration, pools, sharing, pointer attributes. */
#include "driver.h"

#include <string.h>

static CUresult context(CUcontext *ctx) {
    sim_ctx_current(ctx, false);
    return *ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    CUcontext ctx;

    ENTER();
    if (!bytesize)
        return CUDA_ERROR_INVALID_VALUE;
    return context(&ctx) ? CUDA_ERROR_INVALID_CONTEXT : sim_memory_allocate(ctx->device, bytesize, dptr);
}

CUresult cuMemAllocPitch(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                         unsigned int ElementSizeBytes) {
    (void)ElementSizeBytes;
    ENTER();
    *pPitch = (WidthInBytes + 511) / 512 * 512;
    return cuMemAlloc(dptr, *pPitch * Height);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    CUcontext ctx;

    ENTER();
    return context(&ctx) ? CUDA_ERROR_INVALID_CONTEXT : sim_memory_managed(bytesize, flags, dptr);
}

CUresult cuMemFree(CUdeviceptr dptr) {
    ENTER();
    return sim_memory_free(dptr);
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
    CUcontext ctx;

    ENTER();
    return context(&ctx) ? CUDA_ERROR_INVALID_CONTEXT : sim_memory_info(ctx->device, free, total);
}

CUresult cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    struct sim_pointer pointer = sim_memory_find((void *)dptr);

    ENTER();
    if (!pointer.found)
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = pointer.block.start;
    if (psize)
        *psize = pointer.block.size;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocHost(void **pp, size_t bytesize) {
    ENTER();
    return sim_host_allocate(bytesize, 0, pp);
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    ENTER();
    if (sim_config()->refuses_host_alloc)
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim_host_allocate(bytesize, Flags, pp);
}

CUresult cuMemFreeHost(void *p) {
    ENTER();
    return sim_host_free(p);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    ENTER();
    return sim_host_register(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p) {
    ENTER();
    return sim_host_unregister(p);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    struct sim_pointer pointer = sim_memory_find(p);

    (void)Flags;
    ENTER();
    if (!pointer.found)
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
    struct sim_pointer pointer = sim_memory_find(p);

    ENTER();
    if (!pointer.found)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = pointer.block.flags;
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
    (void)devPtr, (void)count, (void)advice, (void)location;
    ENTER();
    return CUDA_SUCCESS;
}

/* ---- pointers ---- */

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    struct sim_pointer pointer = sim_memory_find((void *)ptr);
    const struct sim_block *block = &pointer.block;

    ENTER();
    if (!pointer.found)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = block->ctx;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data =
            (block->kind == SIM_DEVICE_MEMORY || block->kind == SIM_MAPPED) && block->device >= 0
                ? CU_MEMORYTYPE_DEVICE
            : block->kind == SIM_MANAGED ? CU_MEMORYTYPE_DEVICE
                                         : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
            (block->kind == SIM_DEVICE_MEMORY || block->kind == SIM_MAPPED))
            return CUDA_ERROR_INVALID_VALUE;
        *(CUdeviceptr *)data = ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = block->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = block->kind == SIM_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = block->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = block->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = block->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = block->kind == SIM_DEVICE_MEMORY && !block->imported;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = block->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr) {
    ENTER();
    for (unsigned i = 0; i < numAttributes; i++) {
        CUresult result = cuPointerGetAttribute(data[i], attributes[i], ptr);
        if (result == CUDA_ERROR_NOT_SUPPORTED)
            return result;
    }
    return CUDA_SUCCESS; /* what an address does not have is left alone */
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    (void)value;
    ENTER();
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_memory_find((void *)ptr).found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- virtual memory management ---- */

static struct sim_allocation *physical_of(CUmemGenericAllocationHandle handle) {
    return (struct sim_allocation *)(uintptr_t)handle;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    (void)prop, (void)option;
    ENTER();
    *granularity = SIM_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    ENTER();
    return flags ? CUDA_ERROR_INVALID_VALUE : sim_vmm_reserve(size, alignment, addr, ptr);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    ENTER();
    return sim_vmm_unreserve(ptr, size);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    struct sim_allocation *physical = NULL;

    ENTER();
    if (sim_config()->refuses_host_pages && prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : sim_vmm_create(size, prop, &physical);
    if (!result)
        *handle = (uintptr_t)physical;
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER();
    return sim_vmm_release(physical_of(handle));
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    ENTER();
    return flags ? CUDA_ERROR_INVALID_VALUE : sim_vmm_map(ptr, size, offset, physical_of(handle));
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    ENTER();
    return sim_vmm_unmap(ptr, size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    ENTER();
    return sim_vmm_access(ptr, size, desc, count);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    struct sim_pointer pointer = sim_memory_find((void *)ptr);

    ENTER();
    if (!pointer.found || pointer.block.kind != SIM_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned bit = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? (unsigned)location->id : SIM_DEVICES_MAX;
    *flags = pointer.block.writable & 1u << bit ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : pointer.block.access & 1u << bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    struct sim_allocation *physical = NULL;

    ENTER();
    CUresult result = sim_vmm_retain(&physical, addr);
    if (!result)
        *handle = (uintptr_t)physical;
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle) {
    ENTER();
    if (!sim_vmm_known(physical_of(handle)))
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical_of(handle)->prop;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
    ENTER();
    if (flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    return sim_vmm_export(physical_of(handle), shareableHandle);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
    struct sim_allocation *physical = NULL;

    ENTER();
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = sim_vmm_import((int)(intptr_t)osHandle, &physical);
    if (!result)
        *handle = (uintptr_t)physical;
    return result;
}

/* ---- pools ---- */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    ENTER();
    return sim_pool_default(dev, pool_out);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    ENTER();
    return sim_pool_current(dev, pool);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    ENTER();
    return sim_pool_set_current(dev, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    ENTER();
    return poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE
               ? sim_pool_create(poolProps->location.id, pool)
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER();
    return sim_pool_destroy(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    ENTER();
    return sim_pool_trim(pool, minBytesToKeep);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    ENTER();
    return sim_pool_attribute(pool, (int)attr, value, true);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    ENTER();
    return sim_pool_attribute(pool, (int)attr, value, false);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    (void)pool, (void)map, (void)count;
    ENTER();
    return CUDA_SUCCESS;
}

/* ---- other processes ---- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    ENTER();
    return sim_ipc_export(dptr, pHandle);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    (void)Flags;
    ENTER();
    return sim_ipc_open(&handle, pdptr);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    ENTER();
    return sim_ipc_close(dptr);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event) {
    ENTER();
    return sim_event_export(event, pHandle);
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle) {
    ENTER();
    return sim_event_open(&handle, phEvent);
}

/* ---- tensor maps ---- */

/* No simulated kernel reads one: it holds the address alone. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void *globalAddress, const cuuint64_t *globalDim,
                                const cuuint64_t *globalStrides, const cuuint32_t *boxDim,
                                const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill) {
    (void)tensorDataType, (void)tensorRank, (void)globalDim, (void)globalStrides, (void)boxDim;
    (void)elementStrides, (void)interleave, (void)swizzle, (void)l2Promotion, (void)oobFill;
    ENTER();
    if (!tensorMap || (uintptr_t)tensorMap % 64 || (uintptr_t)globalAddress % 16)
        return CUDA_ERROR_INVALID_VALUE;
    memset(tensorMap, 0, sizeof *tensorMap);
    tensorMap->opaque[0] = ~(uintptr_t)globalAddress; /* nobody finds it there */
    return CUDA_SUCCESS;
}
