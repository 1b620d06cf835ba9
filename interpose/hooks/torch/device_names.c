/* c10::Device's constructor from a text, at::accelerator::getAccelerator and THPDevice_New.
 *
 * Every text that PyTorch takes as a device, in Python or in TorchScript, comes through the first: "cuda:1", as an argument of a
 * factory, of Tensor.to or of torch.device. A number alone is a device of the accelerator's type, which the second tells. With an index
 * beside the name (torch.device("cuda", 1)) the device is put together after both; the third, which makes the Python object, sees
 * the result. It makes the objects of all tensors' devices as well, and those of the CPU have no index.
 *
 * In a process where nothing is replaced, the cost is a call. */
#include "device_names.h"
#include <stdatomic.h>
#include <stddef.h>
#include "base/log.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/device.h"

static atomic_bool replaced;
static atomic_bool said;

void device_names_say(void) {
    if (!atomic_exchange(&said, true))
        LOG_I("there is no GPU: \"cuda\" means the CPU here (CASTOR_COMPAT=1)");
}

void device_names_replace(void) {
    atomic_store(&replaced, true);
}

static bool is_replaced(void) {
    return atomic_load_explicit(&replaced, memory_order_relaxed);
}

/* The real function may not be there yet when the first call comes: torch calls its own libraries while they are loaded. */
static void *real_of(hook_id id) {
    void *real = hooks_real(id);
    return __builtin_expect(real != NULL, 1) ? real : hooks_find(id);
}

#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload, source, doc)             \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result real_##id parameters;
#include "hooks/table/torch_device.def"
#undef HOOK

void wrap_C10_DEVICE(c10_device *self, const void *text) {
    real_C10_DEVICE *real = (real_C10_DEVICE *)real_of(HOOK_C10_DEVICE);
    if (real)
        real(self, text); /* throws where it is no device */
    if (is_replaced() && self->type == C10_CUDA) {
        device_names_say();
        *self = (c10_device){.type = C10_CPU, .index = C10_NO_INDEX};
    }
}

c10_device_type wrap_TORCH_ACCELERATOR(bool checked) {
    /* With `checked` the caller cannot go on without an accelerator: a number was given. Others learn that there is none. */
    if (is_replaced()) {
        if (checked)
            device_names_say();
        return (c10_device_type){.type = C10_CPU, .known = checked};
    }
    real_TORCH_ACCELERATOR *real = (real_TORCH_ACCELERATOR *)real_of(HOOK_TORCH_ACCELERATOR);
    return real ? real(checked) : (c10_device_type){.known = false};
}

void *wrap_TORCH_PYTHON_DEVICE(const c10_device *device) {
    static const c10_device cpu = {.type = C10_CPU, .index = C10_NO_INDEX};
    if (is_replaced() && (device->type == C10_CUDA || device->type == C10_CPU)) {
        if (device->type == C10_CUDA)
            device_names_say();
        device = &cpu;
    }
    real_TORCH_PYTHON_DEVICE *real = (real_TORCH_PYTHON_DEVICE *)real_of(HOOK_TORCH_PYTHON_DEVICE);
    return real ? real(device) : NULL;
}
