/* c10::reportMemoryUsageToProfiler and c10::reportOutOfMemoryToProfiler.
 *
 * The allocators of devices call them for each block that they give out or get back, and when a device has no room, whether a profiler
 * runs or not. They hold their lock at the first: nothing here calls back. */
#include "hooks/lookup/wrapper.h"
#include "shims/torch/device.h"
#include "trace/device_blocks.h"

#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload, source, doc)             \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result real_##id parameters;
#include "hooks/table/torch_memory.def"
#undef HOOK

void wrap_C10_MEMORY_USAGE(void *block, int64_t bytes, size_t allocated, size_t reserved, c10_device device) {
    if (device.type == C10_CUDA)
        device_blocks_note(device.index, (uintptr_t)block, bytes, reserved);
    real_C10_MEMORY_USAGE *real = (real_C10_MEMORY_USAGE *)hooks_find(HOOK_C10_MEMORY_USAGE);
    if (real)
        real(block, bytes, allocated, reserved, device);
}

void wrap_C10_OUT_OF_MEMORY(int64_t bytes, size_t allocated, size_t reserved, c10_device device) {
    if (device.type == C10_CUDA && bytes > 0)
        device_blocks_note_shortage(device.index, (uint64_t)bytes, reserved);
    real_C10_OUT_OF_MEMORY *real = (real_C10_OUT_OF_MEMORY *)hooks_find(HOOK_C10_OUT_OF_MEMORY);
    if (real)
        real(bytes, allocated, reserved, device);
}
