/* The least that a device can be: launches that return at once. What is measured beside it is the hooks alone. */
#include "shims/cuda/types.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT cudaError_t cudaMalloc(void **out, size_t size) {
    static char block[4096];
    *out = size <= sizeof block ? block : NULL;
    return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream) {
    (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}
