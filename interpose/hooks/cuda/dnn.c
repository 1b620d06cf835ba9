#include "dnn.h"

#include "calls.h"
#include "plans.h"

HOOK_THREAD_LOCAL bool inside;

/* False: nobody says in which stream the call runs. */
static bool handle_stream(cudnnHandle_t handle, uint64_t *stream) {
    static void *known; /* atomic */
    cudnnStatus_t (*get)(cudnnHandle_t, cudaStream_t *) =
        function_of(&known, HOOK_LAYER_CUDNN, "cudnnGetStream");
    cudaStream_t of_handle = NULL;
    bool found = get && get(handle, &of_handle) == CUDNN_STATUS_SUCCESS;
    *stream = (uint64_t)of_handle;
    return found;
}

/* ---- calls with pointers ---- */

/* More than any home has where nobody says it: then the tensor is read where it is. */
#define EXTENT(name, descriptor, function)                                                                   \
    static size_t name(descriptor of) {                                                                      \
        static void *known; /* atomic */                                                                     \
        cudnnStatus_t (*get)(descriptor, size_t *) = function_of(&known, HOOK_LAYER_CUDNN, #function);       \
        size_t bytes = 0;                                                                                    \
        return get && of && get(of, &bytes) == CUDNN_STATUS_SUCCESS && bytes ? bytes : SIZE_MAX;             \
    }
EXTENT(tensor_extent, cudnnTensorDescriptor_t, cudnnGetTensorSizeInBytes)
EXTENT(filter_extent, cudnnFilterDescriptor_t, cudnnGetFilterSizeInBytes)

#define CUDNN(function, parameters, arguments, list, doc)                                                    \
    CALL(cudnnStatus_t, function, parameters, arguments, list, handle_stream(handle, &operands_.stream))
#define CUDNN_BACKEND(...)
#include "hooks/table/cudnn.def"

/* ---- the backend ---- */

static cudnnStatus_t descriptor_create(cudnnBackendDescriptorType_t type,
                                       cudnnBackendDescriptor_t *descriptor) {
    cudnnStatus_t (*real)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *) =
        hooks_real(HOOK_cudnnBackendCreateDescriptor);
    cudnnStatus_t status = real(type, descriptor);
    if (status == CUDNN_STATUS_SUCCESS)
        plans_created(*descriptor, type);
    return status;
}

/* Once it is destroyed, its address may be another one's. */
static cudnnStatus_t descriptor_destroy(cudnnBackendDescriptor_t descriptor) {
    cudnnStatus_t (*real)(cudnnBackendDescriptor_t) = hooks_real(HOOK_cudnnBackendDestroyDescriptor);
    plans_destroyed(descriptor);
    return real(descriptor);
}

static cudnnStatus_t descriptor_set(cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                                    int64_t count, const void *elements) {
    cudnnStatus_t (*real)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                          int64_t, const void *) = hooks_real(HOOK_cudnnBackendSetAttribute);
    cudnnStatus_t status = real(descriptor, attribute, type, count, elements);
    if (status == CUDNN_STATUS_SUCCESS)
        plans_set(descriptor, attribute, type, count, elements);
    return status;
}

static cudnnStatus_t descriptor_get(cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                                    int64_t requested, int64_t *count, void *elements) {
    cudnnStatus_t (*real)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                          int64_t, int64_t *, void *) = hooks_real(HOOK_cudnnBackendGetAttribute);
    cudnnStatus_t status = real(descriptor, attribute, type, requested, count, elements);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && elements && requested > 0) {
        int64_t got = status == CUDNN_STATUS_SUCCESS && count && *count < requested ? *count : requested;
        plans_got(status == CUDNN_STATUS_SUCCESS ? descriptor : NULL, attribute, got, elements);
    }
    return status;
}

/* A variant pack of its own for one call, since the script's belongs to the script. NULL: cuDNN makes none. */
static cudnnBackendDescriptor_t pack_make(const plans_execution *e) {
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *) =
        hooks_find(HOOK_cudnnBackendCreateDescriptor);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                         int64_t, const void *) = hooks_find(HOOK_cudnnBackendSetAttribute);
    cudnnStatus_t (*destroy)(cudnnBackendDescriptor_t) = hooks_find(HOOK_cudnnBackendDestroyDescriptor);
    static void *known; /* atomic */
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t) =
        function_of(&known, HOOK_LAYER_CUDNN, "cudnnBackendFinalize");
    cudnnBackendDescriptor_t pack = NULL;
    if (!create || !set || !destroy || !finalize ||
        create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, e->count, e->ids) ==
            CUDNN_STATUS_SUCCESS &&
        set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, e->count, e->pointers) ==
            CUDNN_STATUS_SUCCESS &&
        set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &e->workspace) ==
            CUDNN_STATUS_SUCCESS &&
        finalize(pack) == CUDNN_STATUS_SUCCESS)
        return pack;
    destroy(pack);
    return NULL;
}

static void pack_end(cudnnBackendDescriptor_t pack) {
    cudnnStatus_t (*destroy)(cudnnBackendDescriptor_t) = hooks_find(HOOK_cudnnBackendDestroyDescriptor);
    if (pack)
        destroy(pack);
}

/* Whether the call may write in the tensor as well, by another id. */
static bool is_written(const plans_execution *e, uint32_t read) {
    for (uint32_t i = 0; i < e->count; i++)
        if (e->written[i] && (uintptr_t)e->pointers[i] - (uintptr_t)e->pointers[read] < e->bytes[read])
            return true;
    return false;
}

static void execution_begin(operands *o, const plans_execution *e, plans_execution *elsewhere) {
    for (uint32_t i = 0; i < e->count && o->count < OPERANDS_MAX; i++)
        if (devices_may_hold((uintptr_t)e->pointers[i]) && !e->written[i] && !is_written(e, i))
            elsewhere->pointers[i] = (void *)operand_read(o, e->pointers[i], e->bytes[i]);
}

static cudnnStatus_t plan_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    cudnnStatus_t (*real)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) =
        hooks_real(HOOK_cudnnBackendExecute);
    plans_execution e, elsewhere;
    operands o = {.count = 0};
    bool any = false;
    if (!writers_matter())
        return real(handle, plan, pack);
    bool known = plans_execution_get(plan, pack, &e);
    for (uint32_t i = 0; known && i < e.count; i++)
        any |= devices_may_hold((uintptr_t)e.pointers[i]);
    if (known && !any)
        return real(handle, plan, pack);
    bool in_stream = handle_stream(handle, &o.stream);
    cudnnBackendDescriptor_t other = NULL;
    if (known && in_stream) {
        elsewhere = e;
        gate_enter();
        execution_begin(&o, &e, &elsewhere);
        gate_leave();
        other = o.count ? pack_make(&elsewhere) : NULL;
    }
    cudnnStatus_t status = real(handle, plan, other ? other : pack);
    gate_enter();
    operands_end(&o);
    if (!known)
        writers_note_all(o.stream);
    for (uint32_t i = 0; known && i < e.count; i++)
        if (e.written[i])
            writers_note(e.pointers[i], WRITERS_OPEN, o.stream);
    gate_leave();
    pack_end(other);
    return status;
}

castor_status dnn_install(void) {
    static bool installed; /* atomic */
    if (__atomic_exchange_n(&installed, true, __ATOMIC_RELAXED))
        return CASTOR_OK;
#define CUDNN(function, ...) observe_target_replace(HOOK_##function, (void *)operands_##function);
#define CUDNN_BACKEND(...)
#include "hooks/table/cudnn.def"
    observe_target_replace(HOOK_cudnnBackendCreateDescriptor, (void *)descriptor_create);
    observe_target_replace(HOOK_cudnnBackendDestroyDescriptor, (void *)descriptor_destroy);
    observe_target_replace(HOOK_cudnnBackendSetAttribute, (void *)descriptor_set);
    observe_target_replace(HOOK_cudnnBackendGetAttribute, (void *)descriptor_get);
    observe_target_replace(HOOK_cudnnBackendExecute, (void *)plan_execute);
    return CASTOR_OK;
}
