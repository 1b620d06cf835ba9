/* A libcudnn that computes nothing. It tells what pointers it was given, reads them in the order of the handle's stream, and writes behind
 * everybody's back. The addresses of its descriptors are used again at once. */
#include "fake_dnn.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

struct fake_dnn fake_dnn = {.writes = -1};
struct cudnnContext {
    cudaStream_t stream;
};
typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    int ids_count, pointers_count, parts_count;
    int64_t ids[FAKE_POINTERS];
    void *pointers[FAKE_POINTERS], *workspace, *part;
    bool finalized;
    struct descriptor *next;
} descriptor;
static descriptor *unused;

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = calloc(1, sizeof **handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(cudnnTensorDescriptor_t tensor, size_t *size) {
    *size = fake_dnn.tensor_bytes;
    return tensor && *size ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnGetFilterSizeInBytes(cudnnFilterDescriptor_t filter, size_t *size) {
    return cudnnGetTensorSizeInBytes((cudnnTensorDescriptor_t)filter, size);
}

/* ---- the backend ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *made) {
    descriptor *d = unused;
    unused = d ? d->next : NULL;
    d = d ? d : malloc(sizeof *d);
    *d = (descriptor){.type = type};
    *made = d;
    fake_dnn.descriptors++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t ended) {
    descriptor *d = ended;
    d->next = unused;
    unused = d;
    fake_dnn.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t finalized) {
    descriptor *d = finalized;
    if (d->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR && fake_dnn.fail_finalize)
        return CUDNN_STATUS_BAD_PARAM;
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t set, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *elements) {
    descriptor *d = set;
    (void)type;
    if (d->finalized)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS && count <= FAKE_POINTERS) {
        d->ids_count = (int)count;
        memcpy(d->ids, elements, (size_t)count * sizeof *d->ids);
    } else if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS && count <= FAKE_POINTERS) {
        d->pointers_count = (int)count;
        memcpy(d->pointers, elements, (size_t)count * sizeof *d->pointers);
    } else if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE) {
        d->workspace = *(void *const *)elements;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Heuristics have two results, whatever is asked for. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const asked, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                                       void *elements) {
    (void)asked, (void)type, (void)elements, (void)requested;
    *count = name == CUDNN_ATTR_ENGINEHEUR_RESULTS ? 2 : 1;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what is enqueued ---- */

static void work(void *context) {
    struct fake_dnn *now = context;
    for (int i = 0; i < now->count; i++)
        if (now->reads[i])
            memcpy(fake_dnn.seen[i], now->pointers[i], sizeof fake_dnn.seen[i]);
    if (now->writes >= 0)
        for (int i = 0; i < FAKE_FLOATS; i++)
            ((float *)now->pointers[now->writes])[i] = 1;
    free(now);
}

static cudnnStatus_t enqueue(cudnnHandle_t handle) {
    struct fake_dnn *now = malloc(sizeof *now);
    *now = fake_dnn;
    return cudaLaunchHostFunc(handle->stream, work, now) ? CUDNN_STATUS_EXECUTION_FAILED
                                                         : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    const descriptor *d = pack;
    if (!d->finalized || ((descriptor *)plan)->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM;
    fake_dnn.count = d->pointers_count;
    memcpy(fake_dnn.ids, d->ids, sizeof d->ids);
    memcpy(fake_dnn.pointers, d->pointers, sizeof d->pointers);
    fake_dnn.workspace = d->workspace;
    return enqueue(handle);
}

/* ---- calls with pointers: in the order of their parameters ---- */

#define GIVEN(...)                                                                                           \
    do {                                                                                                     \
        const void *given_[] = {__VA_ARGS__};                                                                \
        fake_dnn.count = sizeof given_ / sizeof *given_;                                                     \
        memcpy(fake_dnn.pointers, given_, sizeof given_);                                                    \
    } while (0)
#define U(name) (void)name

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t xDesc, const void *x,
                                      const cudnnFilterDescriptor_t wDesc, const void *w,
                                      const cudnnConvolutionDescriptor_t convDesc,
                                      cudnnConvolutionFwdAlgo_t algo, void *workSpace, size_t workSpaceBytes,
                                      const void *beta, const cudnnTensorDescriptor_t yDesc, void *y) {
    U(alpha), U(xDesc), U(wDesc), U(convDesc), U(algo), U(workSpace), U(workSpaceBytes), U(beta), U(yDesc);
    GIVEN(x, w, y);
    return enqueue(handle);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t wDesc, const void *w,
                                           const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           const cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
                                           size_t workSpaceBytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxDesc, void *dx) {
    U(alpha), U(wDesc), U(dyDesc), U(convDesc), U(algo), U(workSpace), U(workSpaceBytes), U(beta), U(dxDesc);
    GIVEN(w, dy, dx);
    return enqueue(handle);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xDesc, const void *x,
                                             const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             const cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
                                             size_t workSpaceBytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwDesc, void *dw) {
    U(alpha), U(xDesc), U(dyDesc), U(convDesc), U(algo), U(workSpace), U(workSpaceBytes), U(beta), U(dwDesc);
    GIVEN(x, dy, dw);
    return enqueue(handle);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnFilterDescriptor_t wDesc, const void *w, const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionFwdAlgo_t algo, void *workSpace, size_t workSpaceBytes, const void *alpha2,
    const cudnnTensorDescriptor_t zDesc, const void *z, const cudnnTensorDescriptor_t biasDesc,
    const void *bias, const cudnnActivationDescriptor_t activationDesc, const cudnnTensorDescriptor_t yDesc,
    void *y) {
    U(alpha1), U(xDesc), U(wDesc), U(convDesc), U(algo), U(workSpace), U(workSpaceBytes), U(alpha2), U(zDesc),
        U(biasDesc), U(activationDesc), U(yDesc);
    GIVEN(x, w, z, bias, y);
    return enqueue(handle);
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc, cudnnForwardMode_t fwdMode,
                              const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void *x,
                              cudnnRNNDataDescriptor_t yDesc, void *y, cudnnTensorDescriptor_t hDesc,
                              const void *hx, void *hy, cudnnTensorDescriptor_t cDesc, const void *cx,
                              void *cy, size_t weightSpaceSize, const void *weightSpace, size_t workSpaceSize,
                              void *workSpace, size_t reserveSpaceSize, void *reserveSpace) {
    U(rnnDesc), U(fwdMode), U(devSeqLengths), U(xDesc), U(yDesc), U(hDesc), U(cDesc), U(weightSpaceSize),
        U(workSpaceSize), U(workSpace), U(reserveSpaceSize), U(reserveSpace);
    GIVEN(x, y, hx, hy, cx, cy, weightSpace);
    return enqueue(handle);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                      const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t yDesc,
                                      const void *y, const void *dy, cudnnRNNDataDescriptor_t xDesc, void *dx,
                                      cudnnTensorDescriptor_t hDesc, const void *hx, const void *dhy,
                                      void *dhx, cudnnTensorDescriptor_t cDesc, const void *cx,
                                      const void *dcy, void *dcx, size_t weightSpaceSize,
                                      const void *weightSpace, size_t workSpaceSize, void *workSpace,
                                      size_t reserveSpaceSize, void *reserveSpace) {
    U(rnnDesc), U(devSeqLengths), U(yDesc), U(y), U(dy), U(xDesc), U(hDesc), U(hx), U(dhy), U(cDesc), U(cx),
        U(dcy), U(weightSpaceSize), U(workSpaceSize), U(workSpace), U(reserveSpaceSize), U(reserveSpace);
    GIVEN(dx, dhx, dcx, weightSpace);
    return enqueue(handle);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                         cudnnWgradMode_t addGrad, const int32_t devSeqLengths[],
                                         cudnnRNNDataDescriptor_t xDesc, const void *x,
                                         cudnnTensorDescriptor_t hDesc, const void *hx,
                                         cudnnRNNDataDescriptor_t yDesc, const void *y,
                                         size_t weightSpaceSize, void *dweightSpace, size_t workSpaceSize,
                                         void *workSpace, size_t reserveSpaceSize, void *reserveSpace) {
    U(rnnDesc), U(addGrad), U(devSeqLengths), U(xDesc), U(hDesc), U(yDesc), U(weightSpaceSize),
        U(workSpaceSize), U(workSpace), U(reserveSpaceSize), U(reserveSpace);
    GIVEN(x, hx, y, dweightSpace);
    return enqueue(handle);
}
