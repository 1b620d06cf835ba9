/* Which instruction set the kernels use. */
#include <stdatomic.h>
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Not yet chosen: -1. Every thread that finds it so computes the same value, so the race is harmless. */
static _Atomic int current_variant = -1;

size_t kernel_dtype_bytes(kernel_dtype dtype) {
    static const size_t bytes[KERNEL_DTYPE_COUNT] = {
        [KERNEL_F32] = 4, [KERNEL_F64] = 8, [KERNEL_F16] = 2, [KERNEL_BF16] = 2};
    return bytes[dtype];
}

#if defined(__x86_64__)
static bool cpu_has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

bool kernel_variant_supported(kernel_variant variant) {
    switch (variant) {
    case KERNEL_VARIANT_REFERENCE:
        return true;
#if defined(__x86_64__)
    /* The compiler's support library also asks whether the operating system saves the registers. */
    case KERNEL_VARIANT_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
    case KERNEL_VARIANT_AVX512:
        return kernel_variant_supported(KERNEL_VARIANT_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
#elif defined(__aarch64__)
    case KERNEL_VARIANT_NEON:
        return true;
#endif
    default:
        return false;
    }
}

kernel_variant kernel_variant_current(void) {
    int variant = atomic_load_explicit(&current_variant, memory_order_relaxed);
    if (variant >= 0)
        return (kernel_variant)variant;
    variant = KERNEL_VARIANT_COUNT - 1;
    while (!kernel_variant_supported((kernel_variant)variant))
        variant--;
    /* A selection made meanwhile stays. */
    int none = -1;
    atomic_compare_exchange_strong(&current_variant, &none, variant);
    return none == -1 ? (kernel_variant)variant : (kernel_variant)none;
}

bool kernel_variant_select(kernel_variant variant) {
    if (!kernel_variant_supported(variant))
        return false;
    atomic_store(&current_variant, (int)variant);
    return true;
}

const char *kernel_variant_name(kernel_variant variant) {
    switch (variant) {
    case KERNEL_VARIANT_REFERENCE:
        return "reference";
    case KERNEL_VARIANT_AVX2:
        return "avx2";
    case KERNEL_VARIANT_AVX512:
        return "avx512";
    case KERNEL_VARIANT_NEON:
        return "neon";
    default:
        return "unknown";
    }
}
