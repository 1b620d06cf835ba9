/* What takes its place in a stream; compiled twice, as the runtime's ordered.c is. */
#include "driver.h"

#include <string.h>

/* ---- copies and sets ---- */

static CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream, bool wait) {
    struct sim_copy what = {(void *)target, (const void *)source, bytes, 1, bytes, bytes};

    return sim_copy_submit(HERE(stream), &what, wait);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    ENTER();
    return copy(dst, src, ByteCount, NULL, true);
}

CUresult cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    ENTER();
    return copy(dstDevice, (CUdeviceptr)srcHost, ByteCount, NULL, true);
}

CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    ENTER();
    return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, NULL, true);
}

CUresult cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    ENTER();
    return copy(dstDevice, srcDevice, ByteCount, NULL, true);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount) {
    (void)dstContext, (void)srcContext;
    ENTER();
    return copy(dstDevice, srcDevice, ByteCount, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    ENTER();
    return copy(dst, src, ByteCount, hStream, false);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream) {
    ENTER();
    return copy(dstDevice, (CUdeviceptr)srcHost, ByteCount, hStream, false);
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    ENTER();
    return copy((CUdeviceptr)dstHost, srcDevice, ByteCount, hStream, false);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    ENTER();
    return copy(dstDevice, srcDevice, ByteCount, hStream, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    (void)dstContext, (void)srcContext;
    ENTER();
    return copy(dstDevice, srcDevice, ByteCount, hStream, false);
}

static CUresult set(CUdeviceptr target, uint32_t value, unsigned element, size_t count, CUstream stream,
                    bool wait) {
    return sim_set_submit(HERE(stream), (void *)target, count * element, value, element, count, 1, wait);
}

CUresult cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    ENTER();
    return set(dstDevice, uc, 1, N, NULL, true);
}

CUresult cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N) {
    ENTER();
    return set(dstDevice, us, 2, N, NULL, true);
}

CUresult cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
    ENTER();
    return set(dstDevice, ui, 4, N, NULL, true);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
    ENTER();
    return set(dstDevice, uc, 1, N, hStream, false);
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
    ENTER();
    return set(dstDevice, us, 2, N, hStream, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
    ENTER();
    return set(dstDevice, ui, 4, N, hStream, false);
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                            CUstream hStream) {
    (void)devPtr, (void)count, (void)location, (void)flags, (void)hStream;
    ENTER();
    return CUDA_SUCCESS;
}

/* ---- stream-ordered memory ---- */

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    ENTER();
    return sim_pool_allocate(NULL, bytesize, HERE(hStream), dptr);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    ENTER();
    return sim_pool_allocate(pool, bytesize, HERE(hStream), dptr);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    ENTER();
    return sim_pool_free(dptr, HERE(hStream));
}

/* ---- streams and events ---- */

CUresult cuStreamSynchronize(CUstream hStream) {
    ENTER();
    return sim_stream_synchronize(HERE(hStream));
}

CUresult cuStreamQuery(CUstream hStream) {
    ENTER();
    return sim_stream_query(HERE(hStream));
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    ENTER();
    return sim_stream_wait_event(HERE(hStream), hEvent, Flags);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    ENTER();
    return sim_event_record(hEvent, HERE(hStream), 0);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    ENTER();
    return sim_event_record(hEvent, HERE(hStream), flags);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    ENTER();
    return sim_host_submit(HERE(hStream), fn, userData);
}

struct callback {
    CUstream stream;
    CUstreamCallback function;
    void *data;
};

static CUresult run_callback(void *arguments) {
    const struct callback *callback = arguments;

    callback->function(callback->stream, CUDA_SUCCESS, callback->data);
    return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                             unsigned int flags) {
    struct callback what = {hStream, callback, userData};

    ENTER();
    if (flags || !callback)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_stream_submit(HERE(hStream), SIM_HOST, run_callback, &what, sizeof what);
}

#define TELLS(function, type, field)                                                                         \
    CUresult function(CUstream hStream, type *out) {                                                         \
        CUstream stream = HERE(hStream);                                                                     \
                                                                                                             \
        ENTER();                                                                                             \
        CUresult result = sim_stream_resolve(&stream);                                                       \
        if (!result)                                                                                         \
            *out = stream->field;                                                                            \
        return result;                                                                                       \
    }
TELLS(cuStreamGetPriority, int, priority)
TELLS(cuStreamGetFlags, unsigned int, flags)
TELLS(cuStreamGetId, unsigned long long, id)
TELLS(cuStreamGetCtx, CUcontext, ctx)

/* ---- capture, graphs ---- */

CUresult cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) {
    ENTER();
    return sim_capture_begin(HERE(hStream), (int)mode);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
    ENTER();
    *phGraph = NULL;
    return sim_capture_end(HERE(hStream), phGraph);
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    int status = 0;

    ENTER();
    CUresult result = sim_capture_info(HERE(hStream), &status, NULL, NULL, NULL, NULL);
    *captureStatus = (CUstreamCaptureStatus)status;
    return result;
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out) {
    unsigned long long id = 0;
    int status = 0;

    ENTER();
    CUresult result =
        sim_capture_info(HERE(hStream), &status, &id, graph_out, dependencies_out, numDependencies_out);
    *captureStatus_out = (CUstreamCaptureStatus)status;
    if (id_out)
        *id_out = id;
    if (edgeData_out)
        *edgeData_out = NULL;
    return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    ENTER();
    return sim_graph_launch(hGraphExec, HERE(hStream));
}

/* ---- launches ---- */

static CUresult launch(CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared,
                       CUstream stream, void **params, void **extra) {
    const void *buffer = NULL;
    size_t bytes = 0;

    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *(size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (buffer && params)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_launch(f, grid, block, shared, HERE(stream), params, buffer, bytes);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
    const unsigned grid[3] = {gridDimX, gridDimY, gridDimZ}, block[3] = {blockDimX, blockDimY, blockDimZ};

    ENTER();
    return launch(f, grid, block, sharedMemBytes, hStream, kernelParams, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
    const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};

    ENTER();
    return launch(f, grid, block, config->sharedMemBytes, config->hStream, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                   unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void **kernelParams) {
    const unsigned grid[3] = {gridDimX, gridDimY, gridDimZ}, block[3] = {blockDimX, blockDimY, blockDimZ};

    ENTER();
    return launch(f, grid, block, sharedMemBytes, hStream, kernelParams, NULL);
}
