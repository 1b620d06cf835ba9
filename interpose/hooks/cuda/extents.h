/* How many bytes of memory a matrix or vector of cuBLAS takes, from its address to the end of its last element: pure arithmetic on the
 * arguments of a call. 0 says that it is unknown: a type of unknown size, nothing at all, a stride that goes backwards,
 * or more than there are addresses.
 *
 * Matrices lie by columns, `leading` elements from one to the next. Sizes of elements are in bits, since there are types of
 * four. */
#ifndef CASTOR_HOOKS_CUDA_EXTENTS_H
#define CASTOR_HOOKS_CUDA_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shims/cuda/blas.h"

/* Of an element, in bits; 0: unknown. */
static inline uint32_t extent_bits(cudaDataType type) {
    switch (type) {
    case CUDA_R_4I:
    case CUDA_R_4U:
        return 4;
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
        return 8;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_R_16I:
    case CUDA_R_16U:
    case CUDA_C_8I:
    case CUDA_C_8U:
        return 16;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_R_32U:
    case CUDA_C_16F:
    case CUDA_C_16BF:
        return 32;
    case CUDA_R_64F:
    case CUDA_R_64I:
    case CUDA_R_64U:
    case CUDA_C_32F:
    case CUDA_C_32I:
    case CUDA_C_32U:
        return 64;
    case CUDA_C_64F:
        return 128;
    default:
        return 0;
    }
}

/* `last` steps of `step` elements, and `run` elements there. */
static inline size_t extent_elements(int64_t last, int64_t step, int64_t run, uint32_t bits) {
    int64_t elements = 0, all = 0;
    if (last < 0 || step < 0 || run <= 0 || bits == 0 || __builtin_mul_overflow(last, step, &elements) ||
        __builtin_add_overflow(elements, run, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)bits, &all))
        return 0;
    return ((size_t)all + 7) / 8;
}

static inline size_t extent_matrix(int64_t rows, int64_t columns, int64_t leading, uint32_t bits) {
    return extent_elements(columns - 1, leading, rows, bits);
}

/* Of a matrix that is rows x columns once `operation` is applied. */
static inline size_t extent_operand(cublasOperation_t operation, int64_t rows, int64_t columns,
                                    int64_t leading, uint32_t bits) {
    return operation == CUBLAS_OP_N ? extent_matrix(rows, columns, leading, bits)
                                    : extent_matrix(columns, rows, leading, bits);
}

/* Of `count` matrices of `extent` bytes, `stride` elements from one to the next. */
static inline size_t extent_batch(size_t extent, int64_t stride, int64_t count, uint32_t bits) {
    if (extent == 0 || count <= 0 || stride < 0)
        return 0;
    size_t before = count == 1 || stride == 0 ? 0 : extent_elements(count - 2, stride, stride, bits);
    if (before == 0 && count > 1 && stride > 0)
        return 0;
    return before > SIZE_MAX - extent ? 0 : before + extent;
}

/* A vector whose step is negative is read from its end, and begins at the same address. */
static inline size_t extent_vector(int64_t count, int64_t step, uint32_t bits) {
    return extent_elements(count - 1, step < 0 ? -step : step, 1, bits);
}

#endif
