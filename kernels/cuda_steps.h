/* The CUDA kernels from the host: optimizer steps in one pass.
 *
 * Vocabulary
 *   image   the fat binary of kernels/cuda/kernels.cu, data of the library; a build without nvcc has none
 *   mode    which of PyTorch's implementations a step gives the bits of
 *
 * Every function launches on a stream of the current context and returns; nothing is allocated, on either side, and the host waits for
 * nothing, so a stream may be captured. Tensors go as kernel arguments, as many to a launch as these hold; pointers of kernels are those of
 * the device (or of host memory that it reaches), and the memory must live until the stream has passed.
 *
 * Results are CUresult of the driver (0 is success), or one of kernel_cuda_result. A launch that fails ends the call: what was launched
 * before it has been or will be done.
 *
 * Arithmetic (kernels/cuda/step_math.h) is in float; 16-bit values are widened, and results rounded to nearest even, once. A gradient is
 * multiplied by inv_scale and then by clip, each product rounded; 1 leaves it as it is. */
#ifndef CASTOR_KERNELS_CUDA_STEPS_H
#define CASTOR_KERNELS_CUDA_STEPS_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the CUDA driver, with its types as addresses. */
typedef struct kernel_cuda_driver {
    int (*library_load)(void **library, const void *image, void *jit_options, void **jit_values,
                        unsigned jit_count, void *options, void **values, unsigned count);
    int (*library_kernel)(void **kernel, void *library, const char *name);
    int (*launch)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments,
                  void **extra);
} kernel_cuda_driver;

typedef enum kernel_cuda_result {
    KERNEL_CUDA_OK = 0,
    KERNEL_CUDA_ABSENT = -1,     /* built without nvcc */
    KERNEL_CUDA_NOT_LOADED = -2, /* kernel_cuda_load has not succeeded */
    KERNEL_CUDA_UNKNOWN = -3     /* no kernel for these types, this mode or so many elements */
} kernel_cuda_result;

/* Whether the library was built with an image: by nvcc. */
bool kernel_cuda_built(void);

/* Loads the image and finds the kernels; the driver is copied. Threads that come at once must wait for each other; after success it
 * does nothing. */
int kernel_cuda_load(const kernel_cuda_driver *driver);

typedef enum kernel_cuda_mode {
    KERNEL_CUDA_FOREACH, /* foreach=True, the default on CUDA */
    KERNEL_CUDA_SINGLE,  /* the loop over tensors */
    KERNEL_CUDA_FUSED    /* fused=True */
} kernel_cuda_mode;

/* One tensor of a step. States as at each step. */
typedef struct kernel_cuda_tensor {
    void *param;
    void *grad; /* written by a fused step with grad_scale, as PyTorch does; else read */
    void *states[3];
    void *working;     /* of the working type: becomes the rounded parameter; NULL: none */
    const float *step; /* fused Adam: the number of this step, counted from 1 */
    uint64_t numel;
    double root_divisor, negative_step; /* Adam, not fused: as in kernel_adam */
} kernel_cuda_tensor;

/* `dtype`: of parameters and states. F32, with gradients of F32, F16 or BF16 and a working type of these; a fused step also takes F16
 * and BF16 for all. Pointers to one float each, NULL where there is none:
 *   found_inf   1: nothing is stepped
 *   grad_scale  fused: gradients are divided by it, and the quotients stay in the gradients
 *   lr_pointer, clip_pointer: in place of the numbers */
typedef struct kernel_cuda_step {
    int32_t dtype, grad_dtype,
        working_dtype;  /* kernel_dtype; working_dtype is not used where no tensor has a working copy */
    int32_t mode;       /* kernel_cuda_mode */
    int32_t decay_kind; /* kernel_decay (optimizer.h) */
    int32_t maximize;
    int32_t variation; /* Adam: with the maximum of squares; SGD: Nesterov */
    int32_t unused;
    const float *found_inf, *grad_scale, *lr_pointer, *clip_pointer;
    double lr, weight_decay;
    double inv_scale, clip;
} kernel_cuda_step;

/* States: mean of gradients, mean of squares and, with `variation`, the largest mean of squares so far. */
typedef struct kernel_cuda_adam {
    kernel_cuda_step step;
    double beta1, beta2, epsilon;
} kernel_cuda_adam;

/* States: the momentum; none where `momentum` is 0. No decoupled decay. */
typedef struct kernel_cuda_sgd {
    kernel_cuda_step step;
    double momentum, dampening;
    int32_t first; /* the momentum becomes the gradient */
    int32_t unused;
} kernel_cuda_sgd;

int kernel_cuda_adam_step(const kernel_cuda_adam *adam, const kernel_cuda_tensor *tensors, size_t count,
                          uint64_t stream);
int kernel_cuda_sgd_step(const kernel_cuda_sgd *sgd, const kernel_cuda_tensor *tensors, size_t count,
                         uint64_t stream);

#ifdef __cplusplus
}
#endif

#endif
