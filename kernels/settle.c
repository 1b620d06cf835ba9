/* Float values behind 16-bit ones: which of the two a program has changed. */
#include <stdint.h>
#include <string.h>
#include "kernels.h"

typedef bool settle_loop(kernel_dtype dtype, float *wide, const uint16_t *narrow, size_t count);
#define LOOP      settle
#define LOOP_TYPE settle_loop
#define LOOPS     "settle_loops.inc"
#include "loop_variants.inc"

bool kernel_settle(kernel_dtype dtype, float *wide, const void *narrow, size_t count) {
    return loop_of[kernel_variant_current()](dtype, wide, narrow, count);
}
