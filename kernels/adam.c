/* Adam and AdamW, as torch.optim computes them. */
#include "convert.h"
#include "fused.h"
#include "optimizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROOT_BLOCK = 512 };

#define NAME(x) reference_##x
#define TARGET
#define LANES 1
#include "adam_loops.inc"

#if defined(__x86_64__)
#define NAME(x) avx2_##x
#define TARGET  __attribute__((target("avx2,fma,f16c")))
#define LANES   8
#include "adam_loops.inc"

#define NAME(x) avx512_##x
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")))
#define LANES   16
#include "adam_loops.inc"
#endif

static kernel_step_loop *const loop_of[KERNEL_VARIANT_COUNT] = {
    [KERNEL_VARIANT_REFERENCE] = reference_adam,
#if defined(__x86_64__)
    [KERNEL_VARIANT_AVX2] = avx2_adam,
    [KERNEL_VARIANT_AVX512] = avx512_adam,
#endif
};

void kernel_adam_step(const kernel_adam *adam, const kernel_range *ranges, size_t count,
                      const kernel_host *host) {
    kernel_step_run(loop_of, adam, ranges, count, host);
}
