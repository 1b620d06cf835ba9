/* Square roots with the bits of a library's function.
 *
 * PyTorch's loops take the roots of contiguous floats from MKL, whose results are off by a bit for every tenth float. Its method
 * was observed: it improves the processor's estimate of 1 / root in one of a few textbook ways, which depends on the processor.
 * Each of these ways is a `kind` here; the process compares results to find the kind that has the function's bits. Without
 * such a kind the function is called. */
#ifndef CASTOR_KERNELS_ROOT_H
#define CASTOR_KERNELS_ROOT_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kernel_root_kind {
    KERNEL_ROOT_CALLED,    /* the function's */
    KERNEL_ROOT_PROCESSOR, /* rounded once */
    KERNEL_ROOT_SEPARATE,  /* an estimate of 12 bits, improved twice; each operation is rounded */
    KERNEL_ROOT_FUSED,     /* the same, products and sums rounded at once */
    KERNEL_ROOT_SHORT,     /* an estimate of 14 bits, improved once, rounded as FUSED */
    KERNEL_ROOT_COUNT
} kernel_root_kind;

/* Writes square roots over `values`. */
typedef void kernel_root(float *values, size_t count);

/* `function` may be NULL for the processor's. It computes the cases that a kind cannot: very small and very large numbers, and
 * kinds that the variant lacks. */
typedef struct kernel_roots {
    kernel_root *function;
    kernel_root_kind kind;
} kernel_roots;

/* Compares on some 100000 numbers, in about a millisecond. */
kernel_roots kernel_roots_find(kernel_root *function);
/* In the variant in use. False: it lacks the kind, and the function did all. */
bool kernel_roots_apply(const kernel_roots *roots, float *values, size_t count);

#ifdef __cplusplus
}
#endif

#endif
