/* Preloaded before everything else: what the launches of a process take, from the caller's side, in the libraries behind it. Beside a
 * run without hooks, the difference is what these cost, and nothing that PyTorch does between launches is in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

uint64_t launch_clock_ns, launch_clock_count; /* of the thread that launches, the only one here */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Launches of the runtime all have the form of one of these: the words are passed on as they come. */
typedef struct dim3_words {
    unsigned x, y, z;
} dim3_words;

#define CLOCK(name, parameters, arguments)                                                                   \
    int name parameters {                                                                                    \
        static int(*next) parameters;                                                                        \
        if (!next)                                                                                           \
            next = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                               \
        uint64_t begin = now_ns();                                                                           \
        int status = next arguments;                                                                         \
        launch_clock_ns += now_ns() - begin;                                                                 \
        launch_clock_count++;                                                                                \
        return status;                                                                                       \
    }

CLOCK(cudaLaunchKernel,
      (const void *kernel, dim3_words grid, dim3_words block, void **arguments, uint64_t shared,
       void *stream),
      (kernel, grid, block, arguments, shared, stream))
CLOCK(__cudaLaunchKernel,
      (const void *kernel, dim3_words grid, dim3_words block, void **arguments, uint64_t shared,
       void *stream),
      (kernel, grid, block, arguments, shared, stream))
CLOCK(cudaLaunchKernelExC, (const void *config, const void *kernel, void **arguments),
      (config, kernel, arguments))
