/* SGD, as torch.optim computes it. */
#define LOOP  sgd
#define LOOPS "sgd_loops.inc"
#include "loop_variants.inc"

void kernel_sgd_step(const kernel_sgd *sgd, const kernel_range *ranges, size_t count,
                     const kernel_host *host) {
    kernel_step_run(loop_of, sgd, ranges, count, host);
}
