/* What wrappers share: how they are exported, and the real functions behind them. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_WRAPPER_H
#define CASTOR_HOOKS_LOOKUP_WRAPPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "hooks/table/hooks.h"

#define HOOK_EXPORT __attribute__((visibility("default")))
/* After a wrapper of libc's function: exports wrap_free as free. In C the wrapper has a name of its own: what calls free calls libc's,
 * through the table of the linker, also inside the library. */
#define HOOK_LIBC(symbol)                                                                                    \
    HOOK_EXPORT extern __typeof__(wrap_##symbol) export_##symbol __asm__(#symbol)                            \
        __attribute__((alias("wrap_" #symbol)))
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

/* ---- the real dlsym, dlvsym and dlopen, for the library's own look-ups: its own definitions hide them ---- */

typedef void *loader_dlopen(const char *file, int mode);
/* Keeps the compiler from turning the call before it into a jump: the real function would see another caller. */
#define LOADER_NO_JUMP(result) __asm__ volatile("" : "+r"(result))

/* Of those three. */
void *loader_real_of(hook_id id);

/* As dlsym, without wrappers; RTLD_NEXT searches the objects after this library. */
void *loader_symbol(void *handle, const char *name);

/* The handle of a library that is loaded already, by its file name or the beginning of it ("libcuda.so" for
 * "libcuda.so.1"); NULL: it is not. The library is never unloaded afterwards. */
void *loader_library(const char *library);

/* A library's handle by its path, if it is loaded; loader_close releases it. */
void *loader_open(const char *path);
void loader_close(void *handle);
/* Loads a library by its name. */
void *loader_load(const char *name);

#endif
