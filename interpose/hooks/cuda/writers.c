/* Copies and sets, by the facts of their rows; graphs and batches. */
#include "writers.h"

#include "events/gate.h"
#include "observe.h"
#include "shims/cuda/types.h"

void writers_note_home(uintptr_t address, size_t bytes, uint64_t stream) {
    int device = devices_find(address);
    slots *s = devices_slots(device);
    if (!s)
        return;
    gate_enter(); /* a flip looks at the same tables */
    slots_written(s, address, bytes, stream);
    gate_leave();
}

void writers_note_all(uint64_t stream) {
    if (!writers_matter())
        return;
    gate_enter();
    for (int device = 0; device < DEVICES_MAX; device++) {
        slots *s = devices_slots(device);
        if (s)
            slots_written_all(s, stream);
    }
    gate_leave();
}

void writers_record(void) {
    for (int device = 0; writers_matter() && device < DEVICES_MAX; device++) {
        slots *s = devices_slots(device);
        if (s)
            slots_writes_end(s);
    }
}

static void enqueued(hook_id id, const observe_facts *facts) {
    switch (effect_of(id)->writes) {
    case EFFECT_WRITES_FACTS:
        if (facts->bytes)
            writers_note((const void *)facts->object, facts->bytes, facts->stream);
        break;
    case EFFECT_WRITES_ROWS:
        if (facts->bytes)
            writers_note((const void *)facts->object, WRITERS_OPEN, facts->stream);
        break;
    case EFFECT_WRITES_ALL:
        writers_note_all(facts->stream);
        break;
    default:
        break;
    }
}

/* ---- many copies in one call ---- */

static void note_each(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes,
                      size_t count, uint64_t stream) {
    for (size_t i = 0; i < count && writers_matter(); i++)
        if (sizes[i]) {
            writers_note((const void *)targets[i], sizes[i], stream);
            addresses_carried((uintptr_t)targets[i], (const void *)sources[i], sizes[i]);
        }
}

/* A copy that failed may have been enqueued in part. */
#define BATCH(id, default_stream, parameters, arguments)                                                     \
    static CUresult batch_##id parameters {                                                                  \
        CUresult(*real) parameters = hooks_real(HOOK_##id);                                                  \
        CUresult status = real arguments;                                                                    \
        note_each(dsts, srcs, sizes, count, hStream ? (uint64_t)hStream : (default_stream));                 \
        return status;                                                                                       \
    }
#define BATCH_PTSZ(id, parameters, arguments)                                                                \
    BATCH(id, 0, parameters, arguments)                                                                      \
    BATCH(id##_ptsz, OBSERVE_STREAM_PER_THREAD, parameters, arguments)

BATCH_PTSZ(cuMemcpyBatchAsync,
           (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes_v1 *attrs,
            size_t *attrIdxs, size_t numAttrs, size_t *failIdx, CUstream hStream),
           (dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, failIdx, hStream))
BATCH_PTSZ(cuMemcpyBatchAsync_v2,
           (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes_v1 *attrs,
            size_t *attrIdxs, size_t numAttrs, CUstream hStream),
           (dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, hStream))

/* ---- the ends of streams ---- */

#define ENDS(result, id, parameters, arguments)                                                              \
    static result end_##id parameters {                                                                      \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
        writers_record();                                                                                    \
        return real arguments;                                                                               \
    }
ENDS(cudaError_t, cudaStreamDestroy, (cudaStream_t stream), (stream))
ENDS(CUresult, cuStreamDestroy_v2, (CUstream stream), (stream))

castor_status writers_install(void) {
    static bool installed; /* atomic */
    if (__atomic_exchange_n(&installed, true, __ATOMIC_RELAXED))
        return CASTOR_OK;
    __atomic_store_n(&observe_enqueued, enqueued, __ATOMIC_RELEASE);
    observe_target_replace(HOOK_cuMemcpyBatchAsync, (void *)batch_cuMemcpyBatchAsync);
    observe_target_replace(HOOK_cuMemcpyBatchAsync_ptsz, (void *)batch_cuMemcpyBatchAsync_ptsz);
    observe_target_replace(HOOK_cuMemcpyBatchAsync_v2, (void *)batch_cuMemcpyBatchAsync_v2);
    observe_target_replace(HOOK_cuMemcpyBatchAsync_v2_ptsz, (void *)batch_cuMemcpyBatchAsync_v2_ptsz);
    observe_target_replace(HOOK_cudaStreamDestroy, (void *)end_cudaStreamDestroy);
    observe_target_replace(HOOK_cuStreamDestroy_v2, (void *)end_cuStreamDestroy_v2);
    addresses_install();
    launches_install();
    receivers_install();
    return CASTOR_OK;
}
