#include "capture.h"

#include "device/devices.h"
#include "joined.h"
#include "observe.h"
#include "shims/cuda/types.h"

static int captures; /* atomic */

static void capture_one_less(void) {
    int now = __atomic_load_n(&captures, __ATOMIC_RELAXED);
    while (now > 0 &&
           !__atomic_compare_exchange_n(&captures, &now, now - 1, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
}

void capture_writers_record(void) {
    for (int device = 0; device < DEVICES_MAX; device++) {
        slots *s = devices_slots(device);
        if (s)
            slots_writes_end(s);
    }
}

/* Counted before it begins: from then on writers are recorded at once (device/slots.c). */
static void capture_begins(void) {
    joined_leave_all(); /* nothing can leave within it, and replays write unseen */
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    capture_writers_record();
}

static void capture_begun(int status) {
    if (status != 0)
        capture_one_less();
}

/* An end that is refused leaves the capture as it was. One that had become invalid has ended, with an error. */
static void capture_ended(int status) {
    if (status == 1 || status == CUDA_ERROR_INVALID_HANDLE || status == CUDA_ERROR_ILLEGAL_STATE ||
        status == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        return;
    capture_one_less();
}

bool capture_runs(void) {
    return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0;
}

/* The replacement of a row, and of its variant per thread. */
#define COUNTED(result, function, parameters, arguments, before, after)                                      \
    static result counted_##function parameters {                                                            \
        result(*real) parameters = hooks_find(HOOK_##function);                                              \
        before;                                                                                              \
        result status = real arguments;                                                                      \
        after((int)status);                                                                                  \
        return status;                                                                                       \
    }
#define BEGINS(result, function, parameters, arguments)                                                      \
    COUNTED(result, function, parameters, arguments, capture_begins(), capture_begun)                        \
    COUNTED(result, function##_ptsz, parameters, arguments, capture_begins(), capture_begun)
#define ENDS(result, function, parameters, arguments)                                                        \
    COUNTED(result, function, parameters, arguments, (void)0, capture_ended)                                 \
    COUNTED(result, function##_ptsz, parameters, arguments, (void)0, capture_ended)

BEGINS(cudaError_t, cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
       (stream, mode))
BEGINS(cudaError_t, cudaStreamBeginCaptureToGraph,
       (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
        const cudaGraphEdgeData *data, size_t count, enum cudaStreamCaptureMode mode),
       (stream, graph, dependencies, data, count, mode))
ENDS(cudaError_t, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph), (stream, graph))
BEGINS(CUresult, cuStreamBeginCapture, (CUstream stream), (stream))
BEGINS(CUresult, cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGINS(CUresult, cuStreamBeginCaptureToGraph,
       (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
        size_t count, CUstreamCaptureMode mode),
       (stream, graph, dependencies, data, count, mode))
ENDS(CUresult, cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))

void capture_install(void) {
#define INSTALL(function)                                                                                    \
    observe_target_replace(HOOK_##function, (void *)counted_##function);                                     \
    observe_target_replace(HOOK_##function##_ptsz, (void *)counted_##function##_ptsz)
    INSTALL(cudaStreamBeginCapture);
    INSTALL(cudaStreamBeginCaptureToGraph);
    INSTALL(cudaStreamEndCapture);
    INSTALL(cuStreamBeginCapture);
    INSTALL(cuStreamBeginCapture_v2);
    INSTALL(cuStreamBeginCaptureToGraph);
    INSTALL(cuStreamEndCapture);
}
