/* The product: blocks of op(a) and op(b) are converted into float or double, multiplied tile by tile
 * in vectors, and added up in that precision; the result is rounded once. */
#include "blas.h"
#include "half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_M 256
#define BLOCK_N 256
#define BLOCK_K 256
/* A tile: so many vectors of rows, by columns. Its sums and factors are the registers of AVX. */
#define VECTOR_BYTES 32
#define VECTORS      2
#define TILE_N       4

bool blas_knows(cudaDataType_t type) {
    return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F || type == CUDA_R_64F;
}

size_t blas_bytes(cudaDataType_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

double blas_load(const void *at, cudaDataType_t type) {
    uint16_t bits;
    float single;
    double value;

    switch (type) {
    case CUDA_R_64F:
        memcpy(&value, at, sizeof value);
        return value;
    case CUDA_R_32F:
        memcpy(&single, at, sizeof single);
        return single;
    default:
        memcpy(&bits, at, sizeof bits);
        return type == CUDA_R_16F ? from_fp16(bits) : from_bf16(bits);
    }
}

void blas_store(void *at, cudaDataType_t type, double value) {
    float single = (float)value;
    uint16_t bits;

    switch (type) {
    case CUDA_R_64F:
        memcpy(at, &value, sizeof value);
        break;
    case CUDA_R_32F:
        memcpy(at, &single, sizeof single);
        break;
    default:
        bits = type == CUDA_R_16F ? to_fp16(single) : to_bf16(single);
        memcpy(at, &bits, sizeof bits);
    }
}

static const char *matrix(const struct blas_matrix *matrix, int64_t index) {
    if (matrix->pointers)
        return matrix->pointers[index];
    return (const char *)matrix->data + (size_t)(index * matrix->batch_stride) * blas_bytes(matrix->type);
}

/* By what a processor can, not by its name: `arch=` would choose for one model alone, and leave every later one to SSE. */
#ifdef __x86_64__
#define BLOCK(name)                                                                                          \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name(block_avx2) : name(block))
#else
#define BLOCK(name) name(block)
#endif

#define REAL       float
#define NAME(name) name##_float
#include "product.inc"
#undef REAL
#undef NAME
#define REAL       double
#define NAME(name) name##_double
#include "product.inc"
#undef REAL
#undef NAME

/* Every byte that the product will touch is there. */
static bool reachable(const struct blas_matrix *which, int64_t rows, int64_t columns, int64_t index) {
    if (!rows || !columns)
        return true;
    size_t elements = (size_t)((columns - 1) * which->leading + rows);
    return sim_memory_valid(matrix(which, index), elements * blas_bytes(which->type));
}

static CUresult run_product(void *arguments) {
    struct blas_product p = *(const struct blas_product *)arguments;

    if (p.alpha_at)
        p.alpha = blas_load(p.alpha_at, p.scale_type);
    if (p.beta_at)
        p.beta = blas_load(p.beta_at, p.scale_type);
    for (int64_t i = 0; i < p.batch; i++) {
        if (!reachable(&p.a, p.a.transposed ? p.k : p.m, p.a.transposed ? p.m : p.k, i) ||
            !reachable(&p.b, p.b.transposed ? p.n : p.k, p.b.transposed ? p.k : p.n, i) ||
            !reachable(&p.d, p.m, p.n, i) || (p.beta != 0 && !reachable(&p.c, p.m, p.n, i)))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (sim_config()->blank)
            continue;
        if (p.wide ? multiply_double(&p, i) : multiply_float(&p, i))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult blas_submit(CUstream stream, const struct blas_product *product) {
    if (!product->m || !product->n || !product->batch)
        return CUDA_SUCCESS;
    return sim_stream_submit(stream, SIM_BLAS, run_product, product, sizeof *product);
}
