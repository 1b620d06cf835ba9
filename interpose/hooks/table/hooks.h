/* The intercepted functions: one table, read by the library, by the launcher and by the tests.
 *
 * A wrapper is the function that the dynamic linker finds in place of the real one, because the library is
 * preloaded. It runs in every process that has the library, torch or not: it calls no malloc and no stdio,
 * takes no lock that the real function may take, and passes unknown calls on. docs/hooks.md shows how
 * to add one.
 */
#ifndef CASTOR_HOOKS_TABLE_HOOKS_H
#define CASTOR_HOOKS_TABLE_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum hook_layer {
    HOOK_LAYER_ALLOCATION,
    HOOK_LAYER_GLOO,
    HOOK_LAYER_GLOO_WORK,
    HOOK_LAYER_GLOO_DATA,
    HOOK_LAYER_C10D_NCCL,
    HOOK_LAYER_C10D_NCCL_END,
    HOOK_LAYER_LOADER,
    HOOK_LAYER_PROCESS,
    HOOK_LAYER_CUDA_LOOKUP,
    HOOK_LAYER_CUDA_RUNTIME,
    HOOK_LAYER_CUDA_DRIVER,
    HOOK_LAYER_NCCL,
    HOOK_LAYER_CUBLAS,
    HOOK_LAYER_CUBLASLT,
    HOOK_LAYER_CUDNN,
    HOOK_LAYER_C10,
    HOOK_LAYER_TORCH_CPU,
    HOOK_LAYER_TORCH_PYTHON,
    HOOK_LAYER_COUNT
} hook_layer;
typedef enum hook_mode { HOOK_MODE_OBSERVE, HOOK_MODE_REPLACE } hook_mode;

typedef enum hook_id {
#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload, source, doc) HOOK_##id,
#include "hooks.def"
    HOOK_COUNT
} hook_id;

/* A row of the table, as data. hook_table.c depends on nothing: the launcher links it too. */
typedef struct hook_info {
    hook_layer layer;
    hook_mode mode;
    bool has_stream; /* its records name a CUDA stream */
    const char *id, *name, *symbol, *doc;
} hook_info;

extern const hook_info hook_table[HOOK_COUNT];
extern const char *const hook_layer_name[HOOK_LAYER_COUNT];

/* Versions of PyTorch (RENAMED and LATER in hooks.def). The row whose name reports use for the operation of `id`. */
hook_id hook_operation(hook_id id);
/* The row of the same operation under another version's name; `id` itself where there is none. */
hook_id hook_other_name(hook_id id);
/* Whether only later versions have the row. */
bool hook_is_later(hook_id id);

/* The part of a row's name after the last colon: "allreduce" of "c10d::ProcessGroupGloo::allreduce". */
const char *hook_operation_name(hook_id id);

/* Calls `entered` at the begin of each outermost collective of a process group, on the calling thread, before
 * the real function runs. One observer; NULL removes it. */
void hooks_collective_observe(void (*entered)(hook_id id));

/* True: another thread may be writing to tensors for a process group. A collective has not ended, or this process receives
 * messages whose end is unknown. */
bool hooks_collective_pending(void);

#endif
