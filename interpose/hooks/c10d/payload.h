/* The payload of a collective: elements, bytes and dtype of its tensors, read through libtorch's stable C ABI.
 * Private to hooks/. */
#ifndef CASTOR_HOOKS_C10D_PAYLOAD_H
#define CASTOR_HOOKS_C10D_PAYLOAD_H

#include <stdint.h>

#define PAYLOAD_NO_DTYPE UINT32_MAX

typedef struct hook_payload {
    uint64_t numel, bytes;
    uint32_t dtype; /* c10::ScalarType of the first tensor */
} hook_payload;

/* `library` is the handle of libtorch_cpu.so. Without its functions, payloads are measured as empty. */
void payload_resolve(void *library);

/* One measure per payload of hooks.def; each adds to `out`. */
void payload_measure_NONE(hook_payload *out, const void *nothing);
void payload_measure_TENSOR(hook_payload *out, const void *tensor);
void payload_measure_TENSORS(hook_payload *out, const void *tensors);
void payload_measure_MESSAGE(hook_payload *out, const void *tensors);
void payload_measure_LISTS(hook_payload *out, const void *lists);

#endif
