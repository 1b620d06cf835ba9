/* Optimizer steps in one pass: each element of the parameter, its gradient and its states is read once and written once.
 *
 * Vocabulary
 *   range   consecutive elements of one tensor, with their gradients and optimizer states
 *   tail    the last numel % 8 elements of a tensor: PyTorch's fused kernels compute them one by one, by another formula
 *   master  a float copy of a 16-bit parameter: it is stepped, and its rounded value becomes the parameter
 *
 * Arithmetic is in float, whatever the types of parameter and gradient: a gradient is widened, multiplied by `inv_scale` and
 * then by `clip` (each product rounded; 1 leaves it as it is), and negated for `maximize`. PyTorch's own operations follow, in
 * their order and with their rounding. The other numbers of a step are the caller's, computed in double as
 * PyTorch's Python code does, and rounded to float here. With float parameters and gradients every bit of the result is
 * PyTorch's (payloads of NaNs excepted), with 16-bit ones that of the float step on the widened values, rounded to nearest
 * even. The bounds of ranges, the variant and the number of threads change nothing.
 *
 * Ranges do not overlap each other. Pointers are aligned to their elements, not more. Nothing here allocates or fails. */
#ifndef CASTOR_KERNELS_OPTIMIZER_H
#define CASTOR_KERNELS_OPTIMIZER_H

#include <stdint.h>
#include "kernels.h"
#include "root.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kernel_decay {
    KERNEL_DECAY_NONE,
    KERNEL_DECAY_COUPLED,   /* gradient + decay * parameter */
    KERNEL_DECAY_DECOUPLED, /* parameter * decay, where decay is 1 - lr * weight_decay */
    KERNEL_DECAY_COUNT
} kernel_decay;

/* How a sum of a product is rounded, and in which order the operations come. What is rounded as PyTorch's kernels for CUDA do it is without the
 * tails of `fused`; kernels/cuda/step_math.h is the same for one element. */
typedef enum kernel_rounding {
    KERNEL_ROUNDS_ONCE,           /* a * b + c */
    KERNEL_ROUNDS_TWICE,          /* the product as well, as on x86 without FMA */
    KERNEL_ROUNDS_AS_CUDA,        /* foreach */
    KERNEL_ROUNDS_AS_CUDA_SINGLE, /* its loops over tensors: `root_divisor` is the inverse, and multiplied by */
    KERNEL_ROUNDS_AS_CUDA_FUSED   /* Adam: `mean_weight` is beta1, and decoupled decay lr * weight_decay */
} kernel_rounding;

enum { KERNEL_OPTIMIZER_STATES = 3 };

/* `count` elements from element `offset` on of a tensor that has `numel`. The pointers are those of the range's first element. */
typedef struct kernel_range {
    void *param;
    const void *grad;
    float *master;                          /* NULL: the parameter itself is stepped */
    float *states[KERNEL_OPTIMIZER_STATES]; /* as listed at each step */
    size_t offset, count, numel;
} kernel_range;

typedef struct kernel_step {
    int32_t param_dtype, grad_dtype; /* kernel_dtype; not KERNEL_F64 */
    int32_t decay_kind;              /* kernel_decay */
    int32_t fused;    /* as PyTorch's fused kernels; 0: as its loops over tensors and its foreach */
    int32_t rounding; /* kernel_rounding */
    int32_t maximize;
    int32_t variation; /* Adam: with the maximum of squares; SGD: Nesterov */
    int32_t unused;
    double inv_scale, clip, decay;
} kernel_step;

/* States: mean of gradients, mean of squares and, with `variation`, the largest mean of squares so far. */
typedef struct kernel_adam {
    kernel_step step;
    double mean_weight;   /* 1 - beta1 */
    double square_keep;   /* beta2 */
    double square_weight; /* 1 - beta2 */
    double root_divisor;  /* (1 - beta2 ** t) ** 0.5 */
    double epsilon;
    double negative_step; /* -(lr / (1 - beta1 ** t)) */
} kernel_adam;

/* States: the momentum; none where `momentum` is 0. */
typedef struct kernel_sgd {
    kernel_step step; /* decoupled decay is not SGD's */
    double momentum;
    double grad_weight; /* 1 - dampening */
    double negative_lr; /* -lr */
    int32_t first;      /* the momentum becomes the gradient */
    int32_t unused;
} kernel_sgd;

/* Services of the process. Each may be NULL.
 *   run    calls body(context, task) once for each task from 0 to `tasks` - 1, on any threads, and returns when all have
 *          returned; NULL, or `threads` 1: the caller's thread does all
 *   roots  for steps that are not `fused`; NULL: the processor's. PyTorch uses those of a library (root.h) */
typedef struct kernel_host {
    void (*run)(void (*body)(void *context, int task), void *context, int tasks);
    int threads;
    const kernel_roots *roots;
} kernel_host;

void kernel_adam_step(const kernel_adam *adam, const kernel_range *ranges, size_t count,
                      const kernel_host *host);
void kernel_sgd_step(const kernel_sgd *sgd, const kernel_range *ranges, size_t count,
                     const kernel_host *host);

/* ---- for the files of the optimizers ------------------------------------------------------------------------- */

/* A step over a range whose `count` is a multiple of the variant's lanes; `tail`: by the formulas of the tail; roots: as in
 * kernel_host. */
typedef void kernel_step_loop(const void *step, const kernel_range *range, bool tail,
                              const kernel_roots *roots);

/* Splits the ranges over the threads, and each piece into whole vectors, the rest and the tail. */
void kernel_step_run(kernel_step_loop *const loop_of[KERNEL_VARIANT_COUNT], const void *step,
                     const kernel_range *ranges, size_t count, const kernel_host *host);

#ifdef __cplusplus
}
#endif

#endif
