#include "blas.h"

#include "calls.h"
#include "extents.h"

/* A call of cuBLAS calls cuBLASLt: what it passes on was seen before. */
HOOK_THREAD_LOCAL bool inside;

/* False: nobody says in which stream the call runs. */
static bool handle_stream(cublasHandle_t handle, uint64_t *stream) {
    static void *known; /* atomic */
    cublasStatus_t (*get)(cublasHandle_t, cudaStream_t *) =
        function_of(&known, HOOK_LAYER_CUBLAS, "cublasGetStream_v2");
    cudaStream_t of_handle = NULL;
    bool found = get && get(handle, &of_handle) == CUBLAS_STATUS_SUCCESS;
    *stream = (uint64_t)of_handle;
    return found;
}

/* ---- cuBLASLt: what its descriptors say ---- */

static bool layout_get(cublasLtMatrixLayout_t layout, unsigned attribute, void *value, size_t bytes) {
    static void *known; /* atomic */
    cublasStatus_t (*get)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, void *, size_t, size_t *) =
        function_of(&known, HOOK_LAYER_CUBLASLT, "cublasLtMatrixLayoutGetAttribute");
    size_t written = 0;
    return get && layout &&
           get(layout, (cublasLtMatrixLayoutAttribute_t)attribute, value, bytes, &written) ==
               CUBLAS_STATUS_SUCCESS;
}

/* Its matrices are in an array of pointers. */
static bool layout_is_array(cublasLtMatrixLayout_t layout) {
    uint32_t mode = 0;
    return layout_get(layout, CASTOR_CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &mode, sizeof mode) &&
           mode == CASTOR_CUBLASLT_BATCH_MODE_POINTER_ARRAY;
}

static size_t layout_extent(cublasLtMatrixLayout_t layout) {
    uint32_t type = 0;
    int32_t order = 0, count = 0;
    uint64_t rows = 0, columns = 0;
    int64_t leading = 0, stride = 0, plane = 0;
    if (!layout_get(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_LD, &leading, sizeof leading) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) ||
        !layout_get(layout, CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, &plane, sizeof plane))
        return 0;
    uint32_t bits = extent_bits((cudaDataType)type);
    if (plane || (order != CUBLASLT_ORDER_COL && order != CUBLASLT_ORDER_ROW))
        return 0;
    bool by_rows = order == CUBLASLT_ORDER_ROW;
    size_t extent = extent_matrix((int64_t)(by_rows ? columns : rows), (int64_t)(by_rows ? rows : columns),
                                  leading, bits);
    return extent_batch(extent, stride, count, bits);
}

static bool descriptor_get(cublasLtMatmulDesc_t descriptor, unsigned attribute, void *value, size_t bytes) {
    static void *known; /* atomic */
    cublasStatus_t (*get)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, void *, size_t, size_t *) =
        function_of(&known, HOOK_LAYER_CUBLASLT, "cublasLtMatmulDescGetAttribute");
    size_t written = 0;
    return get && get(descriptor, (cublasLtMatmulDescAttributes_t)attribute, value, bytes, &written) ==
                      CUBLAS_STATUS_SUCCESS;
}

static bool beside_homes(cublasLtMatmulDesc_t descriptor, cublasLtMatrixLayout_t result, beside *b) {
    static const unsigned bias = CUBLASLT_EPILOGUE_DRELU_BGRAD & 16, aux = CUBLASLT_EPILOGUE_RELU_AUX & 128;
    *b = (beside){0};
    if (!writers_matter())
        return false;
    uint32_t epilogue = 0, count = 0;
    const struct {
        unsigned attribute, epilogues;
    } written[] = {
        {CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, ~0u},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, aux},
    };
    descriptor_get(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    for (uint32_t i = 0; i < sizeof written / sizeof *written; i++) {
        uintptr_t address = 0;
        if (((epilogue | 1) & written[i].epilogues) &&
            descriptor_get(descriptor, written[i].attribute, &address, sizeof address) &&
            devices_may_hold(address))
            b->addresses[count++] = address;
    }
    b->any = layout_is_array(result);
    return count > 0 || b->any;
}

static void beside_note(const beside *b, uint64_t stream) {
    for (uint32_t i = 0; i < sizeof b->addresses / sizeof *b->addresses && b->addresses[i]; i++)
        writers_note((const void *)b->addresses[i], WRITERS_OPEN, stream);
    if (b->any)
        writers_note_all(stream);
}

static void beside_leave(const beside *b) {
    for (uint32_t i = 0; i < sizeof b->addresses / sizeof *b->addresses && b->addresses[i]; i++)
        joined_leave((const void *)b->addresses[i], WRITERS_OPEN);
    if (b->any)
        joined_leave_all();
}

static void beside_await(const beside *b, uint64_t stream) {
    for (uint32_t i = 0; i < sizeof b->addresses / sizeof *b->addresses && b->addresses[i]; i++)
        awaited((const void *)b->addresses[i], WRITERS_OPEN, stream);
    if (b->any)
        awaited_all(stream);
}

/* ---- the calls ---- */

#define CUBLAS(function, parameters, arguments, list, doc)                                                   \
    CALL(cublasStatus_t, function, parameters, arguments, list, handle_stream(handle, &operands_.stream))
#define CUBLASLT(function, parameters, arguments, list, doc)                                                 \
    CALL(cublasStatus_t, function, parameters, arguments, list, (operands_.stream = (uint64_t)stream, true))
#include "hooks/table/cublas.def"

castor_status blas_install(void) {
    static bool installed; /* atomic */
    if (__atomic_exchange_n(&installed, true, __ATOMIC_RELAXED))
        return CASTOR_OK;
#define CUBLAS(function, ...)   observe_target_replace(HOOK_##function, (void *)operands_##function);
#define CUBLASLT(function, ...) CUBLAS(function)
#include "hooks/table/cublas.def"
    return CASTOR_OK;
}
