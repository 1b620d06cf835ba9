#include "plans.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define PROBES     32u /* of the table, from a descriptor's place on */
#define DIMENSIONS 8

typedef struct tensor {
    int64_t id, sizes[DIMENSIONS], strides[DIMENSIONS];
    uint32_t sizes_count, strides_count;
    size_t element; /* bytes; 0: not told */
    bool has_id;
    bool plain; /* nothing else was said of where its elements lie */
} tensor;

typedef struct operands {
    plans_operand list[PLANS_OPERANDS];
    uint32_t count;
} operands;

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
        operands operands; /* of all others */
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

void plans_created(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) {
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

void plans_destroyed(cudnnBackendDescriptor_t descriptor) {
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

static bool operand_add(operands *o, const plans_operand *added) {
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
static bool part_add(operands *o, cudnnBackendAttributeName_t attribute, cudnnBackendDescriptor_t part) {
    const entry *e = find_known(part);
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

void plans_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
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
        const cudnnBackendDescriptor_t *parts = elements;
        for (int64_t i = 0; e->known && i < count; i++)
            e->known = part_add(&e->operands, attribute, parts[i]);
    }
    pthread_mutex_unlock(&lock);
}

void plans_got(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute, int64_t count,
               const cudnnBackendDescriptor_t *elements) {
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

static const plans_operand *operand_of(const operands *o, int64_t id) {
    for (uint32_t i = 0; i < o->count; i++)
        if (o->list[i].id == id)
            return &o->list[i];
    return NULL;
}

bool plans_execution_get(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, plans_execution *out) {
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
