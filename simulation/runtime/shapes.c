/* Copies and sets of three dimensions, between pitched memory. Compiled twice, as ordered.c. */
#include "runtime.h"

/* Slice by slice. */
static CUresult copy_3d(const struct cudaMemcpy3DParms *p, cudaStream_t stream, bool wait) {
    size_t source_slice = p->srcPtr.pitch * p->srcPtr.ysize, target_slice = p->dstPtr.pitch * p->dstPtr.ysize;
    const char *source = (const char *)p->srcPtr.ptr + p->srcPos.y * p->srcPtr.pitch + p->srcPos.x;
    char *target = (char *)p->dstPtr.ptr + p->dstPos.y * p->dstPtr.pitch + p->dstPos.x;
    CUresult result = CUDA_SUCCESS;

    if (p->srcArray || p->dstArray)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t z = 0; z < p->extent.depth && !result; z++) {
        struct sim_copy slice = {target + (p->dstPos.z + z) * target_slice,
                                 source + (p->srcPos.z + z) * source_slice,
                                 p->extent.width,
                                 p->extent.height,
                                 p->dstPtr.pitch,
                                 p->srcPtr.pitch};
        result = sim_copy_submit(HERE(stream), &slice, wait);
    }
    return result;
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p) {
    ENTER();
    return runtime_result(copy_3d(p, NULL, true));
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t stream) {
    ENTER();
    return runtime_result(copy_3d(p, stream, false));
}

static CUresult set_3d(struct cudaPitchedPtr where, int value, struct cudaExtent extent, cudaStream_t stream,
                       bool wait) {
    CUresult result = CUDA_SUCCESS;

    for (size_t z = 0; z < extent.depth && !result; z++)
        result = sim_set_submit(HERE(stream), (char *)where.ptr + z * where.pitch * where.ysize, where.pitch,
                                (uint32_t)value, 1, extent.width, extent.height, wait);
    return result;
}

cudaError_t cudaMemset3D(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent) {
    ENTER();
    return runtime_result(set_3d(pitchedDevPtr, value, extent, NULL, true));
}

cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent,
                              cudaStream_t stream) {
    ENTER();
    return runtime_result(set_3d(pitchedDevPtr, value, extent, stream, false));
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *devPtr, size_t length, unsigned int flags) {
    (void)stream, (void)devPtr, (void)length, (void)flags;
    ENTER();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *instantiateParams) {
    ENTER();
    instantiateParams->result_out = cudaGraphInstantiateSuccess;
    return runtime_result(sim_graph_instantiate(graph, pGraphExec));
}
