/* Lion: the sign of an interpolated momentum, as operations of PyTorch compute it (see castor.h). */
#define LOOP  lion
#define LOOPS "lion_loops.inc"
#include "loop_variants.inc"

void kernel_lion_step(const kernel_lion *lion, const kernel_range *ranges, size_t count,
                      const kernel_host *host) {
    kernel_step_run(loop_of, lion, ranges, count, host);
}
