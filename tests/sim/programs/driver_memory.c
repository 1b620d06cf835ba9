/* The driver's memory: allocation, limits, virtual memory management, registration, sharing. Runs with
 * SIM_DEVICES=4 CUDA_VISIBLE_DEVICES=3,1 SIM_MEMORY=1G. */
#include "check.h"

#include <sys/wait.h>

#define MIB     (1u << 20)
#define GRANULE (2u * MIB)

static const char *program;

static bool devices(void) {
    int count, value;
    char name[64];
    size_t bytes;
    CUdevice device;

    GIVES(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK(check_context());
    WORKS(cuDeviceGetCount(&count));
    CHECK(count == 2);
    WORKS(cuDeviceGet(&device, 1));
    GIVES(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    WORKS(cuDeviceGetName(name, sizeof name, 1));
    CHECK(strcmp(name, "Castor simulated GPU") == 0);
    WORKS(cuDeviceGetPCIBusId(name, sizeof name, 0));
    CHECK(strcmp(name, "0000:04:00.0") == 0); /* the fourth of all */
    WORKS(cuDeviceTotalMem(&bytes, 0));
    CHECK(bytes == 1024u * MIB);
    WORKS(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    CHECK(value == 9);
    return true;
}

static bool contexts(void) {
    CUcontext primary, other, top;
    CUdevice device;

    WORKS(cuCtxGetCurrent(&primary));
    WORKS(cuCtxCreate(&other, NULL, 0, 1));
    WORKS(cuCtxGetDevice(&device));
    CHECK(device == 1);
    WORKS(cuCtxPopCurrent(&top));
    CHECK(top == other);
    WORKS(cuCtxGetCurrent(&top));
    CHECK(top == primary);
    WORKS(cuCtxDestroy(other));
    GIVES(cuCtxDestroy(primary), CUDA_ERROR_INVALID_CONTEXT);
    return true;
}

static bool allocation(void) {
    size_t before, after, total, size;
    char out[1000];
    CUdeviceptr block, base;

    WORKS(cuMemGetInfo(&before, &total));
    WORKS(cuMemAlloc(&block, 1000));
    WORKS(cuMemGetInfo(&after, &total));
    CHECK(before - after >= 1000);
    WORKS(cuMemsetD8(block, 7, 1000));
    WORKS(cuMemsetD32(block + 100, 0x01020304, 10));
    WORKS(cuMemcpyDtoH(out, block, 1000));
    CHECK(out[0] == 7 && out[999] == 7 && out[100] == 4 && out[103] == 1 && out[139] == 1 && out[140] == 7);
    WORKS(cuMemGetAddressRange(&base, &size, block + 500));
    CHECK(base == block && size == 1000);
    CHECK(faults((char *)block + 4096)); /* behind the block's page */
    GIVES(cuMemsetD8(block, 0, 1001), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemFree(block + 8), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemFree(block));
    CHECK(faults((char *)block));
    GIVES(cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyDtoH(out, block, 8), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemGetInfo(&after, &total));
    CHECK(after == before);
    return true;
}

static bool limits(void) {
    CUdeviceptr large, more, other;
    CUcontext ctx, second;

    WORKS(cuMemAlloc(&large, 900u * MIB));
    GIVES(cuMemAlloc(&more, 200u * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    WORKS(cuDevicePrimaryCtxRetain(&second, 1));
    WORKS(cuCtxGetCurrent(&ctx));
    WORKS(cuCtxSetCurrent(second));
    WORKS(cuMemAlloc(&other, 900u * MIB)); /* a limit of its own */
    WORKS(cuMemFree(other));
    WORKS(cuCtxSetCurrent(ctx));
    WORKS(cuMemFree(large));
    WORKS(cuMemAlloc(&more, 200u * MIB));
    WORKS(cuMemFree(more));
    return true;
}

static CUmemAllocationProp located(CUmemLocationType type, int id) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    prop.location.type = type;
    prop.location.id = id;
    return prop;
}

static const CUmemAccessDesc both_ways = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static bool virtual_memory(void) {
    CUmemAllocationProp on_device = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range, elsewhere;
    size_t before, after, total;
    char *at;

    WORKS(cuMemGetInfo(&before, &total));
    WORKS(cuMemAddressReserve(&range, 4 * GRANULE, 0, 0, 0));
    at = (char *)range;
    CHECK(faults(at));
    GIVES(cuMemCreate(&handle, GRANULE + 4096, &on_device, 0), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemCreate(&handle, GRANULE, &on_device, 0));
    WORKS(cuMemGetInfo(&after, &total));
    CHECK(before - after == GRANULE);
    WORKS(cuMemMap(range + GRANULE, GRANULE, 0, handle, 0));
    GIVES(cuMemMap(range + GRANULE, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(faults(at + GRANULE)); /* mapped, but nobody may access it */
    WORKS(cuMemSetAccess(range + GRANULE, GRANULE, &both_ways, 1));
    WORKS(cuMemsetD8(range + GRANULE, 42, GRANULE));
    CHECK(at[GRANULE] == 42 && at[2 * GRANULE - 1] == 42);
    CHECK(faults(at + GRANULE - 1) && faults(at + 2 * GRANULE));
    GIVES(cuMemAddressFree(range, 4 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemUnmap(range + GRANULE, GRANULE));
    CHECK(faults(at + GRANULE));
    WORKS(cuMemAddressReserve(&elsewhere, GRANULE, 0, 0, 0)); /* the bytes belong to the physical memory */
    WORKS(cuMemMap(elsewhere, GRANULE, 0, handle, 0));
    WORKS(cuMemSetAccess(elsewhere, GRANULE, &both_ways, 1));
    CHECK(*(char *)elsewhere == 42);
    WORKS(cuMemRelease(handle)); /* the map still refers to it */
    CHECK(*(char *)elsewhere == 42);
    WORKS(cuMemUnmap(elsewhere, GRANULE));
    GIVES(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemGetInfo(&after, &total));
    CHECK(after == before);
    WORKS(cuMemAddressFree(elsewhere, GRANULE));
    WORKS(cuMemAddressFree(range, 4 * GRANULE));
    return true;
}

/* What a move of a chunk does: other pages, the same address. */
static bool device_to_host_at_one_address(void) {
    CUmemAllocationProp on_device = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemAllocationProp on_host = located(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    CUmemGenericAllocationHandle device, host;
    size_t before, after, total;
    CUdeviceptr range;
    char *copy = malloc(GRANULE);
    int ordinal;

    CHECK(copy);
    WORKS(cuMemGetInfo(&before, &total));
    WORKS(cuMemAddressReserve(&range, GRANULE, 0, 0, 0));
    WORKS(cuMemCreate(&device, GRANULE, &on_device, 0));
    WORKS(cuMemMap(range, GRANULE, 0, device, 0));
    WORKS(cuMemSetAccess(range, GRANULE, &both_ways, 1));
    WORKS(cuMemsetD32(range, 0xdecade, GRANULE / 4));
    WORKS(cuMemcpyDtoH(copy, range, GRANULE));
    WORKS(cuMemUnmap(range, GRANULE));
    WORKS(cuMemRelease(device));
    WORKS(cuMemCreate(&host, GRANULE, &on_host, 0));
    WORKS(cuMemMap(range, GRANULE, 0, host, 0));
    WORKS(cuMemSetAccess(range, GRANULE, &both_ways, 1));
    WORKS(cuMemcpyHtoD(range, copy, GRANULE));
    CHECK(*(unsigned *)range == 0xdecade);
    WORKS(cuMemGetInfo(&after, &total));
    CHECK(after == before); /* no memory of the device */
    WORKS(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range));
    CHECK(ordinal == CU_DEVICE_CPU);
    WORKS(cuMemUnmap(range, GRANULE));
    WORKS(cuMemRelease(host));
    WORKS(cuMemAddressFree(range, GRANULE));
    free(copy);
    return true;
}

static bool strict_as_the_driver(void) {
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;

    GIVES(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = located(CU_MEM_LOCATION_TYPE_HOST, 0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; /* no process shares it */
    GIVES(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA, 1); /* one node */
    GIVES(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    WORKS(cuMemCreate(&handle, 2 * GRANULE, &prop, 0));
    WORKS(cuMemAddressReserve(&range, 2 * GRANULE, 0, 0, 0));
    GIVES(cuMemMap(range, GRANULE, GRANULE, handle, 0), CUDA_ERROR_INVALID_VALUE); /* offsets are zero */
    WORKS(cuMemMap(range, GRANULE, 0, handle, 0)); /* of a handle its beginning */
    WORKS(cuMemUnmap(range, GRANULE));
    WORKS(cuMemRelease(handle));
    WORKS(cuMemAddressFree(range, 2 * GRANULE));
    return true;
}

/* SIM_HOST_MEMORY, of all that is pinned. */
static bool host_memory_has_a_limit(void) {
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    CUmemGenericAllocationHandle handle;
    void *pinned, *more;

    WORKS(cuMemHostAlloc(&pinned, 40 * GRANULE, 0));
    GIVES(cuMemHostAlloc(&more, 30 * GRANULE, 0), CUDA_ERROR_OUT_OF_MEMORY);
    GIVES(cuMemCreate(&handle, 30 * GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    WORKS(cuMemCreate(&handle, 20 * GRANULE, &prop, 0));
    WORKS(cuMemFreeHost(pinned));
    WORKS(cuMemHostAlloc(&more, 30 * GRANULE, 0));
    WORKS(cuMemFreeHost(more));
    WORKS(cuMemRelease(handle));
    return true;
}

static bool shareable_handle(void) {
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr first, second;
    int fd = -1;

    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    WORKS(cuMemCreate(&handle, GRANULE, &prop, 0));
    WORKS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    WORKS(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    WORKS(cuMemAddressReserve(&first, GRANULE, 0, 0, 0));
    WORKS(cuMemAddressReserve(&second, GRANULE, 0, 0, 0));
    WORKS(cuMemMap(first, GRANULE, 0, handle, 0));
    WORKS(cuMemMap(second, GRANULE, 0, again, 0));
    WORKS(cuMemSetAccess(first, GRANULE, &both_ways, 1));
    WORKS(cuMemSetAccess(second, GRANULE, &both_ways, 1));
    WORKS(cuMemsetD8(first, 9, GRANULE));
    CHECK(*(char *)second == 9);
    return true;
}

static bool registration(void) {
    size_t bytes = 64 * 4096;
    char *host = aligned_alloc(4096, bytes);
    unsigned type;
    CUdeviceptr device;

    CHECK(host);
    GIVES(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)host),
          CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemHostRegister(host, bytes, 0));
    GIVES(cuMemHostRegister(host + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    WORKS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)host + 100));
    CHECK(type == CU_MEMORYTYPE_HOST);
    WORKS(cuMemHostGetDevicePointer(&device, host, 0));
    CHECK(device == (CUdeviceptr)host);
    WORKS(cuMemHostUnregister(host));
    GIVES(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    free(host);
    return true;
}

static bool stream_ordered(void) {
    CUmemoryPool pool;
    CUdeviceptr block;
    CUstream stream;
    cuuint64_t used;

    WORKS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    WORKS(cuDeviceGetDefaultMemPool(&pool, 0));
    WORKS(cuMemAllocAsync(&block, 1 * MIB, stream));
    WORKS(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 1 * MIB);
    WORKS(cuMemsetD8Async(block, 1, 1 * MIB, stream));
    WORKS(cuMemFreeAsync(block, stream));
    WORKS(cuStreamSynchronize(stream));
    CHECK(faults((char *)block));
    WORKS(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
    WORKS(cuStreamDestroy(stream));
    return true;
}

static bool two_dimensions(void) {
    char from[6][10], back[4][5];
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .dstMemoryType = CU_MEMORYTYPE_DEVICE};
    CUdeviceptr block;
    size_t pitch;

    for (int i = 0; i < 60; i++)
        from[i / 10][i % 10] = (char)i;
    WORKS(cuMemAllocPitch(&block, &pitch, 5, 4, 4));
    CHECK(pitch >= 5);
    copy.srcHost = from;
    copy.srcPitch = 10;
    copy.srcXInBytes = 3;
    copy.srcY = 2;
    copy.dstDevice = block;
    copy.dstPitch = pitch;
    copy.WidthInBytes = 5;
    copy.Height = 4;
    WORKS(cuMemcpy2D(&copy));
    copy = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = block, .srcPitch = pitch};
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = back;
    copy.WidthInBytes = 5;
    copy.Height = 4;
    WORKS(cuMemcpy2D(&copy));
    CHECK(back[0][0] == 23 && back[3][4] == 57);
    WORKS(cuMemFree(block));
    return true;
}

static void late(void *data) {
    (void)data;
    usleep(200000);
}

/* What another process needs, as text. */
struct shared {
    CUipcMemHandle memory;
    CUipcEventHandle done;
};

static bool other_process(void) {
    struct shared shared;
    char text[2 * sizeof shared + 1];
    CUdeviceptr block;
    CUevent done;
    int status;

    WORKS(cuMemAlloc(&block, 8192));
    WORKS(cuMemsetD8(block, 5, 8192));
    GIVES(cuEventCreate(&done, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE); /* only without timing */
    WORKS(cuEventCreate(&done, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    WORKS(cuIpcGetEventHandle(&shared.done, done));
    WORKS(cuIpcGetMemHandle(&shared.memory, block));
    WORKS(cuLaunchHostFunc(0, late, NULL));
    WORKS(cuMemsetD8Async(block + 8191, 7, 1, 0));
    WORKS(cuEventRecord(done, 0)); /* the other process waits for it */
    for (size_t i = 0; i < sizeof shared; i++)
        sprintf(text + 2 * i, "%02x", ((unsigned char *)&shared)[i]);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, text, (char *)NULL);
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(((char *)block)[4096] == 6); /* what the child wrote */
    WORKS(cuMemFree(block));
    return true;
}

/* The other process: reads what the first wrote, writes, and goes. */
static int open_handle(const char *text) {
    struct shared shared;
    CUdeviceptr block;
    CUstream stream;
    CUevent done;

    for (size_t i = 0; i < sizeof shared; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        ((unsigned char *)&shared)[i] = (unsigned char)byte;
    }
    if (!check_context() || cuIpcOpenMemHandle(&block, shared.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ||
        cuIpcOpenEventHandle(&done, shared.done) || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
        return 3;
    if (cuStreamWaitEvent(stream, done, 0) || cuStreamSynchronize(stream) || ((char *)block)[8191] != 7)
        return 4;
    if (((char *)block)[0] != 5 || cuMemsetD8(block + 4096, 6, 1) || cuIpcCloseMemHandle(block))
        return 5;
    return faults((char *)block) ? 0 : 6;
}

static bool forked_child(void) {
    CUdeviceptr block;
    int status;

    WORKS(cuMemAlloc(&block, 4096));
    pid_t child = fork();
    if (child == 0)
        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && faults((char *)block) ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    WORKS(cuMemFree(block));
    return true;
}

int main(int argc, char **argv) {
    int failed = 0;

    if (argc > 1)
        return open_handle(argv[1]);
    program = argv[0];
    failed += RUN(devices);
    failed += RUN(contexts);
    failed += RUN(allocation);
    failed += RUN(limits);
    failed += RUN(virtual_memory);
    failed += RUN(device_to_host_at_one_address);
    failed += RUN(strict_as_the_driver);
    failed += RUN(host_memory_has_a_limit);
    failed += RUN(shareable_handle);
    failed += RUN(registration);
    failed += RUN(stream_ordered);
    failed += RUN(two_dimensions);
    failed += RUN(other_process);
    failed += RUN(forked_child);
    return failed != 0;
}
