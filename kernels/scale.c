/* dst = src * scale, dst += src * scale: a gradient's way into the shared sum. */
#include <stdint.h>
#include <string.h>
#include "convert.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NAME(x) reference_##x
#define TARGET
#define LANES 1
#include "scale_loops.inc"

#if defined(__x86_64__)
#define NAME(x) avx2_##x
#define TARGET  __attribute__((target("avx2,f16c")))
#define LANES   8
#include "scale_loops.inc"

#define NAME(x) avx512_##x
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c")))
#define LANES   16
#include "scale_loops.inc"
#endif

typedef void scale_into(void *restrict dst, const void *restrict src, size_t count, double scale);
typedef void add_into(void *restrict dst, const void *restrict src, size_t count);

typedef struct scale_loops {
    scale_into *scale_store[KERNEL_DTYPE_COUNT];
    scale_into *scale_add[KERNEL_DTYPE_COUNT];
    add_into *add[KERNEL_DTYPE_COUNT];
} scale_loops;

/* wide: the variant of F32 and F64; narrow: that of the 16-bit types */
#define LOOPS(wide, narrow)                                                                                  \
    {                                                                                                        \
        .scale_store = {wide##_f32_scale_store, wide##_f64_scale_store, narrow##_f16_scale_store,            \
                        narrow##_bf16_scale_store},                                                          \
        .scale_add = {wide##_f32_scale_add, wide##_f64_scale_add, narrow##_f16_scale_add,                    \
                      narrow##_bf16_scale_add},                                                              \
        .add = {wide##_f32_add, wide##_f64_add, narrow##_f16_add, narrow##_bf16_add},                        \
    }

static const scale_loops loops_of[KERNEL_VARIANT_COUNT] = {
    [KERNEL_VARIANT_REFERENCE] = LOOPS(reference, reference),
#if defined(__x86_64__)
    [KERNEL_VARIANT_AVX2] = LOOPS(avx2, avx2),
    [KERNEL_VARIANT_AVX512] = LOOPS(avx2, avx512),
#elif defined(__aarch64__)
    [KERNEL_VARIANT_NEON] = LOOPS(reference, reference), /* which the compiler makes of NEON's instructions */
#endif
};

/* What is exactly one once rounded as the loops round it: x * 1 is x, bit for bit. */
static bool scale_is_one(kernel_dtype dtype, double scale) {
    return dtype == KERNEL_F64 ? scale == 1.0 : (float)scale == 1.0f;
}

void kernel_scale_store(kernel_dtype dtype, void *dst, const void *src, size_t count, double scale) {
    if (count == 0)
        return;
    if (scale_is_one(dtype, scale))
        memcpy(dst, src, count * kernel_dtype_bytes(dtype));
    else
        loops_of[kernel_variant_current()].scale_store[dtype](dst, src, count, scale);
}

void kernel_scale_add(kernel_dtype dtype, void *dst, const void *src, size_t count, double scale) {
    const scale_loops *loops = &loops_of[kernel_variant_current()];
    if (scale_is_one(dtype, scale))
        loops->add[dtype](dst, src, count);
    else
        loops->scale_add[dtype](dst, src, count, scale);
}
