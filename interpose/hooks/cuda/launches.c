/* Launches: the addresses among their arguments, and where the layout of these is known from. */
#include "layouts.h"

#include "capture.h"
#include "observe.h"
#include "shims/cuda/types.h"
#include "writers.h"

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

static void launched(const void *kernel, layouts_ask *ask, void *const *arguments, void *const *extra,
                     uint64_t stream) {
    /* The first address before the bytes, as in devices_may_hold. */
    uintptr_t first = __atomic_load_n(&devices_first, __ATOMIC_ACQUIRE);
    uint64_t bytes = __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED);
    written all; /* the addresses are not set */
    all.slots = NULL;
    all.first = all.end = all.done = all.done_bytes = 0;
    all.stream = stream;
    all.count = 0;
    if (arguments) {
        arguments_layout layout;
        layouts_get(kernel, ask, &layout);
        if (layout.count == ARGUMENTS_UNKNOWN)
            writers_note_all(stream);
        else
            arguments_scan(&layout, arguments, first, bytes, note_word, &all);
    } else {
        const void *block;
        size_t block_bytes;
        if (arguments_block(extra, &block, &block_bytes))
            arguments_scan_words(block, block_bytes / 8, first, bytes, note_word, &all);
    }
    note_end(&all);
}

#define LAUNCH(result, id, default_stream, parameters, arguments, kernel, ask, values, extra, stream)        \
    static result launch_##id parameters {                                                                   \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
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

void launches_install(void) {
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
