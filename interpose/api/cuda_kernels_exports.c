/* The exported functions of the CUDA kernels: what they are given is checked, and the driver is found. */
#include "castor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include "base/error.h"
#include "kernels/cuda_steps.h"
#include "same.h"

SAME(castor_cuda_tensor, kernel_cuda_tensor, negative_step);
SAME(castor_cuda_step, kernel_cuda_step, clip);
SAME(castor_cuda_adam, kernel_cuda_adam, epsilon);
SAME(castor_cuda_sgd, kernel_cuda_sgd, first);
EQUAL(CASTOR_CUDA_FOREACH, KERNEL_CUDA_FOREACH);
EQUAL(CASTOR_CUDA_SINGLE, KERNEL_CUDA_SINGLE);
EQUAL(CASTOR_CUDA_FUSED, KERNEL_CUDA_FUSED);

#define DRIVER "libcuda.so.1"

/* Threads come one after another: to the driver's functions, and to kernel_cuda_load. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static bool find(void *library, const char *name, void *out) {
    void *symbol = dlsym(library, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol;
}

static castor_status driver_find(kernel_cuda_driver *driver) {
    /* PyTorch has it open as soon as a tensor lies on a device. By dlsym, which gives the wrapper of the launch: it passes the gate, and
     * what the kernels write ends the copies of operands. The real function (hooks_driver_symbol) would do neither. */
    void *library = dlopen(DRIVER, RTLD_NOLOAD | RTLD_LAZY);
    if (!library)
        return error_set(CASTOR_ERR_UNSUPPORTED, "the CUDA kernels: " DRIVER " is not loaded");
    castor_status status = CASTOR_OK;
    if (!find(library, "cuLibraryLoadData", &driver->library_load) ||
        !find(library, "cuLibraryGetKernel", &driver->library_kernel) ||
        !find(library, "cuLaunchKernel", &driver->launch))
        status = error_set(CASTOR_ERR_UNSUPPORTED, "the CUDA kernels: " DRIVER
                                                   " lacks cuLibraryLoadData; CUDA 12.0 or later is needed");
    dlclose(library); /* it stays open for PyTorch */
    return status;
}

static castor_status status_of(int result) {
    switch (result) {
    case KERNEL_CUDA_OK:
        return CASTOR_OK;
    case KERNEL_CUDA_ABSENT:
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "the CUDA kernels: libcastor.so was built without nvcc and has none");
    case KERNEL_CUDA_NOT_LOADED:
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "the CUDA kernels are not loaded: castor_cuda_kernels first");
    case KERNEL_CUDA_UNKNOWN:
        return error_set(CASTOR_ERR_ARGUMENT,
                         "the CUDA kernels: none is for these types, this mode or so many elements");
    default:
        return error_set(CASTOR_ERR_SYSTEM, "the CUDA kernels: the driver's error %d", result);
    }
}

int castor_cuda_kernels_built(void) {
    return kernel_cuda_built();
}

castor_status castor_cuda_kernels(void) {
    kernel_cuda_driver driver;
    pthread_mutex_lock(&loading);
    castor_status status = driver_find(&driver);
    int result = status == CASTOR_OK ? kernel_cuda_load(&driver) : KERNEL_CUDA_OK;
    pthread_mutex_unlock(&loading);
    return status == CASTOR_OK ? status_of(result) : status;
}

/* The first `states` of each tensor are needed, and its count of steps where `counted`. */
static castor_status check_tensors(const castor_cuda_tensor *tensors, uint32_t count, int states,
                                   bool counted) {
    for (uint32_t i = 0; i < count; i++) {
        const castor_cuda_tensor *tensor = &tensors[i];
        bool missing = !tensor->param || !tensor->grad || (counted && !tensor->step);
        for (int state = 0; state < states; state++)
            missing |= !tensor->states[state];
        if (missing && tensor->numel)
            return error_set(CASTOR_ERR_ARGUMENT,
                             "CUDA step: tensor %u lacks its parameter, its gradient, its count of steps or "
                             "one of its %d states",
                             i, states);
    }
    return CASTOR_OK;
}

castor_status castor_cuda_adam_step(const castor_cuda_adam *adam, const castor_cuda_tensor *tensors,
                                    uint32_t count, uint64_t stream) {
    bool fused = adam->step.mode == CASTOR_CUDA_FUSED;
    castor_status status = check_tensors(tensors, count, adam->step.variation ? 3 : 2, fused);
    if (status != CASTOR_OK)
        return status;
    return status_of(kernel_cuda_adam_step((const kernel_cuda_adam *)adam,
                                           (const kernel_cuda_tensor *)tensors, count, stream));
}

castor_status castor_cuda_sgd_step(const castor_cuda_sgd *sgd, const castor_cuda_tensor *tensors,
                                   uint32_t count, uint64_t stream) {
    castor_status status = check_tensors(tensors, count, sgd->momentum != 0 ? 1 : 0, false);
    if (status != CASTOR_OK)
        return status;
    return status_of(kernel_cuda_sgd_step((const kernel_cuda_sgd *)sgd, (const kernel_cuda_tensor *)tensors,
                                          count, stream));
}
