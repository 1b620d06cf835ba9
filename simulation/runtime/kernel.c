/* What programs register, kernels' attributes, occupancy, libraries. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

struct variable {
    const void *host;
    size_t size;
    CUdeviceptr addresses[SIM_DEVICES_MAX];
    struct variable *next;
};

static struct variable *variables;
static pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- registration, by constructors that nvcc writes ---- */

void **__cudaRegisterFatBinary(void *fatCubin);
void __cudaRegisterFatBinaryEnd(void **fatCubinHandle);
void __cudaUnregisterFatBinary(void **fatCubinHandle);
void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
                            const char *deviceName, int thread_limit, void *tid, void *bid, void *bDim,
                            void *gDim, int *wSize);
void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress, const char *deviceName,
                       int ext, size_t size, int constant, int global);
void __cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress,
                              const char *deviceName, int ext, size_t size, int constant, int global);
char __cudaInitModule(void **fatCubinHandle);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem, void *stream);

void **__cudaRegisterFatBinary(void *fatCubin) {
    return (void **)sim_module_add(fatCubin);
}

void __cudaRegisterFatBinaryEnd(void **fatCubinHandle) {
    (void)fatCubinHandle;
}

void __cudaUnregisterFatBinary(void **fatCubinHandle) {
    (void)fatCubinHandle;
}

void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
                            const char *deviceName, int thread_limit, void *tid, void *bid, void *bDim,
                            void *gDim, int *wSize) {
    (void)deviceFun, (void)thread_limit, (void)tid, (void)bid, (void)bDim, (void)gDim, (void)wSize;
    if (fatCubinHandle)
        sim_function_add((CUmodule)fatCubinHandle, deviceName, hostFun);
}

void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress, const char *deviceName,
                       int ext, size_t size, int constant, int global) {
    struct variable *variable = calloc(1, sizeof *variable);

    (void)fatCubinHandle, (void)deviceAddress, (void)deviceName, (void)ext, (void)constant, (void)global;
    if (!variable)
        return;
    variable->host = hostVar;
    variable->size = size;
    pthread_mutex_lock(&variables_lock);
    variable->next = variables;
    variables = variable;
    pthread_mutex_unlock(&variables_lock);
}

void __cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress,
                              const char *deviceName, int ext, size_t size, int constant, int global) {
    __cudaRegisterVar(fatCubinHandle, (char *)hostVarPtrAddress, deviceAddress, deviceName, ext, size,
                      constant, global);
}

char __cudaInitModule(void **fatCubinHandle) {
    (void)fatCubinHandle;
    return 1;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)sim_function_by_host(host);
    return *kernel ? cudaSuccess : runtime_result(cudaErrorInvalidDeviceFunction);
}

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem, void *stream) {
    configuration.grid = gridDim;
    configuration.block = blockDim;
    configuration.shared = sharedMem;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem, void *stream) {
    *gridDim = configuration.grid;
    *blockDim = configuration.block;
    *sharedMem = configuration.shared;
    memcpy(stream, &configuration.stream, sizeof(void *));
    return cudaSuccess;
}

/* ---- variables ---- */

CUresult runtime_symbol(const void *symbol, CUdeviceptr *address, size_t *size) {
    CUresult result = CUDA_ERROR_NOT_FOUND;
    int device = sim_device();

    pthread_mutex_lock(&variables_lock);
    for (struct variable *variable = variables; variable; variable = variable->next) {
        if (variable->host != symbol)
            continue;
        result = CUDA_SUCCESS;
        if (!variable->addresses[device]) {
            int mode = sim_capture_exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
            result = sim_memory_allocate(device, variable->size, &variable->addresses[device]);
            sim_capture_exchange_mode(mode);
        }
        *address = variable->addresses[device];
        *size = variable->size;
        break;
    }
    pthread_mutex_unlock(&variables_lock);
    return result == CUDA_ERROR_NOT_FOUND ? (CUresult)cudaErrorInvalidSymbol : result;
}

cudaError_t cudaGetSymbolAddress(void **devPtr, const void *symbol) {
    size_t size;

    ENTER();
    return runtime_result(runtime_symbol(symbol, (CUdeviceptr *)devPtr, &size));
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
    CUdeviceptr address;

    ENTER();
    return runtime_result(runtime_symbol(symbol, &address, size));
}

/* ---- kernels ---- */

static CUfunction function_of(const void *func) {
    CUfunction function = sim_function_by_host(func);

    return function ? function : (CUfunction)func;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *functionPtr, const void *symbolPtr) {
    ENTER();
    *functionPtr = sim_function_by_host(symbolPtr);
    return runtime_result(*functionPtr ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaGetKernel(cudaKernel_t *kernelPtr, const void *entryFuncAddr) {
    ENTER();
    *kernelPtr = (cudaKernel_t)sim_function_by_host(entryFuncAddr);
    return runtime_result(*kernelPtr ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncGetName(const char **name, const void *func) {
    ENTER();
    *name = function_of(func)->name;
    return cudaSuccess;
}

cudaError_t cudaFuncGetParamInfo(const void *func, size_t paramIndex, size_t *paramOffset,
                                 size_t *paramSize) {
    CUfunction function = function_of(func);

    ENTER();
    sim_function_layout(function);
    if (!function->laid_out)
        return runtime_result(cudaErrorNotSupported);
    if (paramIndex >= function->parameter_count)
        return runtime_result(cudaErrorInvalidValue);
    *paramOffset = function->parameters[paramIndex].offset;
    if (paramSize)
        *paramSize = function->parameters[paramIndex].size;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func) {
    const struct sim_config *config = sim_config();

    ENTER();
    if (!sim_function_by_host(func))
        return runtime_result(cudaErrorInvalidDeviceFunction);
    memset(attr, 0, sizeof *attr);
    attr->maxThreadsPerBlock = 1024;
    attr->numRegs = 32;
    attr->ptxVersion = attr->binaryVersion = config->major * 10 + config->minor;
    attr->maxDynamicSharedSizeBytes = function_of(func)->dynamic_shared_limit;
    attr->preferredShmemCarveout = -1;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value) {
    ENTER();
    if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > 232448)
            return runtime_result(cudaErrorInvalidValue);
        function_of(func)->dynamic_shared_limit = value;
    }
    return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attr, int value,
                                            int device) {
    (void)device;
    return cudaFuncSetAttribute(kernel, attr, value);
}

cudaError_t cudaFuncSetCacheConfig(const void *func, enum cudaFuncCache cacheConfig) {
    (void)func, (void)cacheConfig;
    ENTER();
    return cudaSuccess;
}

static int blocks_per_processor(int threads, size_t shared) {
    int by_threads = threads > 0 && threads <= 1024 ? 2048 / threads : 0;
    int by_shared = shared ? (int)(233472 / (shared + 1024)) : 32;
    int blocks = by_threads < by_shared ? by_threads : by_shared;

    return blocks > 32 ? 32 : blocks;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func, int blockSize,
                                                          size_t dynamicSMemSize) {
    (void)func;
    ENTER();
    *numBlocks = blocks_per_processor(blockSize, dynamicSMemSize);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, const void *func,
                                                                   int blockSize, size_t dynamicSMemSize,
                                                                   unsigned int flags) {
    (void)func, (void)flags;
    ENTER();
    *numBlocks = blocks_per_processor(blockSize, dynamicSMemSize);
    return cudaSuccess;
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, const void *func,
                                                      int numBlocks, int blockSize) {
    (void)func, (void)blockSize;
    ENTER();
    *dynamicSmemSize = numBlocks > 0 ? 233472u / (unsigned)numBlocks - 1024 : 0;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *numClusters, const void *func,
                                           const cudaLaunchConfig_t *launchConfig) {
    (void)func, (void)launchConfig;
    ENTER();
    *numClusters = 16;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int *clusterSize, const void *func,
                                                 const cudaLaunchConfig_t *launchConfig) {
    (void)func, (void)launchConfig;
    ENTER();
    *clusterSize = 8;
    return cudaSuccess;
}

/* ---- libraries ---- */

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jitOptions,
                                void **jitOptionsValues, unsigned int numJitOptions,
                                enum cudaLibraryOption *libraryOptions, void **libraryOptionValues,
                                unsigned int numLibraryOptions) {
    (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    ENTER();
    return runtime_result(sim_module_load(code, (CUmodule *)library));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    ENTER();
    return runtime_result(sim_module_unload((CUmodule)library));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *pKernel, cudaLibrary_t library, const char *name) {
    ENTER();
    *pKernel = (cudaKernel_t)sim_module_function((CUmodule)library, name);
    return runtime_result(*pKernel ? cudaSuccess : cudaErrorSymbolNotFound);
}

cudaError_t cudaLibraryGetKernelCount(unsigned int *count, cudaLibrary_t lib) {
    ENTER();
    *count = 0;
    for (CUfunction f = ((CUmodule)lib)->functions; f; f = f->next_in_module)
        ++*count;
    return cudaSuccess;
}
