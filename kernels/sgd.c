/* SGD, as torch.optim computes it. */
#include "convert.h"
#include "fused.h"
#include "optimizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NAME(x) reference_##x
#define TARGET
#define LANES 1
#include "sgd_loops.inc"

#if defined(__x86_64__)
#define NAME(x) avx2_##x
#define TARGET  __attribute__((target("avx2,fma,f16c")))
#define LANES   8
#include "sgd_loops.inc"

#define NAME(x) avx512_##x
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")))
#define LANES   16
#include "sgd_loops.inc"
#endif

static kernel_step_loop *const loop_of[KERNEL_VARIANT_COUNT] = {
    [KERNEL_VARIANT_REFERENCE] = reference_sgd,
#if defined(__x86_64__)
    [KERNEL_VARIANT_AVX2] = avx2_sgd,
    [KERNEL_VARIANT_AVX512] = avx512_sgd,
#endif
};

void kernel_sgd_step(const kernel_sgd *sgd, const kernel_range *ranges, size_t count,
                     const kernel_host *host) {
    kernel_step_run(loop_of, sgd, ranges, count, host);
}
