/* Matrix products on the stream's thread: cuBLAS and cuBLASLt over one routine. Matrices are column-major. */
#ifndef SIM_BLAS_BLAS_H
#define SIM_BLAS_BLAS_H

#include "sim.h"

#include <cublas_api.h>

#define ENTER() SIM_ENTER(cublasStatus_t, __func__)

struct blas_matrix {
    void *data;
    cudaDataType_t type;
    int64_t leading;       /* elements from one column to the next */
    int64_t batch_stride;  /* elements from one matrix to the next */
    void *const *pointers; /* instead: an array in device memory with a pointer per matrix */
    bool transposed;
};

struct
    blas_product { /* d = alpha * op(a) * op(b) + beta * c, then the epilogue, for each matrix of the batch */
    struct blas_matrix a, b, c, d;
    int64_t m, n, k, batch;
    double alpha, beta;
    const void *alpha_at, *beta_at; /* device pointer mode: read when the product runs */
    cudaDataType_t scale_type;
    bool wide; /* compute in double */
    bool relu, gelu;
    const void *bias; /* a value per row of d */
    cudaDataType_t bias_type;
};

/* Types known: 16-, 32- and 64-bit floats. */
bool blas_knows(cudaDataType_t type);
CUresult blas_submit(CUstream stream, const struct blas_product *product);
double blas_load(const void *at, cudaDataType_t type);
void blas_store(void *at, cudaDataType_t type, double value);
size_t blas_bytes(cudaDataType_t type);

#endif
