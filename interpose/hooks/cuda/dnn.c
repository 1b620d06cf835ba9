#include "dnn.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "shims/cuda/dnn.h"
#include "calls.h"

/* What the descriptors of cuDNN's backend say: which tensors, by their unique ids, an execution plan only reads.
 *
 * Vocabulary
 *   operand  of an operation: a tensor's id, how far it goes, and whether the operation may write it. Only what is known to be read
 *            is read: the inputs of convolutions and of operations by element
 *   known    of a descriptor: all that was said of it has been followed, from its birth on
 *
 * A descriptor is followed by value when an attribute is set, since those that it is made of may end before it: tensors make
 * operations, these a graph, the graph engines and heuristics, these configurations, and one of them a plan. Each has the operands of what
 * it was made of. What is unknown only takes slots away.
 *
 * A table of fixed size, mapped when it is first needed, under one lock. A descriptor that finds no place is unknown. Private to
 * hooks/cuda. */
#define PLANS_MAX      16384 /* descriptors */
#define PLANS_OPERANDS 12    /* of one plan, and pointers of one variant pack */

#define PLANS_UNKNOWN SIZE_MAX /* bytes of a tensor: nobody can say */

typedef struct plans_operand {
    int64_t id;
    size_t bytes;
    bool written;
} plans_operand;

/* One execution: the pointers of its variant pack. */
typedef struct plans_execution {
    uint32_t count;
    int64_t ids[PLANS_OPERANDS];
    void *pointers[PLANS_OPERANDS];
    size_t bytes
        [PLANS_OPERANDS]; /* how many it reads there, and writes none; PLANS_UNKNOWN: it may write, or read any number */
    bool written[PLANS_OPERANDS]; /* it may */
    void *workspace;
} plans_execution;

#define PROBES     32u /* of the table, from a descriptor's place on */
#define DIMENSIONS 8

typedef struct tensor {
    int64_t id, sizes[DIMENSIONS], strides[DIMENSIONS];
    uint32_t sizes_count, strides_count;
    size_t element; /* bytes; 0: not told */
    bool has_id;
    bool plain; /* nothing else was said of where its elements lie */
} tensor;

typedef struct plan_operands {
    plans_operand list[PLANS_OPERANDS];
    uint32_t count;
} plan_operands;

typedef struct pack {
    int64_t ids[PLANS_OPERANDS];
    void *pointers[PLANS_OPERANDS], *workspace;
    uint32_t ids_count, pointers_count;
} pack;

typedef struct entry {
    cudnnBackendDescriptor_t descriptor; /* NULL: the entry is free */
    cudnnBackendDescriptorType_t type;
    bool known;
    union {
        tensor tensor;
        pack pack;
        plan_operands operands; /* of all others */
    };
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries; /* NULL: not mapped */

static uint32_t place_of(cudnnBackendDescriptor_t descriptor) {
    return (uint32_t)((uintptr_t)descriptor * UINT64_C(0x9e3779b97f4a7c15) >> 40) % PLANS_MAX;
}

/* NULL finds a free one, at the place of `near`. */
static entry *find(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptor_t near) {
    for (uint32_t i = 0; entries && i < PROBES; i++) {
        entry *e = &entries[(place_of(near) + i) % PLANS_MAX];
        if (e->descriptor == descriptor)
            return e;
    }
    return NULL;
}

static entry *find_known(cudnnBackendDescriptor_t descriptor) {
    entry *e = descriptor ? find(descriptor, descriptor) : NULL;
    return e && e->known ? e : NULL;
}

static void plans_created(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) {
    pthread_mutex_lock(&lock);
    if (!entries) {
        void *mapped = mmap(NULL, PLANS_MAX * sizeof *entries, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        entries = mapped == MAP_FAILED ? NULL : mapped;
    }
    entry *e = find(descriptor, descriptor);
    e = e ? e : find(NULL, descriptor);
    if (e) {
        *e = (entry){.descriptor = descriptor, .type = type, .known = true};
        e->tensor.plain = type == CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    }
    pthread_mutex_unlock(&lock);
}

static void plans_destroyed(cudnnBackendDescriptor_t descriptor) {
    pthread_mutex_lock(&lock);
    entry *e = descriptor ? find(descriptor, descriptor) : NULL;
    if (e)
        e->descriptor = NULL;
    pthread_mutex_unlock(&lock);
}

/* ---- tensors ---- */

static size_t element_of(cudnnDataType_t type) {
    switch (type) {
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
        return 1;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
        return 2;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
        return 4;
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
        return 8;
    default:
        return 0;
    }
}

static uint32_t numbers_set(int64_t *to, int64_t count, const void *elements) {
    if (count < 0 || count > DIMENSIONS)
        return 0;
    memcpy(to, elements, (size_t)count * sizeof *to);
    return (uint32_t)count;
}

static void tensor_set(tensor *t, cudnnBackendAttributeName_t attribute, int64_t count,
                       const void *elements) {
    switch (attribute) {
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
        t->has_id = count == 1;
        if (t->has_id)
            memcpy(&t->id, elements, sizeof t->id);
        break;
    case CUDNN_ATTR_TENSOR_DATA_TYPE:
        t->element = count == 1 ? element_of(*(const cudnnDataType_t *)elements) : 0;
        break;
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
        t->sizes_count = numbers_set(t->sizes, count, elements);
        break;
    case CUDNN_ATTR_TENSOR_STRIDES:
        t->strides_count = numbers_set(t->strides, count, elements);
        break;
    case CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT:
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL:
        break;
    default:
        t->plain = false;
    }
}

static size_t tensor_bytes(const tensor *t) {
    size_t last = 0, steps, bytes;
    if (!t->plain || t->element == 0 || t->sizes_count == 0 || t->sizes_count != t->strides_count)
        return PLANS_UNKNOWN;
    for (uint32_t i = 0; i < t->sizes_count; i++)
        if (t->sizes[i] < 1 || t->strides[i] < 0 ||
            __builtin_mul_overflow((size_t)(t->sizes[i] - 1), (size_t)t->strides[i], &steps) ||
            __builtin_add_overflow(last, steps, &last))
            return PLANS_UNKNOWN;
    return __builtin_mul_overflow(last + 1, t->element, &bytes) ? PLANS_UNKNOWN : bytes;
}

/* ---- operations, and what is made of them ---- */

/* Whether an operation only reads the tensor of an attribute. */
static bool is_read(cudnnBackendAttributeName_t attribute) {
    switch (attribute) {
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY:
    case CUDNN_ATTR_OPERATION_POINTWISE_XDESC:
    case CUDNN_ATTR_OPERATION_POINTWISE_BDESC:
        return true;
    default:
        return false;
    }
}

static bool operand_add(plan_operands *o, const plans_operand *added) {
    uint32_t i = 0;
    while (i < o->count && o->list[i].id != added->id)
        i++;
    if (i == PLANS_OPERANDS)
        return false;
    plans_operand *at = &o->list[i];
    if (i == o->count)
        o->list[o->count++] = *added;
    at->written |= added->written;
    at->bytes = added->bytes > at->bytes ? added->bytes : at->bytes;
    return true;
}

/* False: what it is made of is unknown. */
static bool component_add(plan_operands *o, cudnnBackendAttributeName_t attribute,
                          cudnnBackendDescriptor_t component) {
    const entry *e = find_known(component);
    if (!e || e->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return false;
    if (e->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        plans_operand added = {e->tensor.id, tensor_bytes(&e->tensor), !is_read(attribute)};
        return e->tensor.has_id && operand_add(o, &added);
    }
    for (uint32_t i = 0; i < e->operands.count; i++)
        if (!operand_add(o, &e->operands.list[i]))
            return false;
    return true;
}

/* ---- variant packs ---- */

static bool pack_set(pack *p, cudnnBackendAttributeName_t attribute, int64_t count, const void *elements) {
    if (count < 0 || count > PLANS_OPERANDS)
        return false;
    switch (attribute) {
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
        p->ids_count = (uint32_t)count;
        memcpy(p->ids, elements, p->ids_count * sizeof *p->ids);
        return true;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
        p->pointers_count = (uint32_t)count;
        memcpy(p->pointers, elements, p->pointers_count * sizeof *p->pointers);
        return true;
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
        if (count == 1)
            memcpy(&p->workspace, elements, sizeof p->workspace);
        return count == 1;
    default:
        return false;
    }
}

/* ---- calls ---- */

/* After the call has succeeded; `plans_destroyed` before it. */
static void plans_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                      cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    pthread_mutex_lock(&lock);
    entry *e = find_known(descriptor);
    if (!e || (!elements && count > 0)) {
        if (e)
            e->known = false;
    } else if (e->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        tensor_set(&e->tensor, attribute, count, elements);
    } else if (e->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
        e->known = pack_set(&e->pack, attribute, count, elements);
    } else if (attribute == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
        e->known = false;
    } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        const cudnnBackendDescriptor_t *components = elements;
        for (int64_t i = 0; e->known && i < count; i++)
            e->known = component_add(&e->operands, attribute, components[i]);
    }
    pthread_mutex_unlock(&lock);
}

/* `count` descriptors, which now say what they were asked for. */
static void plans_got(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                      int64_t count, const cudnnBackendDescriptor_t *elements) {
    bool follows = attribute == CUDNN_ATTR_ENGINEHEUR_RESULTS || attribute == CUDNN_ATTR_ENGINECFG_ENGINE ||
                   attribute == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG ||
                   attribute == CUDNN_ATTR_ENGINE_OPERATION_GRAPH;
    pthread_mutex_lock(&lock);
    const entry *from = find_known(descriptor);
    for (int64_t i = 0; i < count; i++) {
        entry *e = elements[i] ? find(elements[i], elements[i]) : NULL;
        if (!e)
            continue;
        e->known = from && follows;
        if (e->known)
            e->operands = from->operands;
    }
    pthread_mutex_unlock(&lock);
}

static const plans_operand *operand_of(const plan_operands *o, int64_t id) {
    for (uint32_t i = 0; i < o->count; i++)
        if (o->list[i].id == id)
            return &o->list[i];
    return NULL;
}

/* False: the variant pack is unknown, and so are the pointers. If the plan is unknown, it may write all of them. */
static bool plans_execution_get(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                plans_execution *out) {
    pthread_mutex_lock(&lock);
    const entry *of = find_known(plan), *with = find_known(pack);
    bool known = with && with->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
                 with->pack.ids_count == with->pack.pointers_count;
    if (known) {
        out->count = with->pack.ids_count;
        out->workspace = with->pack.workspace;
        for (uint32_t i = 0; i < out->count; i++) {
            const plans_operand *o = of ? operand_of(&of->operands, with->pack.ids[i]) : NULL;
            out->ids[i] = with->pack.ids[i];
            out->pointers[i] = with->pack.pointers[i];
            out->written[i] = !o || o->written;
            out->bytes[i] = out->written[i] ? PLANS_UNKNOWN : o->bytes;
        }
    }
    pthread_mutex_unlock(&lock);
    return known;
}

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

/* NULL: which tensors it touches is not known. */
static void execution_awaits(const plans_execution *e, bool in_stream, uint64_t stream) {
    if (!in_stream)
        awaited_by_host();
    else if (!e)
        awaited_all(stream);
    for (uint32_t i = 0; e && i < e->count; i++)
        awaited(e->pointers[i], WRITERS_OPEN, stream);
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
    if (!known)
        joined_leave_all();
    for (uint32_t i = 0; known && i < e.count; i++)
        if (e.written[i])
            joined_leave(e.pointers[i], WRITERS_OPEN);
    if (known && in_stream) {
        elsewhere = e;
        gate_enter();
        execution_begin(&o, &e, &elsewhere);
        gate_leave();
        other = o.count ? pack_make(&elsewhere) : NULL;
    }
    if (updates_matter())
        execution_awaits(known && in_stream ? (other ? &elsewhere : &e) : NULL, in_stream, o.stream);
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
