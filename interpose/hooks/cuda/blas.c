#include "blas.h"

#include "core/gate.h"
#include "extents.h"
#include "hooks/table/observe.h"
#include "writers.h"

/* The matrices that one call reads elsewhere. */
typedef struct operands {
    slot_use uses[3];
    slots *of[3];
    uint32_t count;
    uint64_t stream;
} operands;

/* A call of cuBLAS calls cuBLASLt: what it passes on was seen before. */
HOOK_THREAD_LOCAL bool inside;

/* A function of a library that only this file calls; NULL: it has none. */
static void *function_of(void **known, hook_layer layer, const char *symbol) {
    void *function = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (!function) {
        function = hooks_layer_symbol(layer, symbol);
        __atomic_store_n(known, function, __ATOMIC_RELAXED);
    }
    return function;
}

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

/* Where the call shall read it. Streams and events of one device do not go with slots of another. */
static const void *operand_read(operands *o, const void *matrix, size_t extent) {
    int device = devices_find((uintptr_t)matrix);
    slots *s = devices_slots(device);
    if (!s || device != observe_thread.device)
        return matrix;
    slot_use use = slot_use_begin(s, (uintptr_t)matrix, extent, o->stream);
    if (use.storage != SLOT_USE_NONE) {
        o->uses[o->count] = use;
        o->of[o->count++] = s;
    }
    return (const void *)use.pointer;
}

static void operands_end(const operands *o) {
    for (uint32_t i = 0; i < o->count; i++)
        slot_use_end(o->of[i], &o->uses[i]);
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

/* Addresses that the descriptor has the call write: what an epilogue keeps for the backward pass, or adds up for a bias, and the
 * greatest values. They may be read instead: then a slot becomes stale for nothing. */
typedef struct beside {
    uintptr_t addresses[4];
    bool any; /* the result goes through an array of pointers */
} beside;

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

/* ---- the calls ---- */

/* EACH(act, ((READ, A, extent), ...)): act((READ, A, extent)) and so on; at most five. */
#define EACH(act, list)                              EACH_OF(act, EACH_FLAT list)
#define EACH_FLAT(...)                               __VA_ARGS__
#define EACH_OF(...)                                 EACH_COUNTED(__VA_ARGS__, 5, 4, 3, 2, 1, 0)(__VA_ARGS__)
#define EACH_COUNTED(act, a, b, c, d, e, count, ...) EACH_##count
#define EACH_1(act, a)                               act(a)
#define EACH_2(act, a, b)                            act(a) act(b)
#define EACH_3(act, a, b, c)                         act(a) act(b) act(c)
#define EACH_4(act, a, b, c, d)                      act(a) act(b) act(c) act(d)
#define EACH_5(act, a, b, c, d, e)                   act(a) act(b) act(c) act(d) act(e)
/* NAME_HOW(matrix, ...) of (HOW, matrix, ...). */
#define NAMED(name, ...)         NAMED_OF(name, __VA_ARGS__)
#define NAMED_OF(name, how, ...) name##how(__VA_ARGS__)

/* Whether there is anything to do. All of them are asked. */
#define ASK(entry)                         NAMED(ASK_, EACH_FLAT entry)
#define ASK_READ(matrix, extent)           devices_may_hold((uintptr_t)(matrix)) |
#define ASK_BESIDE(matrix, other, extent)  devices_may_hold((uintptr_t)(matrix)) |
#define ASK_WRITE(matrix, extent)          devices_may_hold((uintptr_t)(matrix)) |
#define ASK_ARRAY(matrices)                writers_matter() |
#define ASK_DESCRIPTOR(descriptor, layout) beside_homes(descriptor, layout, &beside_) |

#define BEGIN(entry) NAMED(BEGIN_, EACH_FLAT entry)
#define BEGIN_READ(matrix, extent)                                                                           \
    if (devices_may_hold((uintptr_t)(matrix)))                                                               \
        (matrix) = operand_read(&operands_, matrix, extent);
#define BEGIN_BESIDE(matrix, other, extent)                                                                  \
    if ((const void *)(matrix) != (const void *)(other))                                                     \
    BEGIN_READ(matrix, extent)
#define BEGIN_WRITE(matrix, extent)
#define BEGIN_ARRAY(matrices)
#define BEGIN_DESCRIPTOR(descriptor, layout)

#define END(entry) NAMED(END_, EACH_FLAT entry)
#define END_READ(matrix, extent)
#define END_BESIDE(matrix, other, extent)
#define END_WRITE(matrix, extent)                                                                            \
    if (devices_may_hold((uintptr_t)(matrix)))                                                               \
        writers_note(matrix, extent, operands_.stream);
#define END_ARRAY(matrices)                writers_note_all(operands_.stream);
#define END_DESCRIPTOR(descriptor, layout) beside_note(&beside_, operands_.stream);

/* Slots are asked for and given back inside of the gate, since that copies homes; the call itself passes it where it calls CUDA, and may
 * wait for the device. A call that has failed may have written. */
#define CALL(function, parameters, arguments, list, stream_of)                                               \
    static cublasStatus_t operands_##function parameters {                                                   \
        cublasStatus_t(*real_) parameters = hooks_real(HOOK_##function);                                     \
        beside beside_ __attribute__((unused));                                                              \
        if (inside || !(EACH(ASK, list) false))                                                              \
            return real_ arguments;                                                                          \
        operands operands_ = {.count = 0};                                                                   \
        inside = true;                                                                                       \
        gate_enter();                                                                                        \
        if (stream_of) {                                                                                     \
            EACH(BEGIN, list)                                                                                \
        }                                                                                                    \
        gate_leave();                                                                                        \
        cublasStatus_t status_ = real_ arguments;                                                            \
        gate_enter();                                                                                        \
        operands_end(&operands_);                                                                            \
        EACH(END, list)                                                                                      \
        gate_leave();                                                                                        \
        inside = false;                                                                                      \
        return status_;                                                                                      \
    }
#define CUBLAS(function, parameters, arguments, list, doc)                                                   \
    CALL(function, parameters, arguments, list, handle_stream(handle, &operands_.stream))
#define CUBLASLT(function, parameters, arguments, list, doc)                                                 \
    CALL(function, parameters, arguments, list, (operands_.stream = (uint64_t)stream, true))
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
