/* A launch-bound loop: STEPS steps of 2000 kernel launches each, through the runtime's exported function. Prints
 * the time of a launch in ns, per step: one line each; at last the processor time of a launch, of all threads. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "shims/cuda/types.h"

#define LAUNCHES 2000

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);

static double now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100, argument = 1;
    void *arguments[] = {&argument};
    dim3 one = {1, 1, 1};
    double cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int step = 0; step < steps; step++) {
        double begin = now_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < LAUNCHES; i++)
            if (cudaLaunchKernel((const void *)now_ns, one, one, arguments, 0, NULL) != cudaSuccess)
                return 1;
        printf("%.1f\n", (now_ns(CLOCK_MONOTONIC) - begin) / LAUNCHES);
        cudaDeviceSynchronize();
    }
    printf("%.1f\n", (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) / LAUNCHES / steps);
    return 0;
}
