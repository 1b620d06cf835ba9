/* Adam and AdamW, as torch.optim computes them. */
enum { ROOT_BLOCK = 512 };

#define LOOP  adam
#define LOOPS "adam_loops.inc"
#include "loop_variants.inc"

void kernel_adam_step(const kernel_adam *adam, const kernel_range *ranges, size_t count,
                      const kernel_host *host) {
    kernel_step_run(loop_of, adam, ranges, count, host);
}
