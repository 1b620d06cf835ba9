/* The arguments of the CUDA kernels, as the host packs them and the device reads them; for C, C++ and nvcc.
 *
 * Vocabulary
 *   list   tensors that one launch does, as a kernel argument: nothing is allocated on the device
 *   chunk  the elements of one tensor that one block of threads does
 *
 * Invariants
 *   - a list with its numbers stays below CUDA_ARGUMENT_BYTES, the limit of all drivers
 *   - blocks of a launch are numbered through: tensor i has those from first[i] to first[i + 1] - 1, at least one
 *   - a tensor is never split between launches
 *   - the layout is the same on both sides: members are naturally aligned, pointers have 8 bytes */
#ifndef CASTOR_KERNELS_CUDA_ARGUMENTS_H
#define CASTOR_KERNELS_CUDA_ARGUMENTS_H

#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_BOTH static __host__ __device__ __forceinline__
#else
#define CUDA_BOTH static inline
#endif

enum {
    CUDA_ARGUMENT_BYTES = 4096,
    CUDA_THREADS = 256,
    CUDA_CHUNK = 8192,
    CUDA_STEP_TENSORS = 48, /* of a list */
    CUDA_STEP_STATES = 3
};

/* As kernel_dtype, kernel_decay and kernel_cuda_mode. */
enum { CUDA_F32 = 0, CUDA_F16 = 2, CUDA_BF16 = 3, CUDA_NO_DTYPE = -1 };
enum { CUDA_NO_DECAY, CUDA_COUPLED, CUDA_DECOUPLED };
enum { CUDA_FOREACH, CUDA_SINGLE, CUDA_FUSED };

typedef struct cuda_step_tensor {
    void *param, *grad; /* the gradient is written by a fused step with a scale only */
    void *states[CUDA_STEP_STATES];
    void *working;     /* NULL: nobody wants the rounded parameter */
    const float *step; /* fused Adam: the count of steps, after this one */
    uint64_t numel;
    /* Adam, not fused. Roots are divided by the scale, but multiplied by it for CUDA_SINGLE: PyTorch divides by a number by its
     * inverse, which it takes of the number as a double. */
    float root_scale, negative_step;
} cuda_step_tensor;

typedef struct cuda_step_list {
    cuda_step_tensor tensors[CUDA_STEP_TENSORS];
    uint32_t first[CUDA_STEP_TENSORS + 1];
    uint32_t count;
} cuda_step_list;

/* What all steps share. Pointers are the device's, each to one float, NULL where there is none. */
typedef struct cuda_step {
    const float *found_inf, *grad_scale, *lr_pointer, *clip_pointer;
    double lr, weight_decay;
    float inv_scale, clip,
        decay; /* decay: of a step that is not fused, weight_decay or 1 - lr * weight_decay */
    int32_t mode, decay_kind, maximize, variation;
    int32_t grad_dtype, working_dtype;
} cuda_step;

typedef struct cuda_adam {
    cuda_step step;
    double beta1, beta2, epsilon;
} cuda_adam;

typedef struct cuda_sgd {
    cuda_step step;
    double momentum, dampening;
    int32_t first, unused;
} cuda_sgd;

#define CUDA_FITS(numbers, list)                                                                             \
    ((sizeof(numbers) + 15) / 16 * 16 + sizeof(list) <= (size_t)CUDA_ARGUMENT_BYTES)

/* The tensor of a block: the last one whose first block is not beyond it. */
CUDA_BOTH uint32_t cuda_tensor_of(const uint32_t *first, uint32_t count, uint32_t block) {
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (first[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
