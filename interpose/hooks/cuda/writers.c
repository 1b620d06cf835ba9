/* Copies and sets, by the facts of their rows; graphs and batches. */
#include "writers.h"
#include <string.h>
#include "events/gate.h"
#include "shims/cuda/types.h"
#include "awaited.h"
#include "capture.h"
#include "joined.h"
#include "layouts.h"
#include "nccl.h"
#include "observe.h"

/* Addresses in homes that a copy carries from the host to a device. Kernels may find them there and write through them, with nothing of it
 * among their arguments: what lies in such a home is read there from then on (slots_kept).
 *
 * A word that happens to look like an address costs its home the slots. So in a long copy an address counts that has another one
 * near it, as in a table, or that a parameter begins at; in a short one each does. */

#define LOOK_BYTES  ((size_t)1 << 20) /* of each copy, from its beginning */
#define SHORT_BYTES ((size_t)64 << 10)
#define NEAR_WORDS  512

#define MEMORY_TYPE   2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define MEMORY_DEVICE 2 /* CU_MEMORYTYPE_DEVICE: managed memory as well, which is left where it is */

static bool is_on_host(const void *address) {
    static void *found; /* atomic */
    CUresult (*ask)(void *, int, CUdeviceptr) = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!ask) {
        ask = hooks_driver_symbol("cuPointerGetAttribute");
        __atomic_store_n(&found, (void *)ask, __ATOMIC_RELAXED);
    }
    unsigned type = 0;
    return ask && (ask(&type, MEMORY_TYPE, (CUdeviceptr)address) != CUDA_SUCCESS || type != MEMORY_DEVICE);
}

static uintptr_t word_at(const char *from, size_t word) {
    uintptr_t value;
    memcpy(&value, from + word * sizeof value, sizeof value);
    return value;
}

static bool is_in_home(uintptr_t address, slots **s) {
    int device = devices_find(address);
    home found;
    *s = devices_slots(device);
    return *s && home_find(devices_homes(device), address, &found);
}

/* Of words that are near each other. */
static void addresses_keep(const char *from, size_t words, bool is_short) {
    slots *s;
    uint32_t count = 0;
    for (size_t i = 0; i < words && count < 2; i++)
        count += is_in_home(word_at(from, i), &s);
    for (size_t i = 0; i < words && count > 0; i++)
        if (is_in_home(word_at(from, i), &s)) {
            slots_kept(s, word_at(from, i), is_short || count > 1);
            joined_leave((const void *)word_at(from, i), 0);
        }
}

static void look(uintptr_t to, const char *from, size_t bytes) {
    uintptr_t first = __atomic_load_n(&devices_first, __ATOMIC_ACQUIRE);
    uint64_t homes_bytes = __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED);
    size_t before = -to % sizeof(uintptr_t); /* addresses are whole words where the copy goes */
    bool is_short = bytes <= SHORT_BYTES;
    bytes = bytes > LOOK_BYTES ? LOOK_BYTES : bytes;
    size_t words = bytes > before ? (bytes - before) / sizeof(uintptr_t) : 0;
    from += before;
    for (size_t at = 0; at < words; at += NEAR_WORDS) {
        size_t count = words - at < NEAR_WORDS ? words - at : NEAR_WORDS, found = 0;
        for (size_t i = 0; i < count; i++)
            found += word_at(from, at + i) - first < homes_bytes;
        if (!found)
            continue;
        gate_enter(); /* a flip looks at the same tables */
        addresses_keep(from + at * sizeof(uintptr_t), count, is_short);
        gate_leave();
        awaited_by_host(); /* kernels read there unseen from now on */
    }
}

/* These bytes were copied; `from` may be memory of the host. */
static void addresses_carried(uintptr_t to, const void *from, size_t bytes) {
    if (writers_matter() && bytes >= sizeof(uintptr_t) && is_on_host(from))
        look(to, from, bytes);
}

#define CARRIES(result, id, parameters, arguments, to, from, bytes)                                          \
    static result carry_##id parameters {                                                                    \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
        result status = real arguments;                                                                      \
        if (status == 0)                                                                                     \
            addresses_carried((uintptr_t)(to), (const void *)(from), bytes);                                 \
        return status;                                                                                       \
    }
/* Rows of a picture. What lies between them is not copied, and may not be readable. */
#define CARRIES_ROWS(id, parameters, arguments)                                                              \
    static cudaError_t carry_##id parameters {                                                               \
        cudaError_t(*real) parameters = hooks_real(HOOK_##id);                                               \
        cudaError_t status = real arguments;                                                                 \
        for (size_t row = 0; status == 0 && row < height && row * width < LOOK_BYTES; row++)                 \
            addresses_carried((uintptr_t)dst + row * dpitch, (const char *)src + row * spitch, width);       \
        return status;                                                                                       \
    }
#define TWICE(kind, variant, result, id, ...)                                                                \
    kind(result, id, __VA_ARGS__) kind(result, id##variant, __VA_ARGS__)

TWICE(CARRIES, _ptds, cudaError_t, cudaMemcpy,
      (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind), (dst, src, count, kind), dst, src,
      count)
TWICE(CARRIES, _ptsz, cudaError_t, cudaMemcpyAsync,
      (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream),
      (dst, src, count, kind, stream), dst, src, count)
TWICE(CARRIES, _ptds, cudaError_t, cudaMemcpyToSymbol,
      (const void *symbol, const void *src, size_t count, size_t offset, enum cudaMemcpyKind kind),
      (symbol, src, count, offset, kind), offset, src, count)
TWICE(CARRIES, _ptsz, cudaError_t, cudaMemcpyToSymbolAsync,
      (const void *symbol, const void *src, size_t count, size_t offset, enum cudaMemcpyKind kind,
       cudaStream_t stream),
      (symbol, src, count, offset, kind, stream), offset, src, count)
TWICE(CARRIES, _ptds, CUresult, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t count), (dst, src, count),
      dst, src, count)
TWICE(CARRIES, _ptsz, CUresult, cuMemcpyAsync,
      (CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream), (dst, src, count, stream), dst, src,
      count)
TWICE(CARRIES, _ptds, CUresult, cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t count),
      (dst, src, count), dst, src, count)
TWICE(CARRIES, _ptsz, CUresult, cuMemcpyHtoDAsync_v2,
      (CUdeviceptr dst, const void *src, size_t count, CUstream stream), (dst, src, count, stream), dst, src,
      count)
CARRIES_ROWS(cudaMemcpy2D,
             (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
              enum cudaMemcpyKind kind),
             (dst, dpitch, src, spitch, width, height, kind))
CARRIES_ROWS(cudaMemcpy2DAsync,
             (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
              enum cudaMemcpyKind kind, cudaStream_t stream),
             (dst, dpitch, src, spitch, width, height, kind, stream))

/* A tensor map hides its address from who looks for it among a launch's arguments. Of those that a library makes for a call of its own, the
 * call's arguments tell. */
static void address_hidden(const void *address) {
    slots *s;
    if (!writers_matter() || !devices_may_hold((uintptr_t)address) ||
        (observe_thread.inside & OBSERVE_LIBRARIES))
        return;
    gate_enter();
    if (is_in_home((uintptr_t)address, &s))
        slots_kept(s, (uintptr_t)address, true);
    gate_leave();
    awaited_by_host();
}

#define HIDES(id, parameters, arguments)                                                                     \
    static CUresult hide_##id parameters {                                                                   \
        CUresult(*real) parameters = hooks_real(HOOK_##id);                                                  \
        CUresult status = real arguments;                                                                    \
        if (status == CUDA_SUCCESS)                                                                          \
            address_hidden(globalAddress);                                                                   \
        return status;                                                                                       \
    }
HIDES(cuTensorMapEncodeTiled,
      (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
       void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
       const cuuint32_t *boxDim, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill),
      (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides, boxDim, elementStrides,
       interleave, swizzle, l2Promotion, oobFill))
HIDES(cuTensorMapEncodeIm2col,
      (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
       void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
       const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
       cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill),
      (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides, pixelBoxLowerCorner,
       pixelBoxUpperCorner, channelsPerPixel, pixelsPerColumn, elementStrides, interleave, swizzle,
       l2Promotion, oobFill))
HIDES(cuTensorMapReplaceAddress, (CUtensorMap * tensorMap, void *globalAddress), (tensorMap, globalAddress))

static void addresses_install(void) {
#define CARRY(id)                observe_target_replace(HOOK_##id, (void *)carry_##id)
#define CARRY_TWICE(id, variant) CARRY(id), CARRY(id##variant)
    CARRY_TWICE(cudaMemcpy, _ptds);
    CARRY_TWICE(cudaMemcpyAsync, _ptsz);
    CARRY_TWICE(cudaMemcpyToSymbol, _ptds);
    CARRY_TWICE(cudaMemcpyToSymbolAsync, _ptsz);
    CARRY_TWICE(cuMemcpy, _ptds);
    CARRY_TWICE(cuMemcpyAsync, _ptsz);
    CARRY_TWICE(cuMemcpyHtoD_v2, _ptds);
    CARRY_TWICE(cuMemcpyHtoDAsync_v2, _ptsz);
    CARRY(cudaMemcpy2D);
    CARRY(cudaMemcpy2DAsync);
    observe_target_replace(HOOK_cuTensorMapEncodeTiled, (void *)hide_cuTensorMapEncodeTiled);
    observe_target_replace(HOOK_cuTensorMapEncodeIm2col, (void *)hide_cuTensorMapEncodeIm2col);
    observe_target_replace(HOOK_cuTensorMapReplaceAddress, (void *)hide_cuTensorMapReplaceAddress);
}

/* Launches: the addresses among their arguments, and where the layout of these is known from. */

#define INVALID_VALUE 1 /* CUDA_ERROR_INVALID_VALUE: there is no such parameter */

/* ---- layouts ---- */

/* Functions of CUDA that only this file calls, looked up at the first unknown kernel. NULL: this CUDA does not have it. */
static struct {
    CUresult (*kernel_parameter)(cudaKernel_t, size_t, size_t *, size_t *);
    CUresult (*function_parameter)(CUfunction, size_t, size_t *, size_t *);
    cudaError_t (*kernel_of)(cudaKernel_t *, const void *);
    cudaError_t (*error_look)(void);
    cudaError_t (*error_take)(void);
} cuda;

static void cuda_find(void) {
    static bool found; /* atomic; who comes meanwhile looks for them too, and finds the same */
    if (__atomic_load_n(&found, __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(&cuda.kernel_parameter, hooks_driver_symbol("cuKernelGetParamInfo"), __ATOMIC_RELAXED);
    __atomic_store_n(&cuda.function_parameter, hooks_driver_symbol("cuFuncGetParamInfo"), __ATOMIC_RELAXED);
    __atomic_store_n(&cuda.kernel_of, hooks_runtime_symbol("cudaGetKernel"), __ATOMIC_RELAXED);
    __atomic_store_n(&cuda.error_look, hooks_runtime_symbol("cudaPeekAtLastError"), __ATOMIC_RELAXED);
    __atomic_store_n(&cuda.error_take, hooks_runtime_symbol("cudaGetLastError"), __ATOMIC_RELAXED);
    __atomic_store_n(&found, true, __ATOMIC_RELEASE);
}

/* The parameters one after another, until there is no such one. */
#define ASK_EACH(ask, handle, layout, status)                                                                \
    for (size_t index_ = 0, offset_, bytes_;                                                                 \
         ((status) = (ask)(handle, index_, &offset_, &bytes_)) == CUDA_SUCCESS &&                            \
         arguments_add(layout, offset_, bytes_);                                                             \
         index_++)

static bool ask_kernel(const void *kernel, arguments_layout *layout) {
    CUresult status = CUDA_SUCCESS;
    cuda_find();
    if (!cuda.kernel_parameter)
        return false;
    ASK_EACH(cuda.kernel_parameter, (cudaKernel_t)kernel, layout, status);
    return status == INVALID_VALUE || layout->count == ARGUMENTS_UNKNOWN;
}

/* A launch's CUfunction may be a kernel in disguise: then the driver refuses the handle. What it says to a kernel of no parameters could mean
 * the same. */
static bool ask_function(const void *function, arguments_layout *layout) {
    CUresult status = CUDA_SUCCESS;
    cuda_find();
    if (!cuda.function_parameter)
        return false;
    ASK_EACH(cuda.function_parameter, (CUfunction)function, layout, status);
    if (status == INVALID_VALUE || layout->count == ARGUMENTS_UNKNOWN)
        return layout->count > 0;
    return layout->count == 0 && ask_kernel(function, layout);
}

/* The runtime remembers its errors, for the script to ask: none of ours may be left, and none of its own may be taken. */
static bool ask_host_function(const void *function, arguments_layout *layout) {
    cudaKernel_t kernel = NULL;
    cuda_find();
    if (!cuda.kernel_of || !cuda.error_look || !cuda.error_take || cuda.error_look() != cudaSuccess)
        return false;
    if (cuda.kernel_of(&kernel, function) == cudaSuccess)
        return ask_kernel(kernel, layout);
    cuda.error_take();
    return false;
}

/* ---- launches ---- */

/* What a launch may write: addresses that are noted together, with one event. */
typedef struct written {
    slots
        *slots; /* of the device that holds the addresses [first, end): those of a launch are mostly of one */
    uintptr_t first, end;
    uintptr_t
        done; /* of [done, done + done_bytes) enough is known: addresses of one home mostly follow each other */
    size_t done_bytes;
    uint64_t stream;
    uint32_t count;
    uintptr_t addresses[SLOTS_ADDRESSES_MOST];
} written;

/* How far the kernel goes is unknown: each address stands for its home. */
static void note_end(written *w) {
    if (w->count)
        slots_written_each(w->slots, w->addresses, w->count, w->stream);
    w->count = 0;
}

static void slots_change(written *w, uintptr_t address) {
    int device = devices_find(address);
    note_end(w);
    w->slots = devices_slots(device);
    w->first = w->end = 0;
    if (w->slots)
        homes_range(devices_homes(device), &w->first, &w->end);
}

static __attribute__((noinline)) void note(written *w, uintptr_t address) {
    if (__builtin_expect(address - w->first >= w->end - w->first, 0))
        slots_change(w, address);
    if (!w->slots || !slots_may_hold(w->slots, address, capture_runs(), &w->done, &w->done_bytes))
        return;
    if (w->count == SLOTS_ADDRESSES_MOST)
        note_end(w);
    w->addresses[w->count++] = address;
}

static inline void note_word(uintptr_t address, void *context) {
    written *w = context;
    if (address - w->done >= w->done_bytes)
        note(w, address);
}

/* Inside of a product or a collective the library's own arguments say more. Not all calls of cuDNN are hooked. */
static inline bool launch_matters(void) {
    return writers_matter() && !(observe_thread.inside & (OBSERVE_NCCL | OBSERVE_BLAS));
}

/* Visits each address in homes among a launch's arguments. False: what they are is unknown. */
static bool launch_scan(const void *kernel, layouts_ask *ask, void *const *arguments, void *const *extra,
                        arguments_visit *visit, void *context) {
    /* The first address before the bytes, as in devices_may_hold. */
    uintptr_t first = __atomic_load_n(&devices_first, __ATOMIC_ACQUIRE);
    uint64_t bytes = __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED);
    if (arguments) {
        arguments_layout layout;
        layouts_get(kernel, ask, &layout);
        if (layout.count == ARGUMENTS_UNKNOWN)
            return false;
        arguments_scan(&layout, arguments, first, bytes, visit, context);
    } else {
        const void *block;
        size_t block_bytes;
        if (arguments_block(extra, &block, &block_bytes))
            arguments_scan_words(block, block_bytes / 8, first, bytes, visit, context);
    }
    return true;
}

static void launched(const void *kernel, layouts_ask *ask, void *const *arguments, void *const *extra,
                     uint64_t stream) {
    written all; /* the addresses are not set */
    all.slots = NULL;
    all.first = all.end = all.done = all.done_bytes = 0;
    all.stream = stream;
    all.count = 0;
    if (!launch_scan(kernel, ask, arguments, extra, note_word, &all))
        writers_note_all(stream);
    note_end(&all);
}

static void leave_word(uintptr_t address, void *context) {
    (void)context;
    joined_leave((const void *)address, 0);
}

static void launch_comes(const void *kernel, layouts_ask *ask, void *const *arguments, void *const *extra) {
    if (!launch_scan(kernel, ask, arguments, extra, leave_word, NULL))
        joined_leave_all();
}

static void await_word(uintptr_t address, void *stream) {
    awaited((const void *)address, 0, *(const uint64_t *)stream);
}

static void launch_awaits(const void *kernel, layouts_ask *ask, void *const *arguments, void *const *extra,
                          uint64_t stream) {
    if (!launch_scan(kernel, ask, arguments, extra, await_word, &stream))
        awaited_all(stream);
}

#define LAUNCH(result, id, default_stream, parameters, arguments, kernel, ask, values, extra, stream)        \
    static result launch_##id parameters {                                                                   \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
        if (joined_matter() && launch_matters())                                                             \
            launch_comes((const void *)(kernel), ask, values, extra);                                        \
        if (updates_matter())                                                                                \
            launch_awaits((const void *)(kernel), ask, values, extra,                                        \
                          (stream) ? (uint64_t)(stream) : (default_stream));                                 \
        result status = real arguments;                                                                      \
        if (status == 0 && launch_matters())                                                                 \
            launched((const void *)(kernel), ask, values, extra,                                             \
                     (stream) ? (uint64_t)(stream) : (default_stream));                                      \
        return status;                                                                                       \
    }
#define LAUNCH_PTSZ(result, id, ...)                                                                         \
    LAUNCH(result, id, 0, __VA_ARGS__)                                                                       \
    LAUNCH(result, id##_ptsz, OBSERVE_STREAM_PER_THREAD, __VA_ARGS__)

LAUNCH_PTSZ(cudaError_t, cudaLaunchKernel,
            (const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
             cudaStream_t stream),
            (func, gridDim, blockDim, args, sharedMem, stream), func, ask_host_function, args, NULL, stream)
LAUNCH_PTSZ(cudaError_t, __cudaLaunchKernel,
            (cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
             cudaStream_t stream),
            (kernel, gridDim, blockDim, args, sharedMem, stream), kernel, ask_kernel, args, NULL, stream)
LAUNCH_PTSZ(cudaError_t, cudaLaunchKernelExC,
            (const cudaLaunchConfig_t *config, const void *func, void **args), (config, func, args), func,
            ask_host_function, args, NULL, config->stream)
LAUNCH_PTSZ(cudaError_t, cudaLaunchCooperativeKernel,
            (const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
             cudaStream_t stream),
            (func, gridDim, blockDim, args, sharedMem, stream), func, ask_host_function, args, NULL, stream)
LAUNCH_PTSZ(CUresult, cuLaunchKernel,
            (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
            (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
             kernelParams, extra),
            f, ask_function, kernelParams, extra, hStream)
LAUNCH_PTSZ(CUresult, cuLaunchKernelEx,
            (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
            (config, f, kernelParams, extra), f, ask_function, kernelParams, extra, config->hStream)
LAUNCH_PTSZ(CUresult, cuLaunchCooperativeKernel,
            (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
            (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
             kernelParams),
            f, ask_function, kernelParams, NULL, hStream)

/* ---- the ends of kernels ---- */

#define FORGETS(result, id, parameters, arguments)                                                           \
    static result forget_##id parameters {                                                                   \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
        layouts_forget();                                                                                    \
        return real arguments;                                                                               \
    }
FORGETS(CUresult, cuModuleUnload, (CUmodule hmod), (hmod))
FORGETS(CUresult, cuLibraryUnload, (CUlibrary library), (library))
FORGETS(CUresult, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
FORGETS(CUresult, cuDevicePrimaryCtxReset_v2, (CUdevice_v1 dev), (dev))
FORGETS(cudaError_t, cudaLibraryUnload, (cudaLibrary_t library), (library))
FORGETS(cudaError_t, cudaDeviceReset, (void), ())

static void launches_install(void) {
#define REPLACE(kind, id)      observe_target_replace(HOOK_##id, (void *)kind##_##id)
#define REPLACE_PTSZ(kind, id) REPLACE(kind, id), REPLACE(kind, id##_ptsz)
    REPLACE_PTSZ(launch, cudaLaunchKernel);
    REPLACE_PTSZ(launch, __cudaLaunchKernel);
    REPLACE_PTSZ(launch, cudaLaunchKernelExC);
    REPLACE_PTSZ(launch, cudaLaunchCooperativeKernel);
    REPLACE_PTSZ(launch, cuLaunchKernel);
    REPLACE_PTSZ(launch, cuLaunchKernelEx);
    REPLACE_PTSZ(launch, cuLaunchCooperativeKernel);
    REPLACE(forget, cuModuleUnload);
    REPLACE(forget, cuLibraryUnload);
    REPLACE(forget, cuCtxDestroy_v2);
    REPLACE(forget, cuDevicePrimaryCtxReset_v2);
    REPLACE(forget, cudaLibraryUnload);
    REPLACE(forget, cudaDeviceReset);
}

/* What collectives and messages of NCCL write: their receive buffers. Between ncclGroupStart and ncclGroupEnd a call has enqueued nothing
 * yet; what it will write waits for the end of the outermost group.
 *
 * A communicator that does not block may enqueue after its call has returned (ncclInProgress), and nothing says when: such a call is
 * noted as it returns. */

#define NCCL_RANKS  0
#define WAITING_MAX 16

/* `address` 0: any, since there were more than fit. */
typedef struct receiver {
    uintptr_t address;
    size_t bytes;
    uint64_t stream;
} receiver;

HOOK_THREAD_LOCAL struct {
    uint32_t groups, count; /* open groups; receivers that wait for their end */
    receiver waiting[WAITING_MAX];
} own;

static void note_received(const receiver *r) {
    if (r->address)
        writers_note((const void *)r->address, r->bytes, r->stream);
    else
        writers_note_all(r->stream);
}

/* One receiver for each stream, of any address. */
static void waiting_merge(void) {
    uint32_t streams = 0;
    for (uint32_t i = 0; i < own.count; i++) {
        uint32_t known = 0;
        while (known < streams && own.waiting[known].stream != own.waiting[i].stream)
            known++;
        own.waiting[known] = (receiver){.stream = own.waiting[i].stream};
        streams += known == streams;
    }
    own.count = streams;
}

static void waiting_add(const receiver *r) {
    if (own.count == WAITING_MAX)
        waiting_merge();
    if (own.count == WAITING_MAX)
        note_received(r); /* so many streams: nothing better is known */
    else
        own.waiting[own.count++] = *r;
}

static size_t ranks_of(ncclComm_t communicator) {
    static void *found; /* atomic */
    ncclResult_t (*count)(ncclComm_t, int *) = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!count) {
        count = hooks_layer_symbol(HOOK_LAYER_NCCL, "ncclCommCount");
        __atomic_store_n(&found, (void *)count, __ATOMIC_RELAXED);
    }
    int ranks = 0;
    return count && count(communicator, &ranks) == ncclSuccess && ranks > 0 ? (size_t)ranks : 0;
}

static size_t received_bytes(uint32_t blocks, size_t count, ncclDataType_t datatype,
                             ncclComm_t communicator) {
    return nccl_bytes(count, datatype) * (blocks == NCCL_RANKS ? ranks_of(communicator) : blocks);
}

/* Before the call. */
static void receives(const void *address, uint32_t blocks, size_t count, ncclDataType_t datatype,
                     ncclComm_t communicator, cudaStream_t stream) {
    if (updates_matter())
        awaited_all((uint64_t)stream);
    if (joined_matter() && devices_may_hold((uintptr_t)address) && count)
        joined_leave(address, received_bytes(blocks, count, datatype, communicator));
}

static void received(const void *address, uint32_t blocks, size_t count, ncclDataType_t datatype,
                     ncclComm_t communicator, cudaStream_t stream) {
    if (!devices_may_hold((uintptr_t)address) || count == 0)
        return;
    size_t bytes = received_bytes(blocks, count, datatype, communicator);
    receiver r = {(uintptr_t)address, bytes ? bytes : WRITERS_OPEN, (uint64_t)stream};
    if (own.groups)
        waiting_add(&r);
    else
        note_received(&r);
}

#define FLAT(...)                               __VA_ARGS__
#define RECEIVED(then, ...)                     RECEIVED_OF(then, __VA_ARGS__)
#define RECEIVED_OF(then, address, blocks, ...) then(address, blocks, __VA_ARGS__)
#define NCCL_COMMUNICATOR(...)
#define NCCL_CALL(...)
#define NCCL_COLLECTIVE(function, operation, parameters, arguments, payload, written, doc)                   \
    static ncclResult_t receive_##function parameters {                                                      \
        ncclResult_t(*real) parameters = hooks_real(HOOK_##function);                                        \
        RECEIVED(receives, FLAT written, FLAT payload);                                                      \
        ncclResult_t status = real arguments;                                                                \
        if (status == ncclSuccess || status == ncclInProgress)                                               \
            RECEIVED(received, FLAT written, FLAT payload);                                                  \
        return status;                                                                                       \
    }
#include "hooks/table/nccl.def"

static ncclResult_t receive_ncclGroupStart(void) {
    ncclResult_t (*real)(void) = hooks_real(HOOK_ncclGroupStart);
    ncclResult_t status = real();
    if (status == ncclSuccess)
        own.groups++;
    return status;
}

/* A group that fails may have enqueued some of its calls. */
static ncclResult_t receive_ncclGroupEnd(void) {
    ncclResult_t (*real)(void) = hooks_real(HOOK_ncclGroupEnd);
    ncclResult_t status = real();
    own.groups -= own.groups > 0;
    if (own.groups == 0) {
        for (uint32_t i = 0; i < own.count; i++)
            note_received(&own.waiting[i]);
        own.count = 0;
    }
    return status;
}

static void receivers_install(void) {
#define NCCL_COMMUNICATOR(...)
#define NCCL_CALL(...)
#define NCCL_COLLECTIVE(function, ...) observe_target_replace(HOOK_##function, (void *)receive_##function);
#include "hooks/table/nccl.def"
    observe_target_replace(HOOK_ncclGroupStart, (void *)receive_ncclGroupStart);
    observe_target_replace(HOOK_ncclGroupEnd, (void *)receive_ncclGroupEnd);
}

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
        const uint64_t stream = hStream ? (uint64_t)hStream : (default_stream);                              \
        for (size_t i = 0; i < count && (joined_matter() || updates_matter()); i++) {                        \
            joined_leave((const void *)dsts[i], sizes[i]);                                                   \
            awaited((const void *)dsts[i], sizes[i], stream);                                                \
            awaited((const void *)srcs[i], sizes[i], stream);                                                \
        }                                                                                                    \
        CUresult status = real arguments;                                                                    \
        note_each(dsts, srcs, sizes, count, stream);                                                         \
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
        capture_writers_record();                                                                            \
        return real arguments;                                                                               \
    }
ENDS(cudaError_t, cudaStreamDestroy, (cudaStream_t stream), (stream))
ENDS(CUresult, cuStreamDestroy_v2, (CUstream stream), (stream))

static void announced(effect_writes writes, effect_reads reads, const observe_facts *facts) {
    joined_announced(writes, facts);
    awaited_announced(writes, reads, facts);
}

castor_status writers_install(void) {
    static bool installed; /* atomic */
    if (__atomic_exchange_n(&installed, true, __ATOMIC_RELAXED))
        return CASTOR_OK;
    __atomic_store_n(&observe_enqueued, enqueued, __ATOMIC_RELEASE);
    __atomic_store_n(&observe_announced, announced, __ATOMIC_RELEASE);
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
