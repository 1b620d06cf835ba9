/* How functions of the CUDA driver are asked for by name: cuGetProcAddress and the runtime's ways to it. The real
 * function answers first; what it found is replaced by the wrapper of the same ABI. */
#include <string.h>
#include "hooks/lookup/lookup.h"
#include "observe.h"
#include "shims/cuda/types.h"

enum { PROC_LEGACY_STREAM = 1, PROC_PER_THREAD_STREAM = 2 }; /* flags of cuGetProcAddress */

static uint64_t export_tables; /* atomic */

/* Replaces what `found` points to. A version that the tables do not know yet may mean another ABI: the wrapper is
 * taken only if the function is the one that bears the row's symbol. */
static void wrap_found(const char *name, int version, bool per_thread, void **found) {
    if (!name || !found || !*found)
        return;
    hook_id id = lookup_driver(name, version, per_thread);
    if (id == HOOK_COUNT)
        return;
    if (version > LOOKUP_KNOWN_VERSION && *found != lookup_wrapper(id) && *found != hooks_find(id))
        return;
    *found = lookup_wrap(id, *found);
}

/* Each is exported under its own name; the name with wrap_ in front is what the library itself refers to. */
#define LOOKUP(result, function, parameters)                                                                 \
    result wrap_##function parameters;                                                                       \
    HOOK_EXPORT extern __typeof__(wrap_##function) export_##function __asm__(#function)                      \
        __attribute__((alias("wrap_" #function)));                                                           \
    result wrap_##function parameters

#define REAL_OR(missing, result, function, parameters)                                                       \
    result(*real) parameters = observe_target_of(HOOK_##function);                                           \
    if (!real)                                                                                               \
    return missing

LOOKUP(CUresult, cuGetProcAddress, (const char *symbol, void **pfn, int version, cuuint64_t flags)) {
    REAL_OR(CUDA_ERROR_NOT_SUPPORTED, CUresult, cuGetProcAddress, (const char *, void **, int, cuuint64_t));
    CUresult status = real(symbol, pfn, version, flags);
    if (status == CUDA_SUCCESS)
        wrap_found(symbol, version, flags & PROC_PER_THREAD_STREAM, pfn);
    return status;
}

LOOKUP(CUresult, cuGetProcAddress_v2,
       (const char *symbol, void **pfn, int version, cuuint64_t flags,
        CUdriverProcAddressQueryResult *found)) {
    REAL_OR(CUDA_ERROR_NOT_SUPPORTED, CUresult, cuGetProcAddress_v2,
            (const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *));
    CUresult status = real(symbol, pfn, version, flags, found);
    if (status == CUDA_SUCCESS)
        wrap_found(symbol, version, flags & PROC_PER_THREAD_STREAM, pfn);
    return status;
}

LOOKUP(cudaError_t, cudaGetDriverEntryPointByVersion,
       (const char *symbol, void **function, unsigned int version, unsigned long long flags,
        enum cudaDriverEntryPointQueryResult *found)) {
    REAL_OR(
        cudaErrorNotSupported, cudaError_t, cudaGetDriverEntryPointByVersion,
        (const char *, void **, unsigned int, unsigned long long, enum cudaDriverEntryPointQueryResult *));
    cudaError_t status = real(symbol, function, version, flags, found);
    if (status == cudaSuccess)
        wrap_found(symbol, (int)version, flags & PROC_PER_THREAD_STREAM, function);
    return status;
}

LOOKUP(cudaError_t, cudaGetDriverEntryPointByVersion_ptsz,
       (const char *symbol, void **function, unsigned int version, unsigned long long flags,
        enum cudaDriverEntryPointQueryResult *found)) {
    REAL_OR(
        cudaErrorNotSupported, cudaError_t, cudaGetDriverEntryPointByVersion_ptsz,
        (const char *, void **, unsigned int, unsigned long long, enum cudaDriverEntryPointQueryResult *));
    cudaError_t status = real(symbol, function, version, flags, found);
    if (status == cudaSuccess)
        wrap_found(symbol, (int)version, !(flags & PROC_LEGACY_STREAM), function);
    return status;
}

/* The version that a runtime asks the driver for where its caller names none: its own. */
static int runtime_version(void) {
    static int known; /* atomic */
    int version = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (version)
        return version;
    cudaError_t (*get)(int *) = hooks_runtime_symbol("cudaRuntimeGetVersion");
    if (!get || get(&version) != cudaSuccess)
        return 0;
    __atomic_store_n(&known, version, __ATOMIC_RELAXED);
    return version;
}

LOOKUP(cudaError_t, cudaGetDriverEntryPoint,
       (const char *symbol, void **function, unsigned long long flags,
        enum cudaDriverEntryPointQueryResult *found)) {
    REAL_OR(cudaErrorNotSupported, cudaError_t, cudaGetDriverEntryPoint,
            (const char *, void **, unsigned long long, enum cudaDriverEntryPointQueryResult *));
    cudaError_t status = real(symbol, function, flags, found);
    if (status == cudaSuccess)
        wrap_found(symbol, runtime_version(), flags & PROC_PER_THREAD_STREAM, function);
    return status;
}

LOOKUP(cudaError_t, cudaGetDriverEntryPoint_ptsz,
       (const char *symbol, void **function, unsigned long long flags,
        enum cudaDriverEntryPointQueryResult *found)) {
    REAL_OR(cudaErrorNotSupported, cudaError_t, cudaGetDriverEntryPoint_ptsz,
            (const char *, void **, unsigned long long, enum cudaDriverEntryPointQueryResult *));
    cudaError_t status = real(symbol, function, flags, found);
    if (status == cudaSuccess)
        wrap_found(symbol, runtime_version(), !(flags & PROC_LEGACY_STREAM), function);
    return status;
}

/* A table of the driver's that one of its own libraries asks for. What is called through it cannot be seen. */
static void export_table_count(void) {
    trace_gauge_set(GAUGE_EXPORT_TABLES, __atomic_add_fetch(&export_tables, 1, __ATOMIC_RELAXED));
}

LOOKUP(CUresult, cuGetExportTable, (const void **table, const CUuuid *id)) {
    REAL_OR(CUDA_ERROR_NOT_SUPPORTED, CUresult, cuGetExportTable, (const void **, const CUuuid *));
    CUresult status = real(table, id);
    if (status == CUDA_SUCCESS)
        export_table_count();
    return status;
}

LOOKUP(cudaError_t, cudaGetExportTable, (const void **table, const CUuuid *id)) {
    REAL_OR(cudaErrorNotSupported, cudaError_t, cudaGetExportTable, (const void **, const CUuuid *));
    cudaError_t status = real(table, id);
    if (status == cudaSuccess)
        export_table_count();
    return status;
}
