/* What wrappers share: how they are exported, and the real functions behind them. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_WRAPPER_H
#define CASTOR_HOOKS_LOOKUP_WRAPPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "hooks/table/hooks.h"

#define HOOK_EXPORT __attribute__((visibility("default")))
/* A wrapper of libc's function, exported by its name. In C it has a name of its own: what calls free calls libc's, through the
 * table of the linker, also inside the library. */
#define HOOK_LIBC(result, symbol, parameters)                                                                \
    HOOK_EXPORT result wrap_##symbol parameters __asm__(#symbol);                                            \
    HOOK_EXPORT result wrap_##symbol parameters
/* Thread-local state that needs no allocation when a thread first touches it. */
#define HOOK_THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))

/* gloo.c says why. */
#ifdef __x86_64__
#define HOOK_GLOO_WRAPPED 1
#else
#define HOOK_GLOO_WRAPPED 0
#endif

extern void *hook_real[HOOK_COUNT];

/* The real function of a row; NULL until it is looked up, or where it does not exist. */
void *hooks_real(hook_id id);

/* The next definition of a libc function after ours; also stored in hook_real. NULL while a look-up by this
 * thread is in progress: dlsym itself may allocate. */
void *hooks_next(hook_id id);

/* The real function of a row, wherever it is: also stored in hook_real. */
void *hooks_find(hook_id id);

/* The library that has a row's function, and whether it is loaded; NULL: libc. The same pointer for rows of one library. */
const char *hooks_library(hook_id id);
bool hooks_library_is_loaded(hook_id id);

/* Any function of the CUDA runtime. */
void *hooks_runtime_symbol(const char *symbol);
/* Any function of the CUDA driver. */
void *hooks_driver_symbol(const char *symbol);
/* Any function of the library of a layer; not of CUDA_LOOKUP, whose rows are of two. */
void *hooks_layer_symbol(hook_layer layer, const char *symbol);

#endif
