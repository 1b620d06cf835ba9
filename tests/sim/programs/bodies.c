/* Bodies for kernels, as SIM_KERNELS takes them. */
#include <stddef.h>

void sim_kernel_add(const unsigned *grid, const unsigned *block, void **arguments);
void sim_kernel_through(const unsigned *grid, const unsigned *block, void **arguments);

void sim_kernel_add(const unsigned *grid, const unsigned *block, void **arguments) {
    int *out = *(int **)arguments[0];
    const int *in = *(const int **)arguments[1];
    int number = *(int *)arguments[2];

    for (size_t i = 0; i < (size_t)grid[0] * block[0]; i++)
        out[i] = in[i] + number;
}

/* The same through tables of pointers in the device's memory. */
void sim_kernel_through(const unsigned *grid, const unsigned *block, void **arguments) {
    int *out = **(int ***)arguments[0];
    const int *in = **(const int ***)arguments[1];
    int number = *(int *)arguments[2];

    for (size_t i = 0; i < (size_t)grid[0] * block[0]; i++)
        out[i] = in[i] + number;
}
