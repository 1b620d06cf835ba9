/* Addresses in homes that a copy carries from the host to a device. Kernels may find them there and write through them, with nothing of it
 * among their arguments: what lies in such a home is read there from then on (slots_kept).
 *
 * A word that happens to look like an address costs its home the slots. So in a long copy an address counts that has another one
 * near it, as in a table, or that a parameter begins at; in a short one each does. */
#include <string.h>
#include "events/gate.h"
#include "observe.h"
#include "shims/cuda/types.h"
#include "writers.h"

#define LOOK_BYTES  ((size_t)1 << 20) /* of each copy, from its beginning */
#define SHORT_BYTES ((size_t)64 << 10)
#define NEAR_WORDS  512

#define MEMORY_TYPE   2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define MEMORY_DEVICE 2 /* CU_MEMORYTYPE_DEVICE: managed memory as well, which is left where it is */

static bool is_on_host(const void *address) {
    static void *found; /* atomic */
    CUresult (*ask)(void *, int, CUdeviceptr) = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!ask) {
        ask = hooks_driver_symbol("cuPointerGetAttribute");
        __atomic_store_n(&found, (void *)ask, __ATOMIC_RELAXED);
    }
    unsigned type = 0;
    return ask && (ask(&type, MEMORY_TYPE, (CUdeviceptr)address) != CUDA_SUCCESS || type != MEMORY_DEVICE);
}

static uintptr_t word_at(const char *from, size_t word) {
    uintptr_t value;
    memcpy(&value, from + word * sizeof value, sizeof value);
    return value;
}

static bool is_in_home(uintptr_t address, slots **s) {
    int device = devices_find(address);
    home found;
    *s = devices_slots(device);
    return *s && home_find(devices_homes(device), address, &found);
}

/* Of words that are near each other. */
static void addresses_keep(const char *from, size_t words, bool is_short) {
    slots *s;
    uint32_t count = 0;
    for (size_t i = 0; i < words && count < 2; i++)
        count += is_in_home(word_at(from, i), &s);
    for (size_t i = 0; i < words && count > 0; i++)
        if (is_in_home(word_at(from, i), &s))
            slots_kept(s, word_at(from, i), is_short || count > 1);
}

static void look(uintptr_t to, const char *from, size_t bytes) {
    uintptr_t first = __atomic_load_n(&devices_first, __ATOMIC_ACQUIRE);
    uint64_t homes_bytes = __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED);
    size_t before = -to % sizeof(uintptr_t); /* addresses are whole words where the copy goes */
    bool is_short = bytes <= SHORT_BYTES;
    bytes = bytes > LOOK_BYTES ? LOOK_BYTES : bytes;
    size_t words = bytes > before ? (bytes - before) / sizeof(uintptr_t) : 0;
    from += before;
    for (size_t at = 0; at < words; at += NEAR_WORDS) {
        size_t count = words - at < NEAR_WORDS ? words - at : NEAR_WORDS, found = 0;
        for (size_t i = 0; i < count; i++)
            found += word_at(from, at + i) - first < homes_bytes;
        if (!found)
            continue;
        gate_enter(); /* a flip looks at the same tables */
        addresses_keep(from + at * sizeof(uintptr_t), count, is_short);
        gate_leave();
    }
}

void addresses_carried(uintptr_t to, const void *from, size_t bytes) {
    if (writers_matter() && bytes >= sizeof(uintptr_t) && is_on_host(from))
        look(to, from, bytes);
}

#define CARRIES(result, id, parameters, arguments, to, from, bytes)                                          \
    static result carry_##id parameters {                                                                    \
        result(*real) parameters = hooks_real(HOOK_##id);                                                    \
        result status = real arguments;                                                                      \
        if (status == 0)                                                                                     \
            addresses_carried((uintptr_t)(to), (const void *)(from), bytes);                                 \
        return status;                                                                                       \
    }
/* Rows of a picture. What lies between them is not copied, and may not be readable. */
#define CARRIES_ROWS(id, parameters, arguments)                                                              \
    static cudaError_t carry_##id parameters {                                                               \
        cudaError_t(*real) parameters = hooks_real(HOOK_##id);                                               \
        cudaError_t status = real arguments;                                                                 \
        for (size_t row = 0; status == 0 && row < height && row * width < LOOK_BYTES; row++)                 \
            addresses_carried((uintptr_t)dst + row * dpitch, (const char *)src + row * spitch, width);       \
        return status;                                                                                       \
    }
#define TWICE(kind, variant, result, id, ...)                                                                \
    kind(result, id, __VA_ARGS__) kind(result, id##variant, __VA_ARGS__)

TWICE(CARRIES, _ptds, cudaError_t, cudaMemcpy,
      (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind), (dst, src, count, kind), dst, src,
      count)
TWICE(CARRIES, _ptsz, cudaError_t, cudaMemcpyAsync,
      (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream),
      (dst, src, count, kind, stream), dst, src, count)
TWICE(CARRIES, _ptds, cudaError_t, cudaMemcpyToSymbol,
      (const void *symbol, const void *src, size_t count, size_t offset, enum cudaMemcpyKind kind),
      (symbol, src, count, offset, kind), offset, src, count)
TWICE(CARRIES, _ptsz, cudaError_t, cudaMemcpyToSymbolAsync,
      (const void *symbol, const void *src, size_t count, size_t offset, enum cudaMemcpyKind kind,
       cudaStream_t stream),
      (symbol, src, count, offset, kind, stream), offset, src, count)
TWICE(CARRIES, _ptds, CUresult, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t count), (dst, src, count),
      dst, src, count)
TWICE(CARRIES, _ptsz, CUresult, cuMemcpyAsync,
      (CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream), (dst, src, count, stream), dst, src,
      count)
TWICE(CARRIES, _ptds, CUresult, cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t count),
      (dst, src, count), dst, src, count)
TWICE(CARRIES, _ptsz, CUresult, cuMemcpyHtoDAsync_v2,
      (CUdeviceptr dst, const void *src, size_t count, CUstream stream), (dst, src, count, stream), dst, src,
      count)
CARRIES_ROWS(cudaMemcpy2D,
             (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
              enum cudaMemcpyKind kind),
             (dst, dpitch, src, spitch, width, height, kind))
CARRIES_ROWS(cudaMemcpy2DAsync,
             (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
              enum cudaMemcpyKind kind, cudaStream_t stream),
             (dst, dpitch, src, spitch, width, height, kind, stream))

void addresses_install(void) {
#define REPLACE(id)                observe_target_replace(HOOK_##id, (void *)carry_##id)
#define REPLACE_TWICE(id, variant) REPLACE(id), REPLACE(id##variant)
    REPLACE_TWICE(cudaMemcpy, _ptds);
    REPLACE_TWICE(cudaMemcpyAsync, _ptsz);
    REPLACE_TWICE(cudaMemcpyToSymbol, _ptds);
    REPLACE_TWICE(cudaMemcpyToSymbolAsync, _ptsz);
    REPLACE_TWICE(cuMemcpy, _ptds);
    REPLACE_TWICE(cuMemcpyAsync, _ptsz);
    REPLACE_TWICE(cuMemcpyHtoD_v2, _ptds);
    REPLACE_TWICE(cuMemcpyHtoDAsync_v2, _ptsz);
    REPLACE(cudaMemcpy2D);
    REPLACE(cudaMemcpy2DAsync);
}
