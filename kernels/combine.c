/* out = a op b, element by element: what a reduction of ranks applies. */
#include <stdint.h>
#include "convert.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NAME(x) reference_##x
#define TARGET
#include "combine_loops.inc"

#if defined(__x86_64__)
#define NAME(x) avx2_##x
#define TARGET  __attribute__((target("avx2")))
#define HALVES
#include "combine_loops.inc"

#define HALF_LANES 8
#define HALF_LOOP(name, combine)                                                                             \
    __attribute__((target("avx2,f16c"))) static void avx2_f16_##name(void *out_, const void *a_,             \
                                                                     const void *b_, size_t count) {         \
        uint16_t *out = out_;                                                                                \
        const uint16_t *a = a_, *b = b_;                                                                     \
        size_t i = 0;                                                                                        \
        for (; i + HALF_LANES <= count; i += HALF_LANES) {                                                   \
            __m256 left = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i)));                        \
            __m256 right = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(b + i)));                       \
            __m256 wide = combine(left, right);                                                              \
            __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q));                      \
            __m128i mask = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));   \
            __m128i half = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);                                 \
            __m128i quiet = _mm_and_si128(half, _mm_set1_epi16((short)0xFE00));                              \
            _mm_storeu_si128((__m128i *)(out + i), _mm_blendv_epi8(half, quiet, mask));                      \
        }                                                                                                    \
        reference_f16_##name(out + i, a + i, b + i, count - i);                                              \
    }
HALF_LOOP(sum, _mm256_add_ps)
HALF_LOOP(product, _mm256_mul_ps)
#endif

#define ARITHMETIC(variant, type)                                                                            \
    [KERNEL_SUM] = variant##_##type##_sum, [KERNEL_PRODUCT] = variant##_##type##_product,                    \
    [KERNEL_MIN] = variant##_##type##_min, [KERNEL_MAX] = variant##_##type##_max
#define BITS(variant, type)                                                                                  \
    [KERNEL_AND] = variant##_##type##_and, [KERNEL_OR] = variant##_##type##_or,                              \
    [KERNEL_XOR] = variant##_##type##_xor
#define LOOPS(variant)                                                                                       \
    {                                                                                                        \
        [KERNEL_ELEMENT_F32] = {ARITHMETIC(variant, f32)},                                                   \
        [KERNEL_ELEMENT_F64] = {ARITHMETIC(variant, f64)},                                                   \
        [KERNEL_ELEMENT_F16] = {ARITHMETIC(variant, f16)},                                                   \
        [KERNEL_ELEMENT_BF16] = {ARITHMETIC(variant, bf16)},                                                 \
        [KERNEL_ELEMENT_I8] = {ARITHMETIC(variant, i8), BITS(variant, i8)},                                  \
        [KERNEL_ELEMENT_U8] = {ARITHMETIC(variant, u8), BITS(variant, u8)},                                  \
        [KERNEL_ELEMENT_I32] = {ARITHMETIC(variant, i32), BITS(variant, i32)},                               \
        [KERNEL_ELEMENT_I64] = {ARITHMETIC(variant, i64), BITS(variant, i64)},                               \
    }

static kernel_combine *const loops_of[KERNEL_VARIANT_COUNT][KERNEL_ELEMENT_COUNT][KERNEL_COMBINATION_COUNT] =
    {
        [KERNEL_VARIANT_REFERENCE] = LOOPS(reference),
#if defined(__x86_64__)
        [KERNEL_VARIANT_AVX2] = LOOPS(avx2),
        [KERNEL_VARIANT_AVX512] = LOOPS(avx2), /* memory is the limit */
#elif defined(__aarch64__)
        [KERNEL_VARIANT_NEON] = LOOPS(reference), /* which the compiler makes of NEON's instructions */
#endif
};

kernel_combine *kernel_combine_find(kernel_element element, kernel_combination combination) {
    return loops_of[kernel_variant_current()][element][combination];
}

size_t kernel_element_bytes(kernel_element element) {
    static const size_t bytes[KERNEL_ELEMENT_COUNT] = {
        [KERNEL_ELEMENT_F32] = 4,  [KERNEL_ELEMENT_F64] = 8, [KERNEL_ELEMENT_F16] = 2,
        [KERNEL_ELEMENT_BF16] = 2, [KERNEL_ELEMENT_I8] = 1,  [KERNEL_ELEMENT_U8] = 1,
        [KERNEL_ELEMENT_I32] = 4,  [KERNEL_ELEMENT_I64] = 8};
    return bytes[element];
}
