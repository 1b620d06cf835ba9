#include "hooks.h"

#include <string.h>

/* Of a row's facts, (bytes, stream, object), or with a source: a row without a stream has a 0 there. */
#define STREAM_IN_FACTS(bytes, stream, ...)                    (sizeof #stream > sizeof "0")
#define STREAM_IN_COUNT(count, datatype, communicator, stream) true
#define HAS_STREAM_NONE(source)                                false
#define HAS_STREAM_TENSOR(source)                              false
#define HAS_STREAM_TENSORS(source)                             false
#define HAS_STREAM_LISTS(source)                               false
#define HAS_STREAM_MESSAGE(source)                             false
#define HAS_STREAM_FACTS(source)                               STREAM_IN_FACTS source
#define HAS_STREAM_COUNT(source)                               STREAM_IN_COUNT source

const hook_info hook_table[HOOK_COUNT] = {
#define HOOK(layer_, mode_, result, id_, name_, symbol_, parameters, arguments, payload_, source, doc_)      \
    [HOOK_##id_] = {.layer = HOOK_LAYER_##layer_,                                                            \
                    .mode = HOOK_MODE_##mode_,                                                               \
                    .has_stream = HAS_STREAM_##payload_(source),                                             \
                    .id = #id_,                                                                              \
                    .name = name_,                                                                           \
                    .symbol = symbol_,                                                                       \
                    .doc = doc_},
#include "hooks.def"
};

const char *const hook_layer_name[HOOK_LAYER_COUNT] = {
    [HOOK_LAYER_ALLOCATION] = "allocation",
    [HOOK_LAYER_GLOO] = "gloo",
    [HOOK_LAYER_GLOO_WORK] = "gloo work",
    [HOOK_LAYER_GLOO_DATA] = "gloo data",
    [HOOK_LAYER_C10D_NCCL] = "c10d NCCL",
    [HOOK_LAYER_C10D_NCCL_END] = "c10d NCCL",
    [HOOK_LAYER_LOADER] = "loader",
    [HOOK_LAYER_PROCESS] = "process",
    [HOOK_LAYER_CUDA_LOOKUP] = "CUDA look-up",
    [HOOK_LAYER_CUDA_RUNTIME] = "CUDA runtime",
    [HOOK_LAYER_CUDA_DRIVER] = "CUDA driver",
    [HOOK_LAYER_NCCL] = "NCCL",
    [HOOK_LAYER_CUBLAS] = "cuBLAS",
    [HOOK_LAYER_CUBLASLT] = "cuBLASLt",
    [HOOK_LAYER_CUDNN] = "cuDNN",
    [HOOK_LAYER_C10] = "PyTorch",
    [HOOK_LAYER_TORCH_CPU] = "PyTorch",
    [HOOK_LAYER_TORCH_PYTHON] = "PyTorch",
};

hook_id hook_operation(hook_id id) {
    switch (id) {
#define RENAMED(later, earlier)                                                                              \
    case HOOK_##later:                                                                                       \
        return HOOK_##earlier;
#include "hooks.def"
    default:
        return id;
    }
}

hook_id hook_other_name(hook_id id) {
    switch (id) {
#define RENAMED(later, earlier)                                                                              \
    case HOOK_##later:                                                                                       \
        return HOOK_##earlier;                                                                               \
    case HOOK_##earlier:                                                                                     \
        return HOOK_##later;
#include "hooks.def"
    default:
        return id;
    }
}

bool hook_is_later(hook_id id) {
    switch (id) {
#define RENAMED(later, earlier) case HOOK_##later:
#define LATER(later)            case HOOK_##later:
#include "hooks.def"
        return true;
    default:
        return false;
    }
}

const char *hook_operation_name(hook_id id) {
    const char *name = hook_table[hook_operation(id)].name, *colon = strrchr(name, ':');
    return colon ? colon + 1 : name;
}
