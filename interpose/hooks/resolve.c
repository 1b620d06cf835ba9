#include "resolve.h"

#include "hooks/c10d/payload.h"
#include "hooks/cuda/nccl.h"
#include "hooks/lookup/lookup.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/device.h"
#include "shims/torch/stable.h"
#include "trace/sampled.h"
#include "trace/trace.h"

static void name_row(hook_id id) {
    trace_name_set(TRACE_CALL, id, hook_table[id].name);
    if (id == HOOK_POSIX_MEMALIGN)
        sampled_name(SAMPLED_POSIX_MEMALIGN, hook_table[id].name);
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_GLOO || layer == HOOK_LAYER_C10D_NCCL)
        trace_name_set(TRACE_COLLECTIVE, id, hook_operation_name(id));
    else if (layer == HOOK_LAYER_NCCL && nccl_operation(id))
        trace_name_set(TRACE_COLLECTIVE, id, nccl_operation(id));
}

/* An older libcudart, libcuda, libnccl, libcublas or libcudnn lacks functions of the tables: nobody can call those, so they are not
 * missed. PyTorch's are, if their names have changed to ones that the table does not know. */
static bool row_is_missed(hook_id id) {
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_CUDA_RUNTIME || layer == HOOK_LAYER_CUDA_DRIVER ||
        layer == HOOK_LAYER_CUDA_LOOKUP || layer == HOOK_LAYER_NCCL || layer == HOOK_LAYER_CUBLAS ||
        layer == HOOK_LAYER_CUBLASLT || layer == HOOK_LAYER_CUDNN)
        return false;
    hook_id other = hook_other_name(id);
    return !hook_is_later(id) && (other == id || !hooks_find(other));
}

static bool row_has_wrapper(hook_id id) {
    hook_layer layer = hook_table[id].layer;
    return layer < HOOK_LAYER_GLOO || layer > HOOK_LAYER_C10D_NCCL_END || HOOK_GLOO_WRAPPED;
}

void hooks_resolve(void) {
    uint64_t found = 0, missed = lookup_passed_over();
    void *torch = loader_library(TORCH_CPU_LIBRARY);
    if (torch)
        payload_resolve(torch);
    const char *library = NULL;
    bool loaded = true;
    for (hook_id id = 0; id < HOOK_COUNT; id++) {
        if (hooks_library(id) != library) {
            library = hooks_library(id);
            loaded = hooks_library_is_loaded(id);
        }
        if (!loaded || !row_has_wrapper(id))
            continue;
        if (hooks_find(id)) {
            found++;
            name_row(id);
        } else if (row_is_missed(id)) {
            missed++;
        }
    }
    trace_gauge_set(GAUGE_HOOKS_FOUND, found);
    trace_gauge_set(GAUGE_HOOKS_MISSED, missed);
}
