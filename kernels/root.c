/* Which kind of square root a function computes. */
#include "root.h"
#include <string.h>

typedef bool roots_loop(const kernel_roots *roots, float *values, size_t count);
#define LOOP      roots
#define LOOP_TYPE roots_loop
#define LOOPS     "root_apply.inc"
#include "loop_variants.inc"

enum { BLOCK = 1024, BLOCKS = 128, MANTISSA_BITS = 23 };

bool kernel_roots_apply(const kernel_roots *roots, float *values, size_t count) {
    return loop_of[kernel_variant_current()](roots, values, count);
}

/* Roots depend on the mantissa and on whether the exponent is odd: number `i` of BLOCK * BLOCKS takes the i-th of as many equal
 * parts of these 2^24, somewhere within, at one exponent after the other. What is rare is in the first of each block. */
static float number(uint32_t i) {
    static const uint32_t rare[] = {0,          0x80000000, 1,          0x007FFFFF, 0x00800000, 0x00800001,
                                    0x0D7FFFFF, 0x0D800000, 0x71800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
    const uint32_t part = (1u << (MANTISSA_BITS + 1)) / (BLOCK * BLOCKS);
    uint32_t place = i % BLOCK;
    if (place < sizeof rare / sizeof rare[0])
        return kernel_float_of_bits(rare[place]);
    uint32_t mixed = i * 2654435761u;
    uint32_t odd_and_mantissa = i * part + (mixed >> 16) % part;
    uint32_t twice = 1 + (mixed >> 8) % 126; /* exponents from 2 to 253 */
    return kernel_float_of_bits((twice << (MANTISSA_BITS + 1)) + odd_and_mantissa);
}

static bool same(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (kernel_bits_of_float(a[i]) != kernel_bits_of_float(b[i]) && (a[i] == a[i] || b[i] == b[i]))
            return false;
    return true;
}

kernel_roots kernel_roots_find(kernel_root *function) {
    kernel_roots roots[KERNEL_ROOT_COUNT];
    bool fits[KERNEL_ROOT_COUNT];
    for (int kind = 0; kind < KERNEL_ROOT_COUNT; kind++) {
        roots[kind] = (kernel_roots){.function = function, .kind = (kernel_root_kind)kind};
        fits[kind] = true;
    }
    if (!function)
        return roots[KERNEL_ROOT_PROCESSOR];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        float numbers[BLOCK], expected[BLOCK], found[BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++)
            numbers[i] = number(block * BLOCK + i);
        memcpy(expected, numbers, sizeof numbers);
        function(expected, BLOCK);
        for (int kind = KERNEL_ROOT_CALLED + 1; kind < KERNEL_ROOT_COUNT; kind++) {
            if (!fits[kind])
                continue;
            memcpy(found, numbers, sizeof numbers);
            fits[kind] = kernel_roots_apply(&roots[kind], found, BLOCK) && same(expected, found, BLOCK);
        }
    }
    for (int kind = KERNEL_ROOT_CALLED + 1; kind < KERNEL_ROOT_COUNT; kind++)
        if (fits[kind])
            return roots[kind];
    return roots[KERNEL_ROOT_CALLED];
}
