/* Devices, errors, properties, entry points of the driver. */
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static _Thread_local cudaError_t last_error;

cudaError_t runtime_result_of(int code, const char *function) {
    if (code) {
        last_error = (cudaError_t)code;
        if (sim_config()->verbose && code != cudaErrorNotReady)
            sim_say("%s: error %d, %s", function, code, cudaGetErrorString((cudaError_t)code));
    }
    return (cudaError_t)code;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    CUcontext ctx;

    last_error = cudaSuccess;
    if (!sim_ctx_current(&ctx, false) && ctx && atomic_load(&ctx->sticky))
        return (cudaError_t)atomic_load(&ctx->sticky);
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    CUcontext ctx;

    if (!sim_ctx_current(&ctx, false) && ctx && atomic_load(&ctx->sticky))
        return (cudaError_t)atomic_load(&ctx->sticky);
    return last_error;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text) {name, #name, text},
#include "errors.def"
#undef ERROR
};

const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == error)
            return errors[i].name;
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == error)
            return errors[i].text;
    }
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER();
    if (sim_forked())
        return runtime_result(cudaErrorInitializationError);
    *count = sim_config()->devices;
    return runtime_result(*count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
    ENTER();
    if (!sim_config()->devices)
        return runtime_result(cudaErrorNoDevice);
    *device = sim_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    ENTER();
    return runtime_result(sim_device_set(device));
}

cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags) {
    CUcontext ctx;

    (void)deviceFlags;
    (void)flags;
    ENTER();
    return runtime_result(sim_ctx_primary(device, &ctx));
}

cudaError_t cudaSetValidDevices(int *device_arr, int len) {
    (void)device_arr;
    ENTER();
    return runtime_result(len > 0 ? sim_device_set(device_arr[0]) : CUDA_SUCCESS);
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags) {
    *flags = cudaDeviceScheduleAuto;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    CUcontext ctx;

    ENTER();
    CUresult result = sim_ctx_current(&ctx, true);
    return runtime_result(result ? result : sim_ctx_synchronize(ctx));
}

/* What the process holds on the device stays: PyTorch never resets one. */
cudaError_t cudaDeviceReset(void) {
    ENTER();
    return cudaDeviceSynchronize();
}

cudaError_t cudaDriverGetVersion(int *version) {
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    ENTER();
    return runtime_result(sim_device_attribute(value, (int)attr, device));
}

static int attribute(int which, int device) {
    int value = 0;

    sim_device_attribute(&value, which, device);
    return value;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    const struct sim_config *config = sim_config();

    ENTER();
    if (device < 0 || device >= config->devices)
        return runtime_result(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "Castor simulated GPU");
    sim_device_uuid(device, &prop->uuid);
    prop->totalGlobalMem = config->memory;
    prop->totalConstMem = 65536;
    prop->memPitch = 2147483647;
#define FIELD(field, name) prop->field = attribute(CU_DEVICE_ATTRIBUTE_##name, device);
#include "properties.def"
#undef FIELD
    prop->hostNumaId = 0;
    return cudaSuccess;
}

cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *prop) {
    (void)prop;
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device) {
    ENTER();
    if (device < 0 || device >= sim_config()->devices)
        return runtime_result(cudaErrorInvalidDevice);
    snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", sim_device_bus(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *pciBusId) {
    unsigned bus = 0;

    sscanf(pciBusId, "%*x:%x", &bus);
    for (*device = 0; *device < sim_config()->devices; ++*device) {
        if (sim_device_bus(*device) == (int)bus)
            return cudaSuccess;
    }
    return runtime_result(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    ENTER();
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice) {
    ENTER();
    if (device < 0 || device >= sim_config()->devices || peerDevice < 0 ||
        peerDevice >= sim_config()->devices)
        return runtime_result(cudaErrorInvalidDevice);
    *canAccessPeer = device != peerDevice;
    return cudaSuccess;
}

static cudaError_t set_peer(int peer, bool enable) {
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);

    if (result)
        return runtime_result(result);
    if (peer < 0 || peer >= sim_config()->devices || peer == ctx->device)
        return runtime_result(cudaErrorInvalidDevice);
    bool enabled = ctx->peers & 1u << peer;
    if (enabled == enable)
        return runtime_result(enable ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessNotEnabled);
    ctx->peers ^= 1u << peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
    (void)flags;
    ENTER();
    return set_peer(peerDevice, true);
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
    ENTER();
    return set_peer(peerDevice, false);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int srcDevice, int dstDevice) {
    ENTER();
    (void)attr;
    *value = srcDevice != dstDevice;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *pValue, enum cudaLimit limit) {
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);

    if (!result)
        *pValue = ctx->limits[limit & 15];
    return runtime_result(result);
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);

    if (!result)
        ctx->limits[limit & 15] = value;
    return runtime_result(result);
}

cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *pCacheConfig) {
    *pCacheConfig = cudaFuncCachePreferNone;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache cacheConfig) {
    (void)cacheConfig;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart(void) {
    ENTER();
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void) {
    ENTER();
    return cudaSuccess;
}

typedef CUresult get_proc_address(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

/* By name, as the real runtime does, so that whoever stands in front of the driver is seen. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr, unsigned int cudaVersion,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *driverStatus) {
    static get_proc_address *find;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

    ENTER();
    if (!find) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        void *function = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
        memcpy(&find, &function, sizeof function);
        if (!find)
            return runtime_result(cudaErrorInsufficientDriver);
    }
    *funcPtr = NULL;
    CUresult result = find(symbol, funcPtr, (int)cudaVersion, flags, &status);
    if (driverStatus)
        *driverStatus = (enum cudaDriverEntryPointQueryResult)status;
    /* A name that is not there is no error of the runtime when the caller asks for the status. */
    return result == CUDA_ERROR_NOT_FOUND && driverStatus ? cudaSuccess : runtime_result(result);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **funcPtr, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *driverStatus) {
    return cudaGetDriverEntryPointByVersion(symbol, funcPtr, CUDART_VERSION, flags, driverStatus);
}
