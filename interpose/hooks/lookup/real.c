#include "wrapper.h"

#include <dlfcn.h>
#include <string.h>
#include "base/log.h"
#include "shims/torch/device.h"
#include "shims/torch/stable.h"
#include "objects.h"

#define CUDA_RUNTIME_LIBRARY "libcudart.so"
#define CUDA_DRIVER_LIBRARY  "libcuda.so"
#define NCCL_LIBRARY         "libnccl.so"
#define CUBLAS_LIBRARY       "libcublas.so"
#define CUBLASLT_LIBRARY     "libcublasLt.so"
#define CUDNN_LIBRARY        "libcudnn.so"

void *hook_real[HOOK_COUNT];

HOOK_THREAD_LOCAL bool looking_up;

void *hooks_real(hook_id id) {
    return __atomic_load_n(&hook_real[id], __ATOMIC_RELAXED);
}

typedef void *dlsym_function(void *handle, const char *name);

/* libdl.so.2 defined them before glibc 2.34, and is an empty shell since. */
static void *loader_real(const char *name) {
    void *real = objects_find_symbol("libc.so", name);
    return real ? real : objects_find_symbol("libdl.so", name);
}

void *loader_real_of(hook_id id) {
    void *real = hooks_real(id);
    if (__builtin_expect(real != NULL, 1))
        return real;
    real = loader_real(hook_table[id].symbol);
    if (!real)
        LOG_E(
            "this libc has no %s: programs that look functions up cannot run with the library (is it glibc?)",
            hook_table[id].symbol);
    __atomic_store_n(&hook_real[id], real, __ATOMIC_RELAXED);
    return real;
}

void *loader_symbol(void *handle, const char *name) {
    void *found = ((dlsym_function *)loader_real_of(HOOK_DLSYM))(handle, name);
    LOADER_NO_JUMP(found);
    return found;
}

void *loader_open(const char *path) {
    void *handle = ((loader_dlopen *)loader_real_of(HOOK_DLOPEN))(path, RTLD_NOLOAD | RTLD_LAZY);
    LOADER_NO_JUMP(handle);
    return handle;
}

void *loader_load(const char *name) {
    void *handle = ((loader_dlopen *)loader_real_of(HOOK_DLOPEN))(name, RTLD_NOW | RTLD_LOCAL);
    LOADER_NO_JUMP(handle);
    return handle;
}

void loader_close(void *handle) {
    dlclose(handle);
}

void *loader_library(const char *library) {
    char path[4096];
    return objects_find(library, path, sizeof path) ? loader_open(path) : NULL;
}

void *hooks_next(hook_id id) {
    void *real = hooks_real(id);
    if (real || looking_up)
        return real;
    looking_up = true;
    real = loader_symbol(RTLD_NEXT, hook_table[id].symbol);
    looking_up = false;
    __atomic_store_n(&hook_real[id], real, __ATOMIC_RELAXED);
    return real;
}

/* The library that defines a row's function, and a function that it surely has; NULL: libc. */
typedef struct hook_source {
    const char *library, *sign;
} hook_source;

static hook_source source_of_layer(hook_layer layer) {
    static const hook_source sources[HOOK_LAYER_COUNT] = {
        [HOOK_LAYER_GLOO] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_GLOO_WORK] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_GLOO_DATA] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_C10D_NCCL] = {TORCH_CUDA_LIBRARY, NULL},
        [HOOK_LAYER_C10D_NCCL_END] = {TORCH_CUDA_LIBRARY, NULL},
        [HOOK_LAYER_CUDA_RUNTIME] = {CUDA_RUNTIME_LIBRARY, "cudaMalloc"},
        [HOOK_LAYER_CUDA_DRIVER] = {CUDA_DRIVER_LIBRARY, "cuInit"},
        [HOOK_LAYER_NCCL] = {NCCL_LIBRARY, "ncclAllReduce"},
        [HOOK_LAYER_CUBLAS] = {CUBLAS_LIBRARY, "cublasCreate_v2"},
        [HOOK_LAYER_CUBLASLT] = {CUBLASLT_LIBRARY, "cublasLtCreate"},
        [HOOK_LAYER_CUDNN] = {CUDNN_LIBRARY, "cudnnCreate"},
        [HOOK_LAYER_C10] = {C10_LIBRARY, NULL},
        [HOOK_LAYER_TORCH_CPU] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_TORCH_PYTHON] = {TORCH_PYTHON_LIBRARY, NULL},
    };
    return sources[layer];
}

static hook_source source_of(hook_id id) {
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_CUDA_LOOKUP)
        layer =
            strncmp(hook_table[id].symbol, "cuda", 4) == 0 ? HOOK_LAYER_CUDA_RUNTIME : HOOK_LAYER_CUDA_DRIVER;
    return source_of_layer(layer);
}

/* A function of a library: what a call would reach without this library, if it is in the global scope; else, since
 * Python loads libraries RTLD_LOCAL, from its own handle. */
static void *library_symbol(hook_source source, const char *symbol) {
    void *real = source.sign ? loader_symbol(RTLD_NEXT, symbol) : NULL;
    if (real)
        return real;
    void *library = loader_library(source.library);
    return library ? loader_symbol(library, symbol) : NULL;
}

void *hooks_layer_symbol(hook_layer layer, const char *symbol) {
    return library_symbol(source_of_layer(layer), symbol);
}

void *hooks_runtime_symbol(const char *symbol) {
    return hooks_layer_symbol(HOOK_LAYER_CUDA_RUNTIME, symbol);
}

void *hooks_driver_symbol(const char *symbol) {
    return hooks_layer_symbol(HOOK_LAYER_CUDA_DRIVER, symbol);
}

void *hooks_find(hook_id id) {
    void *real = hooks_real(id), *known = NULL;
    if (real)
        return real;
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_ALLOCATION || layer == HOOK_LAYER_PROCESS)
        return hooks_next(id);
    if (layer == HOOK_LAYER_LOADER)
        return loader_real(hook_table[id].symbol);
    real = library_symbol(source_of(id), hook_table[id].symbol);
    /* A look-up by the program may have told another thread meanwhile: the first one stays. */
    if (real &&
        !__atomic_compare_exchange_n(&hook_real[id], &known, real, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        real = known;
    return real;
}

const char *hooks_library(hook_id id) {
    return source_of(id).library;
}

bool hooks_library_is_loaded(hook_id id) {
    hook_source source = source_of(id);
    return !source.library || (source.sign && loader_symbol(RTLD_NEXT, source.sign)) ||
           loader_library(source.library);
}
