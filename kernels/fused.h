/* a * b + c, rounded once. */
#ifndef CASTOR_KERNELS_FUSED_H
#define CASTOR_KERNELS_FUSED_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__aarch64__) || defined(__FMA__)
static inline float kernel_fused(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
#else
/* The product is exact in double. The sum is rounded to odd there (its last bit tells whether anything was lost), so that
 * rounding it again, to float, errs on no tie. */
static inline float kernel_fused(float a, float b, float c) {
    union {
        double value;
        uint64_t bits;
    } sum;
    double product = (double)a * b, addend = c;
    sum.value = product + addend;
    double rest = sum.value - product;
    double lost = (product - (sum.value - rest)) + (addend - rest);
    /* For infinities and NaNs, `lost` is NaN. */
    if ((lost < 0 || lost > 0) && !(sum.bits & 1)) {
        bool outward = (lost > 0) == (sum.value > 0);
        sum.bits += outward ? 1 : (uint64_t)-1;
    }
    return (float)sum.value;
}
#endif

#endif
