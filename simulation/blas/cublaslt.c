/* cuBLASLt: descriptors and the product with its epilogues, of which bias, ReLU and GELU are known. */
#include "blas.h"

#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#define ATTRIBUTES 48

struct descriptor { /* attributes by their number, each of 8 bytes at most; what was not set is zero */
    uint64_t values[ATTRIBUTES];
};

static cublasStatus_t make(void **out) {
    *out = calloc(1, sizeof(struct descriptor));
    return *out ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t put(void *descriptor, unsigned attribute, const void *value, size_t bytes) {
    struct descriptor *d = descriptor;

    if (!d || attribute >= ATTRIBUTES || !value || bytes > sizeof *d->values)
        return CUBLAS_STATUS_INVALID_VALUE;
    d->values[attribute] = 0;
    memcpy(&d->values[attribute], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *descriptor, unsigned attribute, void *value, size_t bytes, size_t *written) {
    struct descriptor *d = descriptor;

    if (!d || attribute >= ATTRIBUTES || bytes > sizeof *d->values)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &d->values[attribute], bytes);
    if (written)
        *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* What every kind of descriptor has. */
#define DESCRIPTOR(kind, attribute_type)                                                                     \
    cublasStatus_t kind##Destroy(kind##_t descriptor) {                                                      \
        free(descriptor);                                                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                                        \
    }                                                                                                        \
    cublasStatus_t kind##SetAttribute(kind##_t descriptor, attribute_type attribute, const void *value,      \
                                      size_t bytes) {                                                        \
        return put(descriptor, (unsigned)attribute, value, bytes);                                           \
    }                                                                                                        \
    cublasStatus_t kind##GetAttribute(kind##_t descriptor, attribute_type attribute, void *value,            \
                                      size_t bytes, size_t *written) {                                       \
        return take(descriptor, (unsigned)attribute, value, bytes, written);                                 \
    }

DESCRIPTOR(cublasLtMatmulDesc, cublasLtMatmulDescAttributes_t)
DESCRIPTOR(cublasLtMatrixLayout, cublasLtMatrixLayoutAttribute_t)
DESCRIPTOR(cublasLtMatmulPreference, cublasLtMatmulPreferenceAttributes_t)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle) {
    return make((void **)lightHandle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
    free(lightHandle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void) {
    return CUDA_VERSION;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc, cublasComputeType_t computeType,
                                        cudaDataType_t scaleType) {
    ENTER();
    cublasStatus_t status = make((void **)matmulDesc);
    int32_t compute = (int32_t)computeType, scale = (int32_t)scaleType;
    if (!status) {
        put(*matmulDesc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute);
        put(*matmulDesc, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale, sizeof scale);
    }
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    ENTER();
    cublasStatus_t status = make((void **)matLayout);
    struct descriptor *d = (struct descriptor *)*matLayout;
    if (!status) {
        d->values[CUBLASLT_MATRIX_LAYOUT_TYPE] = (uint64_t)type;
        d->values[CUBLASLT_MATRIX_LAYOUT_ROWS] = rows;
        d->values[CUBLASLT_MATRIX_LAYOUT_COLS] = cols;
        d->values[CUBLASLT_MATRIX_LAYOUT_LD] = (uint64_t)ld;
        d->values[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT] = 1;
    }
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) {
    return make((void **)pref);
}

/* There is one way to compute. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle,
                                              cublasLtMatmulDesc_t operationDesc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                              cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                              cublasLtMatmulPreference_t preference, int requestedAlgoCount,
                                              cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
                                              int *returnAlgoCount) {
    (void)lightHandle, (void)operationDesc, (void)Adesc, (void)Bdesc, (void)Cdesc, (void)Ddesc,
        (void)preference;
    ENTER();
    *returnAlgoCount = requestedAlgoCount > 0;
    if (requestedAlgoCount > 0)
        memset(heuristicResultsArray, 0, sizeof *heuristicResultsArray);
    return CUBLAS_STATUS_SUCCESS;
}

static struct blas_matrix layout(const void *data, cublasLtMatrixLayout_t handle, bool transposed) {
    const struct descriptor *d = (const struct descriptor *)handle;

    return (struct blas_matrix){.data = (void *)data,
                                .type = (cudaDataType_t)(int32_t)d->values[CUBLASLT_MATRIX_LAYOUT_TYPE],
                                .leading = (int64_t)d->values[CUBLASLT_MATRIX_LAYOUT_LD],
                                .batch_stride =
                                    (int64_t)d->values[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET],
                                .transposed = transposed};
}

/* Reads the descriptors into a product; false when they ask for what is not simulated. */
static bool read_product(struct blas_product *p, const struct descriptor *o, cublasLtMatrixLayout_t Adesc,
                         cublasLtMatrixLayout_t Ddesc) {
    const struct descriptor *a = (const struct descriptor *)Adesc, *d = (const struct descriptor *)Ddesc;
    unsigned epilogue = (unsigned)o->values[CUBLASLT_MATMUL_DESC_EPILOGUE];
    const unsigned known =
        CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_GELU;

    p->m = (int64_t)d->values[CUBLASLT_MATRIX_LAYOUT_ROWS];
    p->n = (int64_t)d->values[CUBLASLT_MATRIX_LAYOUT_COLS];
    p->k = (int64_t)a->values[p->a.transposed ? CUBLASLT_MATRIX_LAYOUT_ROWS : CUBLASLT_MATRIX_LAYOUT_COLS];
    p->batch = (int32_t)d->values[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT];
    p->scale_type = (cudaDataType_t)(int32_t)o->values[CUBLASLT_MATMUL_DESC_SCALE_TYPE];
    p->wide = p->d.type == CUDA_R_64F;
    p->relu = epilogue & CUBLASLT_EPILOGUE_RELU;
    p->gelu = epilogue & CUBLASLT_EPILOGUE_GELU;
    if (epilogue & CUBLASLT_EPILOGUE_BIAS) {
        p->bias = (const void *)(uintptr_t)o->values[CUBLASLT_MATMUL_DESC_BIAS_POINTER];
        p->bias_type = (cudaDataType_t)(int32_t)o->values[CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE];
        if (p->bias_type == CUDA_R_32F) /* 0 is also what was never set: then the type is the result's */
            p->bias_type = p->d.type;
    }
    for (int scale = CUBLASLT_MATMUL_DESC_A_SCALE_POINTER; scale <= CUBLASLT_MATMUL_DESC_AMAX_D_POINTER;
         scale++) {
        if (o->values[scale])
            return false;
    }
    return !(epilogue & ~known) && blas_knows(p->a.type) && blas_knows(p->b.type) && blas_knows(p->c.type) &&
           blas_knows(p->d.type) && blas_knows(p->scale_type) && !a->values[CUBLASLT_MATRIX_LAYOUT_ORDER];
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc, const void *B,
                              cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
                              cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceSizeInBytes,
                              cudaStream_t stream) {
    const struct descriptor *o = (const struct descriptor *)computeDesc;
    struct blas_product p = {.batch = 0};

    (void)lightHandle, (void)algo, (void)workspace, (void)workspaceSizeInBytes;
    ENTER();
    p.a = layout(A, Adesc, o->values[CUBLASLT_MATMUL_DESC_TRANSA] != CUBLAS_OP_N);
    p.b = layout(B, Bdesc, o->values[CUBLASLT_MATMUL_DESC_TRANSB] != CUBLAS_OP_N);
    p.c = layout(C, Cdesc, false);
    p.d = layout(D, Ddesc, false);
    if (!read_product(&p, o, Adesc, Ddesc))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (o->values[CUBLASLT_MATMUL_DESC_POINTER_MODE] == CUBLASLT_POINTER_MODE_DEVICE) {
        p.alpha_at = alpha;
        p.beta_at = beta;
    } else if (o->values[CUBLASLT_MATMUL_DESC_POINTER_MODE] == CUBLASLT_POINTER_MODE_HOST) {
        p.alpha = blas_load(alpha, p.scale_type);
        p.beta = blas_load(beta, p.scale_type);
    } else {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return blas_submit(stream, &p) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
