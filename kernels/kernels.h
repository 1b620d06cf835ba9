/* Element-wise kernels of the CPU path.
 *
 * Vocabulary
 *   reference  the plain C version; every other version gives the same bytes (NaN payloads of float, double and half
 *              excepted: the processor picks them)
 *   variant    one set of versions for one instruction set; the best that the processor has is chosen at run time
 *
 * Rounding is PyTorch's: a float or double operation rounds once, products and sums are never fused; a 16-bit
 * operation is computed in float and rounded to nearest even, each operation for itself. `scale` is rounded
 * to float first, except for KERNEL_F64, as PyTorch does with a Python number. A NaN becomes 0x7FC0 in BF16;
 * in F16 it keeps its sign and the upper bits of its payload.
 *
 * `dst` and `src` are aligned to the element, not more, and do not overlap (but see kernel_combine). `count` is in elements. No
 * kernel allocates, blocks or fails. */
#ifndef CASTOR_KERNELS_H
#define CASTOR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kernel_dtype {
    KERNEL_F32,
    KERNEL_F64,
    KERNEL_F16,
    KERNEL_BF16,
    KERNEL_DTYPE_COUNT
} kernel_dtype;

typedef enum kernel_variant {
    KERNEL_VARIANT_REFERENCE,
    KERNEL_VARIANT_AVX2,
    KERNEL_VARIANT_AVX512,
    KERNEL_VARIANT_NEON, /* every AArch64 has it */
    KERNEL_VARIANT_COUNT
} kernel_variant;

size_t kernel_dtype_bytes(kernel_dtype dtype);

/* dst[i] = src[i] * scale */
void kernel_scale_store(kernel_dtype dtype, void *dst, const void *src, size_t count, double scale);
/* dst[i] = dst[i] + (src[i] * scale), the product rounded to the dtype before it is added */
void kernel_scale_add(kernel_dtype dtype, void *dst, const void *src, size_t count, double scale);

/* `narrow`, of KERNEL_F16 or KERNEL_BF16, was `wide` rounded, until something wrote into some of its elements: the wide values of
 * these become the narrow ones, the others keep all their digits. True: there were such elements. */
bool kernel_settle(kernel_dtype dtype, float *wide, const void *narrow, size_t count);

/* A count sketch of `count` numbers, added to `sketch`: each number, times `weight` and a sign, goes into one of the buckets.
 * Sketches are linear, so the sketch of a difference is the difference of the sketches; the expected sum of the buckets' squares
 * is the sum of the numbers' squares. Tensors of one count and one order have comparable sketches, whatever their dtype. */
enum { KERNEL_SKETCH_BUCKETS = 32 };
void kernel_sketch_add(kernel_dtype dtype, const void *src, size_t count, double weight, double *sketch);

/* dst = src; `dst` does not stay in the caches: for copies larger than these. */
void kernel_stream(void *dst, const void *src, size_t bytes);

/* The operations of reductions over ranks, and the types of their elements. Integers wrap; a NaN in F16
 * keeps its sign alone. */
typedef enum kernel_element {
    KERNEL_ELEMENT_F32,
    KERNEL_ELEMENT_F64,
    KERNEL_ELEMENT_F16,
    KERNEL_ELEMENT_BF16,
    KERNEL_ELEMENT_I8,
    KERNEL_ELEMENT_U8,
    KERNEL_ELEMENT_I32,
    KERNEL_ELEMENT_I64,
    KERNEL_ELEMENT_COUNT
} kernel_element;
typedef enum kernel_combination {
    KERNEL_SUM,
    KERNEL_PRODUCT,
    KERNEL_MIN, /* the first of two, unless the second is less */
    KERNEL_MAX,
    KERNEL_AND,
    KERNEL_OR,
    KERNEL_XOR,
    KERNEL_COMBINATION_COUNT
} kernel_combination;

/* out[i] = a[i] op b[i]; which of two NaNs results is undefined; `out` may be `a` or `b`, and overlaps them in no other way. */
typedef void kernel_combine(void *out, const void *a, const void *b, size_t count);
/* The function of the variant in use; NULL: an operation on the bits of floats. */
kernel_combine *kernel_combine_find(kernel_element element, kernel_combination combination);
size_t kernel_element_bytes(kernel_element element);

/* The variant in use; the first call chooses it. Tests and benchmarks may select another one, which is
 * refused (false, nothing changes) where the processor lacks it. Safe from any thread at any time. */
kernel_variant kernel_variant_current(void);
bool kernel_variant_supported(kernel_variant variant);
bool kernel_variant_select(kernel_variant variant);
const char *kernel_variant_name(kernel_variant variant);

#ifdef __cplusplus
}
#endif

#endif
