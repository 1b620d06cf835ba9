/* Lion: the sign of an interpolated momentum, as operations of PyTorch compute it (see castor.h). */
#include "convert.h"
#include "fused.h"
#include "optimizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define NAME(x) reference_##x
#define TARGET
#define LANES 1
#include "lion_loops.inc"

#if defined(__x86_64__)
#define NAME(x) avx2_##x
#define TARGET  __attribute__((target("avx2,fma,f16c")))
#define LANES   8
#include "lion_loops.inc"

#define NAME(x) avx512_##x
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")))
#define LANES   16
#include "lion_loops.inc"
#endif

static kernel_step_loop *const loop_of[KERNEL_VARIANT_COUNT] = {
    [KERNEL_VARIANT_REFERENCE] = reference_lion,
#if defined(__x86_64__)
    [KERNEL_VARIANT_AVX2] = avx2_lion,
    [KERNEL_VARIANT_AVX512] = avx512_lion,
#endif
};

void kernel_lion_step(const kernel_lion *lion, const kernel_range *ranges, size_t count,
                      const kernel_host *host) {
    kernel_step_run(loop_of, lion, ranges, count, host);
}
