/* Start, errors, devices, contexts. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

bool driver_ready(void) {
    return sim_started() && !sim_forked();
}

CUresult cuInit(unsigned int Flags) {
    ENTER_EARLY();
    if (Flags || sim_forked())
        return Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    if (!sim_config()->devices)
        return CUDA_ERROR_NO_DEVICE;
    sim_start();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *driverVersion) {
    ENTER_EARLY();
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text) {name, #name, text},
#include "errors.def"
#undef ERROR
};

CUresult cuGetErrorName(CUresult error, const char **pStr) {
    *pStr = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == error)
            *pStr = errors[i].name;
    }
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr) {
    *pStr = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == error)
            *pStr = errors[i].text;
    }
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER();
    if (ordinal < 0 || ordinal >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    ENTER();
    *count = sim_config()->devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    ENTER();
    if (dev < 0 || dev >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "Castor simulated GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    ENTER();
    if (dev < 0 || dev >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    sim_device_uuid(dev, uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev) {
    size_t free_bytes;

    ENTER();
    return sim_memory_info(dev, &free_bytes, bytes);
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    ENTER();
    return sim_device_attribute(pi, (int)attrib, dev);
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
    ENTER();
    if (dev < 0 || dev >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", sim_device_bus(dev));
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    ENTER();
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    ENTER();
    return sim_ctx_primary(dev, pctx);
}

/* The primary context lives as long as the process. */
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    ENTER();
    return dev < 0 || dev >= sim_config()->devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    ENTER();
    return dev < 0 || dev >= sim_config()->devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    ENTER();
    *flags = 0;
    *active = sim_ctx_primary_active(dev);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    (void)dev, (void)flags;
    ENTER();
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
    ENTER();
    return ctxCreateParams ? CUDA_ERROR_NOT_SUPPORTED : sim_ctx_create(dev, flags, pctx);
}

CUresult cuCtxDestroy(CUcontext ctx) {
    ENTER();
    return sim_ctx_destroy(ctx);
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
    ENTER();
    return sim_ctx_push(ctx);
}

CUresult cuCtxPopCurrent(CUcontext *pctx) {
    ENTER();
    return sim_ctx_pop(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    ENTER();
    return sim_ctx_set(ctx);
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    ENTER();
    sim_ctx_current(pctx, false);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    CUcontext ctx;

    ENTER();
    sim_ctx_current(&ctx, false);
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    CUcontext ctx;

    ENTER();
    sim_ctx_current(&ctx, false);
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    CUcontext ctx;

    ENTER();
    sim_ctx_current(&ctx, false);
    return ctx ? sim_ctx_synchronize(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    ENTER();
    *leastPriority = 0;
    *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    (void)ctx;
    ENTER();
    *version = 3020;
    return CUDA_SUCCESS;
}

static CUresult set_peer(CUcontext peer, bool enable) {
    CUcontext ctx;

    sim_ctx_current(&ctx, false);
    if (!ctx || !peer || peer->device == ctx->device)
        return CUDA_ERROR_INVALID_CONTEXT;
    bool enabled = ctx->peers & 1u << peer->device;
    if (enabled == enable)
        return enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    ctx->peers ^= 1u << peer->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    (void)Flags;
    ENTER();
    return set_peer(peerContext, true);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
    ENTER();
    return set_peer(peerContext, false);
}
