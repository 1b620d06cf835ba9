/* Calls of the CUDA driver, each function fetched in one of the ways that libraries fetch it:
 *
 *     driver linked|dlsym|cuGetProcAddress
 *
 * Bytes go to the device and back, and are compared. Prints a line per function: its symbol, how often it was called,
 * and with how many bytes. The runner compares that with the trace. */
#include <cuda.h>
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define SIZE   ((size_t)1 << 20)
#define ROUNDS 3
#define MAX    64

static const char *way;
static struct {
    const char *symbol;
    unsigned long count, bytes;
} called[MAX];

static void note(const char *symbol, size_t bytes) {
    int i = 0;
    while (i < MAX - 1 && called[i].symbol && strcmp(called[i].symbol, symbol) != 0)
        i++;
    called[i].symbol = symbol;
    called[i].count++;
    called[i].bytes += bytes;
}

/* `name` and `version` are for cuGetProcAddress; `symbol` for the linker, whose answer is `linked`. */
static void *fetch(const char *name, const char *symbol, int version, void *linked) {
    void *found = linked;
    if (strcmp(way, "dlsym") == 0) {
        found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), symbol);
    } else if (strcmp(way, "cuGetProcAddress") == 0) {
        CUdriverProcAddressQueryResult status;
        if (cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS)
            found = NULL;
    }
    if (!found) {
        fprintf(stderr, "%s: not found by %s\n", symbol, way);
        exit(1);
    }
    return found;
}

static void check(const char *symbol, CUresult result) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: error %d\n", symbol, (int)result);
    exit(1);
}

/* cuda.h makes cuMemAlloc a macro for cuMemAlloc_v2: the second step spells the symbol. */
#define SYMBOL_(function) #function
#define SYMBOL(function)  SYMBOL_(function)
#define CALL(function, version, bytes, ...)                                                                  \
    do {                                                                                                     \
        static __typeof__(&function) real;                                                                   \
        if (!real)                                                                                           \
            real = (__typeof__(&function))fetch(#function, SYMBOL(function), version, (void *)&function);    \
        check(SYMBOL(function), real(__VA_ARGS__));                                                          \
        note(SYMBOL(function), bytes);                                                                       \
    } while (0)

static void copies(const unsigned char *given, unsigned char *back) {
    CUdeviceptr block, other;
    CUstream stream;
    CUevent event;
    CALL(cuMemAlloc, 3020, SIZE, &block, SIZE);
    CALL(cuMemAlloc, 3020, SIZE, &other, SIZE);
    CALL(cuStreamCreate, 2000, 0, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, 2000, 0, &event, CU_EVENT_DISABLE_TIMING);
    CALL(cuMemcpyHtoD, 3020, SIZE, block, given, SIZE);
    CALL(cuMemcpyDtoD, 3020, SIZE, other, block, SIZE);
    CALL(cuCtxSynchronize, 2000, 0);
    CALL(cuMemcpyDtoHAsync, 3020, SIZE, back, other, SIZE, stream);
    CALL(cuEventRecord, 2000, 0, event, stream);
    CALL(cuEventSynchronize, 2000, 0, event);
    CALL(cuStreamSynchronize, 2000, 0, stream);
    if (memcmp(given, back, SIZE) != 0) {
        fprintf(stderr, "what came back is not what went there\n");
        exit(1);
    }
    CALL(cuMemsetD8, 3020, SIZE, other, 7, SIZE);
    CALL(cuMemcpyDtoH, 3020, SIZE, back, other, SIZE);
    if (back[0] != 7 || back[SIZE - 1] != 7) {
        fprintf(stderr, "memory was not set\n");
        exit(1);
    }
    CALL(cuEventDestroy, 4000, 0, event);
    CALL(cuStreamDestroy, 4000, 0, stream);
    CALL(cuMemFree, 3020, 0, other);
    CALL(cuMemFree, 3020, 0, block);
}

static void virtual_memory(const unsigned char *given, unsigned char *back) {
    CUmemAllocationProp prop = {};
    CUmemAccessDesc access = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    size_t size;
    check("cuMemGetAllocationGranularity",
          cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    size = (SIZE + size - 1) / size * size;
    CALL(cuMemAddressReserve, 10020, size, &range, size, 0, 0, 0);
    CALL(cuMemCreate, 10020, size, &handle, size, &prop, 0);
    CALL(cuMemMap, 10020, size, range, size, 0, handle, 0);
    CALL(cuMemSetAccess, 10020, size, range, size, &access, 1);
    CALL(cuMemcpyHtoD, 3020, SIZE, range, given, SIZE);
    CALL(cuMemcpyDtoH, 3020, SIZE, back, range, SIZE);
    if (memcmp(given, back, SIZE) != 0) {
        fprintf(stderr, "mapped memory did not keep its bytes\n");
        exit(1);
    }
    CALL(cuMemUnmap, 10020, size, range, size);
    CALL(cuMemRelease, 10020, 0, handle);
    CALL(cuMemAddressFree, 10020, size, range, size);
}

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    void *given, *back;
    way = argc > 1 ? argv[1] : "linked";
    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    CALL(cuMemAllocHost, 3020, SIZE, &given, SIZE);
    CALL(cuMemAllocHost, 3020, SIZE, &back, SIZE);
    unsigned char *sent = (unsigned char *)given, *received = (unsigned char *)back;
    for (size_t i = 0; i < SIZE; i++)
        sent[i] = (unsigned char)(i * 31 + i / 256);
    for (int round = 0; round < ROUNDS; round++) {
        copies(sent, received);
        virtual_memory(sent, received);
    }
    CALL(cuMemFreeHost, 2000, 0, given);
    CALL(cuMemFreeHost, 2000, 0, back);
    for (int i = 0; i < MAX && called[i].symbol; i++)
        printf("%s %lu %lu\n", called[i].symbol, called[i].count, called[i].bytes);
    return 0;
}
