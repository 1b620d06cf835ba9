/* The probe's kernels on simulated devices, as SIM_KERNELS takes them (docs/rehearse.md). */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ARGUMENT(type, number) (*(type *)arguments[number])
#define KERNEL(name)                                                                                         \
    void sim_kernel_##name(const unsigned *grid, const unsigned *block, void **arguments);                   \
    void sim_kernel_##name(const unsigned *grid, const unsigned *block, void **arguments)

static uint64_t word_of(uint64_t seed, uint64_t index) {
    uint64_t x = (index + seed) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

static void spin(uint64_t ns) {
    struct timespec wait = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&wait, NULL);
}

KERNEL(probe_fill) {
    (void)grid, (void)block;
    uint64_t *to = ARGUMENT(uint64_t *, 0), keep = ARGUMENT(uint64_t, 3), set = ARGUMENT(uint64_t, 4);
    for (uint64_t i = 0; i < ARGUMENT(uint64_t, 1); i++)
        to[i] = (word_of(ARGUMENT(uint64_t, 2), i) & keep) | set;
}

KERNEL(probe_wrong) {
    (void)grid, (void)block;
    for (uint64_t i = 0; i < ARGUMENT(uint64_t, 1); i++)
        *ARGUMENT(uint64_t *, 3) += ARGUMENT(uint64_t *, 0)[i] != word_of(ARGUMENT(uint64_t, 2), i);
}

KERNEL(probe_sum) {
    uint64_t sum = 0;
    (void)grid, (void)block;
    for (uint64_t i = 0; i < ARGUMENT(uint64_t, 1); i++)
        sum ^= ARGUMENT(uint64_t *, 0)[i];
    *ARGUMENT(uint64_t *, 2) = sum;
}

KERNEL(probe_spin) {
    (void)grid, (void)block;
    spin(ARGUMENT(uint64_t, 0));
}

KERNEL(probe_spin_write) {
    (void)grid, (void)block;
    spin(ARGUMENT(uint64_t, 0));
    *ARGUMENT(uint64_t *, 1) = ARGUMENT(uint64_t, 0);
}
