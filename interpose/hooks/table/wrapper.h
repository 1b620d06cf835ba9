/* Shared by the wrappers. Private to hooks/. */
#ifndef CASTOR_HOOKS_TABLE_WRAPPER_H
#define CASTOR_HOOKS_TABLE_WRAPPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "hooks.h"

#define HOOK_EXPORT __attribute__((visibility("default")))
/* Thread-local state that needs no allocation when a thread first touches it. */
#define HOOK_THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))

/* gloo.c says why. */
#ifdef __x86_64__
#define HOOK_GLOO_WRAPPED 1
#else
#define HOOK_GLOO_WRAPPED 0
#endif

extern void *hook_real[HOOK_COUNT];

/* The next definition of a libc function after ours; also stored in hook_real. NULL while a look-up by this
 * thread is in progress: dlsym itself may allocate. */
void *hooks_next(hook_id id);

/* The part of a row's name after the last colon: "allreduce" of "c10d::ProcessGroupGloo::allreduce". */
const char *hooks_operation_name(hook_id id);

/* The real function of a row, wherever it is: also stored in hook_real. */
void *hooks_find(hook_id id);

/* Any function of the CUDA runtime. */
void *hooks_runtime_symbol(const char *symbol);
/* Any function of the CUDA driver. */
void *hooks_driver_symbol(const char *symbol);
/* Any function of the library of a layer; not of CUDA_LOOKUP, whose rows are of two. */
void *hooks_layer_symbol(hook_layer layer, const char *symbol);

/* The name of an NCCL collective in reports; NULL: the row is no collective. */
const char *nccl_operation(hook_id id);

#endif
