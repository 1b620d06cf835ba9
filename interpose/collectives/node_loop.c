#include "node_loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "kernels/kernels.h"

#define TRIAL_ROUNDS  8u
#define TRIAL_NUMBERS 1003u /* not a multiple of what loops take at a time */
#define TRIAL_BYTES   (TRIAL_NUMBERS * sizeof(uint64_t))

/* Of all magnitudes and kinds, whatever type they are read as. Where both are no numbers, compilers are free to choose which
 * one the result is: so every other one, in turns of the two inputs, is small and no NaN in any type. */
static void numbers_fill(uint64_t *out, uint32_t round, uint64_t salt) {
    static const uint64_t special[] = {0,
                                       1ull << 63,
                                       0x7ff0000000000000,
                                       0xfff0000000000000,
                                       0x3ff0000000000000,
                                       1,
                                       0x8000000000000001,
                                       0x7f8000007f800000,
                                       0xff800000ff800000,
                                       0x3f8000003f800000,
                                       0x8000000080000000,
                                       0x7fffffff7fffffff,
                                       0x7c00fc007f80ff80,
                                       0x0001800103ff0400,
                                       0x7bff7bfffbff7bff};
    for (uint64_t i = 0; i < TRIAL_NUMBERS; i++) {
        uint64_t x = ((uint64_t)round * TRIAL_NUMBERS + i + 1) * 0x9e3779b97f4a7c15u + salt;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
        x ^= x >> 32;
        if (i % 7 == salt % 7)
            x = special[x % (sizeof special / sizeof *special)];
        out[i] = (i + salt) % 2 ? x : x & 0xbfffbfffbfffbfff;
    }
}

typedef struct trial {
    uint64_t a[TRIAL_NUMBERS], b[TRIAL_NUMBERS], expected[TRIAL_NUMBERS], seen[TRIAL_NUMBERS];
} trial;

static bool loop_holds(trial *t, node_loop *loop, size_t numel) {
    memset(t->seen, 0, sizeof t->seen);
    loop(t->seen, t->a, t->b, numel);
    if (memcmp(t->seen, t->expected, sizeof t->expected) != 0)
        return false;
    memcpy(t->seen, t->a, sizeof t->seen);
    loop(t->seen, t->seen, t->b, numel); /* in place */
    return memcmp(t->seen, t->expected, sizeof t->expected) == 0;
}

node_loop *node_loop_find(const node_reduction *reduction, size_t element_bytes) {
    trial t;
    uint64_t candidates = 0; /* by element and combination */
    _Static_assert(KERNEL_ELEMENT_COUNT * KERNEL_COMBINATION_COUNT <= 64, "more bits");
    for (int i = 0; i < KERNEL_ELEMENT_COUNT * KERNEL_COMBINATION_COUNT; i++)
        if (kernel_element_bytes(i / KERNEL_COMBINATION_COUNT) == element_bytes)
            candidates |= 1ull << i;
    size_t numel = TRIAL_BYTES / element_bytes;
    for (uint32_t round = 0; round < TRIAL_ROUNDS && candidates; round++) {
        numbers_fill(t.a, round, 1);
        numbers_fill(t.b, round, 2);
        memset(t.expected, 0, sizeof t.expected);
        reduction->apply(reduction->context, t.expected, t.a, t.b, numel);
        for (int i = 0; i < KERNEL_ELEMENT_COUNT * KERNEL_COMBINATION_COUNT; i++) {
            if (!(candidates >> i & 1))
                continue;
            node_loop *loop = kernel_combine_find(i / KERNEL_COMBINATION_COUNT, i % KERNEL_COMBINATION_COUNT);
            if (!loop || !loop_holds(&t, loop, numel))
                candidates &= ~(1ull << i);
        }
    }
    if (!candidates)
        return NULL;
    int first = __builtin_ctzll(candidates); /* others have done the same */
    return kernel_combine_find(first / KERNEL_COMBINATION_COUNT, first % KERNEL_COMBINATION_COUNT);
}
