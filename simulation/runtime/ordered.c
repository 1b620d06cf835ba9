/* What takes its place in a stream. Compiled twice: once as it stands, where stream 0 is the legacy stream, and once
 * with CUDA_API_PER_THREAD_DEFAULT_STREAM, when the headers append _ptsz or _ptds to the names and stream 0 is the
 * thread's own. */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

/* ---- copies ---- */

static bool on_device(const void *address) {
    struct sim_pointer pointer = sim_memory_find(address);

    return pointer.found && (pointer.block.kind == SIM_DEVICE_MEMORY || pointer.block.kind == SIM_MAPPED);
}

static cudaError_t copy(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                        enum cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
    struct sim_copy what = {dst, src, width, height, dpitch, spitch};

    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return runtime_result(cudaErrorInvalidMemcpyDirection);
    if (!width || !height)
        return cudaSuccess;
    /* With unified addressing the driver looks where the addresses are; a direction that contradicts them fails. */
    if (((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost) && on_device(dst)) ||
        ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) && on_device(src)))
        return runtime_result(cudaErrorInvalidValue);
    if (((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
         !sim_memory_find(dst).found) ||
        ((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) && !sim_memory_find(src).found))
        return runtime_result(cudaErrorInvalidValue);
    return runtime_result(sim_copy_submit(HERE(stream), &what, wait));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    ENTER();
    return copy(dst, count, src, count, count, 1, kind, NULL, true);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER();
    return copy(dst, count, src, count, count, 1, kind, stream, false);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind) {
    ENTER();
    if (width > dpitch || width > spitch)
        return runtime_result(cudaErrorInvalidValue);
    return copy(dst, dpitch, src, spitch, width, height, kind, NULL, true);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    ENTER();
    if (width > dpitch || width > spitch)
        return runtime_result(cudaErrorInvalidValue);
    return copy(dst, dpitch, src, spitch, width, height, kind, stream, false);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    ENTER();
    return runtime_result(sim_set_submit(HERE(NULL), devPtr, count, (uint32_t)value, 1, count, 1, true));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_set_submit(HERE(stream), devPtr, count, (uint32_t)value, 1, count, 1, false));
}

cudaError_t cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height) {
    ENTER();
    return runtime_result(sim_set_submit(HERE(NULL), devPtr, pitch, (uint32_t)value, 1, width, height, true));
}

cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
    ENTER();
    return runtime_result(
        sim_set_submit(HERE(stream), devPtr, pitch, (uint32_t)value, 1, width, height, false));
}

static cudaError_t copy_symbol(const void *symbol, const void *host, void *out, size_t count, size_t offset,
                               cudaStream_t stream, bool wait) {
    CUdeviceptr address;
    size_t size;
    CUresult result = runtime_symbol(symbol, &address, &size);

    if (result)
        return runtime_result(result);
    if (offset > size || count > size - offset)
        return runtime_result(cudaErrorInvalidValue);
    void *inside = (char *)address + offset;
    struct sim_copy what = {out ? out : inside, out ? inside : host, count, 1, count, count};
    return runtime_result(sim_copy_submit(HERE(stream), &what, wait));
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count, size_t offset,
                               enum cudaMemcpyKind kind) {
    (void)kind;
    ENTER();
    return copy_symbol(symbol, src, NULL, count, offset, NULL, true);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *src, size_t count, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    ENTER();
    return copy_symbol(symbol, src, NULL, count, offset, stream, false);
}

cudaError_t cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count, size_t offset,
                                 enum cudaMemcpyKind kind) {
    (void)kind;
    ENTER();
    return copy_symbol(symbol, NULL, dst, count, offset, NULL, true);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *dst, const void *symbol, size_t count, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    ENTER();
    return copy_symbol(symbol, NULL, dst, count, offset, stream, false);
}

cudaError_t cudaMemPrefetchAsync(const void *devPtr, size_t count, struct cudaMemLocation location,
                                 unsigned int flags, cudaStream_t stream) {
    (void)devPtr, (void)count, (void)location, (void)flags, (void)stream;
    ENTER();
    return cudaSuccess;
}

/* ---- stream-ordered memory ---- */

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream) {
    ENTER();
    return runtime_result(sim_pool_allocate(NULL, size, HERE(hStream), (CUdeviceptr *)devPtr));
}

cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_pool_allocate(memPool, size, HERE(stream), (CUdeviceptr *)ptr));
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream) {
    ENTER();
    return runtime_result(sim_pool_free((CUdeviceptr)devPtr, HERE(hStream)));
}

/* ---- streams and events ---- */

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_stream_synchronize(HERE(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_stream_query(HERE(stream)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    ENTER();
    return runtime_result(sim_stream_wait_event(HERE(stream), event, flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_event_record(event, HERE(stream), 0));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    ENTER();
    return runtime_result(sim_event_record(event, HERE(stream), flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData) {
    ENTER();
    return runtime_result(sim_host_submit(HERE(stream), fn, userData));
}

struct callback {
    cudaStream_t stream;
    cudaStreamCallback_t function;
    void *data;
};

static CUresult run_callback(void *arguments) {
    const struct callback *callback = arguments;

    callback->function(callback->stream, cudaSuccess, callback->data);
    return CUDA_SUCCESS;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *userData,
                                  unsigned int flags) {
    struct callback what = {stream, callback, userData};

    ENTER();
    if (flags || !callback)
        return runtime_result(cudaErrorInvalidValue);
    return runtime_result(sim_stream_submit(HERE(stream), SIM_HOST, run_callback, &what, sizeof what));
}

#define TELLS(function, type, field)                                                                         \
    cudaError_t function(cudaStream_t hStream, type *out) {                                                  \
        cudaStream_t stream = HERE(hStream);                                                                 \
        CUresult result = sim_stream_resolve(&stream);                                                       \
                                                                                                             \
        ENTER();                                                                                             \
        if (!result)                                                                                         \
            *out = stream->field;                                                                            \
        return runtime_result(result);                                                                       \
    }
TELLS(cudaStreamGetPriority, int, priority)
TELLS(cudaStreamGetFlags, unsigned int, flags)
TELLS(cudaStreamGetId, unsigned long long, id)
TELLS(cudaStreamGetDevice, int, ctx->device)

/* ---- capture and graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ENTER();
    return runtime_result(sim_capture_begin(HERE(stream), (int)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph) {
    ENTER();
    *pGraph = NULL;
    return runtime_result(sim_capture_end(HERE(stream), pGraph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus) {
    int status = 0;

    ENTER();
    CUresult result = sim_capture_info(HERE(stream), &status, NULL, NULL, NULL, NULL);
    *pCaptureStatus = (enum cudaStreamCaptureStatus)status;
    return runtime_result(result);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
                                     unsigned long long *id_out, cudaGraph_t *graph_out,
                                     const cudaGraphNode_t **dependencies_out,
                                     const cudaGraphEdgeData **edgeData_out, size_t *numDependencies_out) {
    int status = 0;

    ENTER();
    if (edgeData_out)
        *edgeData_out = NULL;
    CUresult result = sim_capture_info(HERE(stream), &status, id_out, graph_out,
                                       (const CUgraphNode **)dependencies_out, numDependencies_out);
    *captureStatus_out = (enum cudaStreamCaptureStatus)status;
    return runtime_result(result);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                const cudaGraphEdgeData *dependencyData,
                                                size_t numDependencies, unsigned int flags) {
    (void)dependencyData;
    ENTER();
    return runtime_result(sim_capture_update(HERE(stream), dependencies, numDependencies, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_graph_launch(graphExec, HERE(stream)));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
    (void)graphExec, (void)stream;
    ENTER();
    return cudaSuccess;
}

/* ---- launches ---- */

static cudaError_t launch(CUfunction function, dim3 grid, dim3 block, void **args, size_t shared,
                          cudaStream_t stream) {
    const unsigned g[3] = {grid.x, grid.y, grid.z}, b[3] = {block.x, block.y, block.z};

    if (!function)
        return runtime_result(cudaErrorInvalidDeviceFunction);
    CUresult result = sim_launch(function, g, b, (unsigned)shared, HERE(stream), args, NULL, 0);
    return runtime_result(result == CUDA_ERROR_INVALID_VALUE ? (int)cudaErrorInvalidConfiguration
                                                             : (int)result);
}

cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                             cudaStream_t stream) {
    ENTER();
    return launch(sim_function_by_host(func), gridDim, blockDim, args, sharedMem, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args,
                                        size_t sharedMem, cudaStream_t stream) {
    ENTER();
    return launch(sim_function_by_host(func), gridDim, blockDim, args, sharedMem, stream);
}

/* Takes what a program registered, and what cudaGetKernel or cudaLibraryGetKernel gave. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args) {
    CUfunction function = sim_function_by_host(func);

    ENTER();
    return launch(function ? function : (CUfunction)func, config->gridDim, config->blockDim, args,
                  config->dynamicSmemBytes, config->stream);
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define __cudaLaunchKernel __cudaLaunchKernel_ptsz
#endif
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args,
                               size_t sharedMem, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args,
                               size_t sharedMem, cudaStream_t stream) {
    ENTER();
    return launch((CUfunction)kernel, gridDim, blockDim, args, sharedMem, stream);
}
