/* Copies and sets of two and three dimensions, writes and waits of single values. Compiled twice, as ordered.c. */
#include "driver.h"

#include <string.h>
#include <time.h>

static const char *place(CUmemorytype type, const void *host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? host : type == CU_MEMORYTYPE_ARRAY ? NULL : (const char *)device;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream stream, bool wait) {
    const char *source = place(c->srcMemoryType, c->srcHost, c->srcDevice);
    const char *target = place(c->dstMemoryType, c->dstHost, c->dstDevice);
    struct sim_copy what = {.width = c->WidthInBytes, .rows = c->Height};

    if (!source || !target)
        return CUDA_ERROR_NOT_SUPPORTED;
    what.source_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
    what.target_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
    what.source = source + c->srcY * what.source_pitch + c->srcXInBytes;
    what.target = (char *)target + c->dstY * what.target_pitch + c->dstXInBytes;
    return sim_copy_submit(HERE(stream), &what, wait);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *pCopy) {
    ENTER();
    return copy_2d(pCopy, NULL, true);
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *pCopy) {
    ENTER();
    return copy_2d(pCopy, NULL, true);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    ENTER();
    return copy_2d(pCopy, hStream, false);
}

/* Slice by slice. */
static CUresult copy_3d(const CUDA_MEMCPY3D *c, CUstream stream, bool wait) {
    size_t source_slice =
        (c->srcPitch ? c->srcPitch : c->WidthInBytes) * (c->srcHeight ? c->srcHeight : c->Height);
    size_t target_slice =
        (c->dstPitch ? c->dstPitch : c->WidthInBytes) * (c->dstHeight ? c->dstHeight : c->Height);
    CUDA_MEMCPY2D slice = {.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcMemoryType = c->srcMemoryType,
                           .srcPitch = c->srcPitch,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstMemoryType = c->dstMemoryType,
                           .dstPitch = c->dstPitch,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height};
    CUresult result = CUDA_SUCCESS;

    for (size_t z = 0; z < c->Depth && !result; z++) {
        slice.srcHost = (const char *)c->srcHost + (c->srcZ + z) * source_slice;
        slice.srcDevice = c->srcDevice + (c->srcZ + z) * source_slice;
        slice.dstHost = (char *)c->dstHost + (c->dstZ + z) * target_slice;
        slice.dstDevice = c->dstDevice + (c->dstZ + z) * target_slice;
        result = copy_2d(&slice, stream, wait);
    }
    return result;
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D *pCopy) {
    ENTER();
    return copy_3d(pCopy, NULL, true);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
    ENTER();
    return copy_3d(pCopy, hStream, false);
}

static CUresult set_2d(CUdeviceptr target, size_t pitch, uint32_t value, unsigned element, size_t width,
                       size_t height, CUstream stream, bool wait) {
    return sim_set_submit(HERE(stream), (void *)target, pitch, value, element, width, height, wait);
}

CUresult cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height) {
    ENTER();
    return set_2d(dstDevice, dstPitch, uc, 1, Width, Height, NULL, true);
}

CUresult cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                       size_t Height) {
    ENTER();
    return set_2d(dstDevice, dstPitch, us, 2, Width, Height, NULL, true);
}

CUresult cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height) {
    ENTER();
    return set_2d(dstDevice, dstPitch, ui, 4, Width, Height, NULL, true);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream) {
    ENTER();
    return set_2d(dstDevice, dstPitch, uc, 1, Width, Height, hStream, false);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                            size_t Height, CUstream hStream) {
    ENTER();
    return set_2d(dstDevice, dstPitch, us, 2, Width, Height, hStream, false);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream) {
    ENTER();
    return set_2d(dstDevice, dstPitch, ui, 4, Width, Height, hStream, false);
}

/* ---- single values ---- */

struct write_value {
    void *address;
    uint64_t value;
    size_t bytes;
};

static CUresult run_write_value(void *arguments) {
    const struct write_value *write = arguments;

    if (!sim_memory_valid(write->address, write->bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy(write->address, &write->value, write->bytes);
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    struct write_value write = {(void *)addr, value, sizeof value};

    (void)flags;
    ENTER();
    return sim_stream_submit(HERE(stream), SIM_SET, run_write_value, &write, sizeof write);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    struct write_value write = {(void *)addr, value, sizeof value};

    (void)flags;
    ENTER();
    return sim_stream_submit(HERE(stream), SIM_SET, run_write_value, &write, sizeof write);
}

struct wait_value {
    const void *address;
    uint64_t value;
    size_t bytes;
    unsigned flags;
    int device; /* whose legacy stream waits; -1: another stream does */
};

/* Looks every 50 microseconds, as long as the address is there. */
static CUresult run_wait_value(void *arguments) {
    const struct wait_value *wait = arguments;
    const struct timespec pause = {0, 50000};
    int64_t begin_ns = sim_now_ns();

    for (;;) {
        uint64_t found = 0;
        if (!sim_memory_valid(wait->address, wait->bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy(&found, wait->address, wait->bytes);
        int64_t ahead =
            wait->bytes == 4 ? (int32_t)(uint32_t)(found - wait->value) : (int64_t)(found - wait->value);
        bool over = (wait->flags & 3) == CU_STREAM_WAIT_VALUE_EQ    ? found == wait->value
                    : (wait->flags & 3) == CU_STREAM_WAIT_VALUE_AND ? (found & wait->value) != 0
                    : (wait->flags & 3) == CU_STREAM_WAIT_VALUE_NOR ? ~(found | wait->value) != 0
                                                                    : ahead >= 0;
        if (over) {
            if (wait->device >= 0)
                sim_waited_add(wait->device, sim_now_ns() - begin_ns);
            return CUDA_SUCCESS;
        }
        nanosleep(&pause, NULL);
    }
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t bytes,
                           unsigned flags) {
    struct wait_value wait = {(const void *)address, value, bytes, flags, -1};

    ENTER();
    CUresult result = sim_stream_resolve(&stream);
    if (result)
        return result;
    if (stream == stream->ctx->legacy)
        wait.device = stream->ctx->device;
    return sim_stream_submit(stream, SIM_WAIT, run_wait_value, &wait, sizeof wait);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    return wait_value(HERE(stream), addr, value, sizeof value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    return wait_value(HERE(stream), addr, value, sizeof value, flags);
}

/* ---- what has nothing to do ---- */

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) {
    (void)hStream, (void)dptr, (void)length, (void)flags;
    ENTER();
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
    (void)hGraphExec, (void)hStream;
    ENTER();
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    ENTER();
    instantiateParams->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return sim_graph_instantiate(hGraph, phGraphExec);
}
