/* A count sketch: a few sums that stand for many numbers. */
#include <stdint.h>
#include "convert.h"
#include "kernels.h"

/* Bits that look random, the same for a block of every tensor (the finalizer of MurmurHash3). */
static uint64_t bits_of(uint64_t block) {
    uint64_t bits = block + 0x9E3779B97F4A7C15u;
    bits = (bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCDu;
    bits = (bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53u;
    return bits ^ (bits >> 33);
}

static double value_at(kernel_dtype dtype, const void *src, size_t i) {
    switch (dtype) {
    case KERNEL_F32:
        return ((const float *)src)[i];
    case KERNEL_F64:
        return ((const double *)src)[i];
    case KERNEL_F16:
        return kernel_float_of_f16(((const uint16_t *)src)[i]);
    case KERNEL_BF16:
        return kernel_float_of_bf16(((const uint16_t *)src)[i]);
    default:
        return 0;
    }
}

/* Of a block, each number has a bucket of its own, which another rotation gives it in every block, and a sign: numbers that
 * stand in one column of a matrix do not end in one bucket. */
static inline void block_add(double values[KERNEL_SKETCH_BUCKETS], uint64_t block, double weight,
                             double *sketch) {
    uint64_t bits = bits_of(block);
    unsigned rotation = (unsigned)(bits >> 32) % KERNEL_SKETCH_BUCKETS;
    for (unsigned i = 0; i < KERNEL_SKETCH_BUCKETS; i++)
        values[i] *= bits >> i & 1 ? weight : -weight;
    for (unsigned i = 0; i < KERNEL_SKETCH_BUCKETS - rotation; i++)
        sketch[i + rotation] += values[i];
    for (unsigned i = KERNEL_SKETCH_BUCKETS - rotation; i < KERNEL_SKETCH_BUCKETS; i++)
        sketch[i + rotation - KERNEL_SKETCH_BUCKETS] += values[i];
}

void kernel_sketch_add(kernel_dtype dtype, const void *src, size_t count, double weight, double *sketch) {
    for (size_t first = 0; first < count; first += KERNEL_SKETCH_BUCKETS) {
        double values[KERNEL_SKETCH_BUCKETS] = {0};
        size_t size = count - first < KERNEL_SKETCH_BUCKETS ? count - first : KERNEL_SKETCH_BUCKETS;
        if (dtype == KERNEL_F32 && size == KERNEL_SKETCH_BUCKETS)
            for (unsigned i = 0; i < KERNEL_SKETCH_BUCKETS; i++)
                values[i] = ((const float *)src)[first + i];
        else
            for (size_t i = 0; i < size; i++)
                values[i] = value_at(dtype, src, first + i);
        block_add(values, first / KERNEL_SKETCH_BUCKETS, weight, sketch);
    }
}
