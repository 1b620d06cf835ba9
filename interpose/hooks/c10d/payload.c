#include "payload.h"
#include <dlfcn.h>
#include "shims/torch/stable.h"

/* libstdc++'s std::vector. */
typedef struct cxx_vector {
    char *begin, *end, *capacity;
} cxx_vector;

#define TENSOR_SIZE sizeof(void *) /* at::Tensor is one intrusive pointer */

static aoti_torch_get_numel_function *get_numel;
static aoti_torch_get_dtype_function *get_dtype;
static aoti_torch_dtype_element_size_function *element_size;

void payload_resolve(void *library) {
    get_numel = dlsym(library, "aoti_torch_get_numel");
    get_dtype = dlsym(library, "aoti_torch_get_dtype");
    element_size = dlsym(library, "aoti_torch_dtype_element_size");
}

void payload_measure_NONE(hook_payload *out, const void *nothing) {
    (void)out;
    (void)nothing;
}

void payload_measure_TENSOR(hook_payload *out, const void *tensor) {
    int64_t numel = 0;
    int32_t dtype = 0;
    if (!get_numel || !get_dtype || !element_size)
        return;
    if (get_numel((AtenTensorHandle)tensor, &numel) || get_dtype((AtenTensorHandle)tensor, &dtype))
        return;
    if (out->dtype == PAYLOAD_NO_DTYPE)
        out->dtype = (uint32_t)dtype;
    out->numel += (uint64_t)numel;
    out->bytes += (uint64_t)numel * element_size(dtype);
}

void payload_measure_TENSORS(hook_payload *out, const void *tensors) {
    const cxx_vector *vector = tensors;
    for (const char *at = vector->begin; at < vector->end; at += TENSOR_SIZE)
        payload_measure_TENSOR(out, at);
}

void payload_measure_MESSAGE(hook_payload *out, const void *tensors) {
    payload_measure_TENSORS(out, tensors);
}

void payload_measure_LISTS(hook_payload *out, const void *lists) {
    const cxx_vector *vector = lists;
    for (const char *at = vector->begin; at < vector->end; at += sizeof(cxx_vector))
        payload_measure_TENSORS(out, at);
}
