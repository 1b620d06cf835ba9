/* cuBLAS: handles, and the products of floats that PyTorch's matmul, bmm and linear layers use. */
#include "blas.h"

#include <stdlib.h>

struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
    cublasAtomicsMode_t atomics;
    int processors;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    ENTER();
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId) {
    ENTER();
    handle->stream = streamId;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId) {
    *streamId = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t workspaceSizeInBytes) {
    (void)handle, (void)workspace, (void)workspaceSizeInBytes;
    ENTER();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
    *mode = handle->pointers;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
    handle->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int smCountTarget) {
    handle->processors = smCountTarget;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status) {
    return status ? "CUBLAS_STATUS_OF_SIMULATION" : "CUBLAS_STATUS_SUCCESS";
}

const char *cublasGetStatusString(cublasStatus_t status) {
    return status ? "an error of the simulated cuBLAS" : "success";
}

static cublasStatus_t status_of(CUresult result) {
    if (!result)
        return CUBLAS_STATUS_SUCCESS;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_EXECUTION_FAILED;
}

static cublasStatus_t submit(cublasHandle_t handle, struct blas_product *p, const void *alpha,
                             const void *beta) {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (p->m < 0 || p->n < 0 || p->k < 0 || p->batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!blas_knows(p->a.type) || !blas_knows(p->b.type) || !blas_knows(p->c.type) ||
        !blas_knows(p->scale_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (handle->pointers == CUBLAS_POINTER_MODE_DEVICE) {
        p->alpha_at = alpha;
        p->beta_at = beta;
    } else {
        p->alpha = blas_load(alpha, p->scale_type);
        p->beta = blas_load(beta, p->scale_type);
    }
    p->wide = p->c.type == CUDA_R_64F;
    p->d = p->c;
    return status_of(blas_submit(handle->stream, p));
}

static cudaDataType_t scale_of(cublasComputeType_t compute) {
    switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
        return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
        return CUDA_R_64F;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
        return CUDA_R_32I;
    default:
        return CUDA_R_32F;
    }
}

static cublasStatus_t gemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                           int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                           cudaDataType_t Atype, int64_t lda, int64_t strideA, const void *B,
                           cudaDataType_t Btype, int64_t ldb, int64_t strideB, const void *beta, void *C,
                           cudaDataType_t Ctype, int64_t ldc, int64_t strideC, int64_t batch,
                           cudaDataType_t scale) {
    struct blas_product p = {
        .a = {(void *)A, Atype, lda, strideA, NULL, transa != CUBLAS_OP_N},
        .b = {(void *)B, Btype, ldb, strideB, NULL, transb != CUBLAS_OP_N},
        .c = {C, Ctype, ldc, strideC, NULL, false},
        .m = m,
        .n = n,
        .k = k,
        .batch = batch,
        .scale_type = scale,
    };
    return submit(handle, &p, alpha, beta);
}

/* The forms for one type: product, strided batch, batch of pointers, and matrix times vector. */
#define PRODUCTS(letter, type, code)                                                                         \
    cublasStatus_t cublas##letter##gemm_v2(cublasHandle_t handle, cublasOperation_t transa,                  \
                                           cublasOperation_t transb, int m, int n, int k, const type *alpha, \
                                           const type *A, int lda, const type *B, int ldb, const type *beta, \
                                           type *C, int ldc) {                                               \
        ENTER();                                                                                             \
        return gemm(handle, transa, transb, m, n, k, alpha, A, code, lda, 0, B, code, ldb, 0, beta, C, code, \
                    ldc, 0, 1, code);                                                                        \
    }                                                                                                        \
    cublasStatus_t cublas##letter##gemmStridedBatched(                                                       \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,      \
        const type *alpha, const type *A, int lda, long long int strideA, const type *B, int ldb,            \
        long long int strideB, const type *beta, type *C, int ldc, long long int strideC, int batchCount) {  \
        ENTER();                                                                                             \
        return gemm(handle, transa, transb, m, n, k, alpha, A, code, lda, strideA, B, code, ldb, strideB,    \
                    beta, C, code, ldc, strideC, batchCount, code);                                          \
    }                                                                                                        \
    cublasStatus_t cublas##letter##gemmBatched(                                                              \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,      \
        const type *alpha, const type *const Aarray[], int lda, const type *const Barray[], int ldb,         \
        const type *beta, type *const Carray[], int ldc, int batchCount) {                                   \
        struct blas_product p = {                                                                            \
            .a = {NULL, code, lda, 0, (void *const *)Aarray, transa != CUBLAS_OP_N},                         \
            .b = {NULL, code, ldb, 0, (void *const *)Barray, transb != CUBLAS_OP_N},                         \
            .c = {NULL, code, ldc, 0, (void *const *)Carray, false},                                         \
            .m = m,                                                                                          \
            .n = n,                                                                                          \
            .k = k,                                                                                          \
            .batch = batchCount,                                                                             \
            .scale_type = code,                                                                              \
        };                                                                                                   \
        ENTER();                                                                                             \
        return submit(handle, &p, alpha, beta);                                                              \
    }                                                                                                        \
    /* y of leading dimension incy is the row of a product: y^T = op(x^T * A^T) */                           \
    cublasStatus_t cublas##letter##gemv_v2(cublasHandle_t handle, cublasOperation_t trans, int m, int n,     \
                                           const type *alpha, const type *A, int lda, const type *x,         \
                                           int incx, const type *beta, type *y, int incy) {                  \
        bool across = trans != CUBLAS_OP_N;                                                                  \
        ENTER();                                                                                             \
        return gemm(handle, CUBLAS_OP_N, across ? CUBLAS_OP_N : CUBLAS_OP_T, 1, across ? n : m,              \
                    across ? m : n, alpha, x, code, incx, 0, A, code, lda, 0, beta, y, code, incy, 0, 1,     \
                    code);                                                                                   \
    }

PRODUCTS(S, float, CUDA_R_32F)
PRODUCTS(D, double, CUDA_R_64F)

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                            int n, int k, const void *alpha, const void *A, cudaDataType Atype, int lda,
                            const void *B, cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo) {
    (void)algo;
    ENTER();
    return gemm(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype,
                ldc, 0, 1, scale_of(computeType));
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                          const void *A, cudaDataType Atype, int lda, long long int strideA,
                                          const void *B, cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
    (void)algo;
    ENTER();
    return gemm(handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta,
                C, Ctype, ldc, strideC, batchCount, scale_of(computeType));
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                             int n, int k, const float *alpha, const void *A, cudaDataType Atype, int lda,
                             const void *B, cudaDataType Btype, int ldb, const float *beta, void *C,
                             cudaDataType Ctype, int ldc) {
    ENTER();
    return gemm(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype,
                ldc, 0, 1, CUDA_R_32F);
}

/* x . y is a product of a row and a column. */
static cublasStatus_t dot(cublasHandle_t handle, int n, const void *x, cudaDataType_t xtype, int incx,
                          const void *y, cudaDataType_t ytype, int incy, void *result, cudaDataType_t type) {
    double one = 1, zero = 0;
    struct blas_product p = {
        .a = {(void *)x, xtype, incx, 0, NULL, false},
        .b = {(void *)y, ytype, incy, 0, NULL, true},
        .c = {result, type, 1, 0, NULL, false},
        .m = 1,
        .n = 1,
        .k = n,
        .batch = 1,
        .scale_type = CUDA_R_64F,
    };
    cublasPointerMode_t mode = handle->pointers;

    handle->pointers = CUBLAS_POINTER_MODE_HOST; /* the factors are ours */
    cublasStatus_t status = submit(handle, &p, &one, &zero);
    handle->pointers = mode;
    if (!status && mode == CUBLAS_POINTER_MODE_HOST)
        status = status_of(sim_stream_synchronize(handle->stream));
    return status;
}

cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float *x, int incx, const float *y, int incy,
                             float *result) {
    ENTER();
    return dot(handle, n, x, CUDA_R_32F, incx, y, CUDA_R_32F, incy, result, CUDA_R_32F);
}

cublasStatus_t cublasDdot_v2(cublasHandle_t handle, int n, const double *x, int incx, const double *y,
                             int incy, double *result) {
    ENTER();
    return dot(handle, n, x, CUDA_R_64F, incx, y, CUDA_R_64F, incy, result, CUDA_R_64F);
}

cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x, cudaDataType xType, int incx,
                           const void *y, cudaDataType yType, int incy, void *result, cudaDataType resultType,
                           cudaDataType executionType) {
    (void)executionType;
    ENTER();
    if (!blas_knows(xType) || !blas_knows(yType) || !blas_knows(resultType))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return dot(handle, n, x, xType, incx, y, yType, incy, result, resultType);
}
