/* One element of an optimizer step, in the order and with the rounding of PyTorch's CUDA implementations; for C++ and nvcc.
 *
 * Every operation is written so that no compiler joins or separates them: MULTIPLIED, ADDED, DIVIDED and ROOT_OF are rounded once,
 * FUSED_SUM is a * b + c, rounded once. Which are joined in PyTorch's own device code was read from that of torch 2.11
 * (docs/gpu.md); another version may differ, and the self-check at run time tells.
 *
 * The order is not that of the CPU's kernels (kernels/adam_loops.inc). */
#ifndef CASTOR_KERNELS_CUDA_STEP_MATH_H
#define CASTOR_KERNELS_CUDA_STEP_MATH_H

#include "arguments.h"

#ifdef __CUDACC__
#define MULTIPLIED(a, b)   __fmul_rn(a, b)
#define ADDED(a, b)        __fadd_rn(a, b)
#define DIVIDED(a, b)      __fdiv_rn(a, b)
#define FUSED_SUM(a, b, c) __fmaf_rn(a, b, c)
#define ROOT_OF(a)         __fsqrt_rn(a)
#define POWER_OF(a, b)     powf(a, b)
#else /* built without joining products and sums */
#define MULTIPLIED(a, b)   ((a) * (b))
#define ADDED(a, b)        ((a) + (b))
#define DIVIDED(a, b)      ((a) / (b))
#define FUSED_SUM(a, b, c) __builtin_fmaf(a, b, c)
#define ROOT_OF(a)         __builtin_sqrtf(a)
#define POWER_OF(a, b)     __builtin_powf(a, b)
#endif

/* What a thread needs of the numbers of a step, rounded to float. */
typedef struct cuda_step_numbers {
    float inv_scale, clip, grad_scale, lr, decay;
    bool divided; /* by grad_scale */
    bool negated, coupled, decoupled, fused, single;
} cuda_step_numbers;

typedef struct cuda_adam_numbers {
    cuda_step_numbers step;
    float beta1, beta2, mean_weight, square_weight, epsilon;
    float root_scale, step_size; /* fused: lr / (1 - beta1 ** t); else the negative of it */
    bool maximum;
} cuda_adam_numbers;

typedef struct cuda_sgd_numbers {
    cuda_step_numbers step;
    float momentum, grad_weight;
    bool first, moving, nesterov;
} cuda_sgd_numbers;

CUDA_BOTH cuda_step_numbers cuda_step_prepare(const cuda_step *step) {
    cuda_step_numbers use;
    use.fused = step->mode == CUDA_FUSED;
    use.single = step->mode == CUDA_SINGLE;
    use.inv_scale = step->inv_scale;
    use.clip = step->clip_pointer ? *step->clip_pointer : step->clip;
    use.divided = step->grad_scale != 0;
    use.grad_scale = step->grad_scale ? *step->grad_scale : 1.0f;
    use.lr = step->lr_pointer ? *step->lr_pointer : (float)step->lr;
    use.decay = use.fused ? (float)step->weight_decay : step->decay;
    use.negated = step->maximize != 0;
    use.coupled = step->decay_kind == CUDA_COUPLED;
    use.decoupled = step->decay_kind == CUDA_DECOUPLED;
    if (use.fused && use.decoupled)
        use.decay = MULTIPLIED(use.lr, use.decay);
    return use;
}

CUDA_BOTH cuda_adam_numbers cuda_adam_prepare(const cuda_adam *adam, const cuda_step_tensor *tensor) {
    cuda_adam_numbers use;
    use.step = cuda_step_prepare(&adam->step);
    use.beta1 = (float)adam->beta1;
    use.beta2 = (float)adam->beta2;
    use.mean_weight = (float)(1.0 - adam->beta1);
    use.square_weight = (float)(1.0 - adam->beta2);
    use.epsilon = (float)adam->epsilon;
    use.maximum = adam->step.variation != 0;
    if (use.step.fused) {
        const float count = *tensor->step;
        use.step_size = DIVIDED(use.step.lr, ADDED(1.0f, -POWER_OF(use.beta1, count)));
        use.root_scale = ROOT_OF(ADDED(1.0f, -POWER_OF(use.beta2, count)));
    } else {
        use.step_size = tensor->negative_step;
        use.root_scale = tensor->root_scale;
    }
    return use;
}

CUDA_BOTH cuda_sgd_numbers cuda_sgd_prepare(const cuda_sgd *sgd) {
    cuda_sgd_numbers use;
    use.step = cuda_step_prepare(&sgd->step);
    use.momentum = (float)sgd->momentum;
    use.grad_weight = use.step.fused ? ADDED(1.0f, -(float)sgd->dampening) : (float)(1.0 - sgd->dampening);
    use.moving = sgd->momentum != 0;
    use.first = sgd->first != 0;
    use.nesterov = sgd->step.variation != 0;
    return use;
}

/* The gradient as the step uses it. *stored: as a fused step leaves it in memory. */
CUDA_BOTH float cuda_grad_of(const cuda_step_numbers *use, float grad, float param, float *stored) {
    if (use->divided)
        grad = DIVIDED(grad, use->grad_scale);
    *stored = grad;
    grad = MULTIPLIED(MULTIPLIED(grad, use->inv_scale), use->clip);
    if (use->negated)
        grad = -grad;
    return use->coupled ? FUSED_SUM(param, use->decay, grad) : grad;
}

/* The parameter after its step; the states are written. */
CUDA_BOTH float cuda_adam_element(const cuda_adam_numbers *use, float param, float grad, float *mean,
                                  float *square, float *largest, float *stored) {
    grad = cuda_grad_of(&use->step, grad, param, stored);
    float root, change;
    if (use->step.fused) {
        if (use->step.decoupled)
            param = FUSED_SUM(-use->step.decay, param, param);
        const float squared = MULTIPLIED(grad, grad);
        *mean = FUSED_SUM(use->beta1, *mean, FUSED_SUM(-use->beta1, grad, grad));
        *square = FUSED_SUM(use->beta2, *square, FUSED_SUM(-use->beta2, squared, squared));
        float under = *square;
        if (use->maximum)
            under = *largest = *largest < *square ? *square : *largest;
        root = ADDED(DIVIDED(ROOT_OF(under), use->root_scale), use->epsilon);
        change = DIVIDED(MULTIPLIED(use->step_size, *mean), root);
        return ADDED(param, -change);
    }
    if (use->step.decoupled)
        param = MULTIPLIED(param, use->step.decay);
    const float weight = use->mean_weight, away = ADDED(grad, -*mean);
    *mean = weight < 0.5f && weight > -0.5f ? FUSED_SUM(weight, away, *mean)
                                            : FUSED_SUM(-ADDED(1.0f, -weight), away, grad);
    const float kept = MULTIPLIED(*square, use->beta2);
    *square = use->square_weight == 1.0f ? FUSED_SUM(grad, grad, kept)
                                         : FUSED_SUM(use->square_weight, MULTIPLIED(grad, grad), kept);
    float under = *square;
    if (use->maximum)
        under = *largest = *largest != *largest || *largest > *square ? *largest : *square;
    root = ROOT_OF(under);
    root = use->step.single ? MULTIPLIED(root, use->root_scale) : DIVIDED(root, use->root_scale);
    change = DIVIDED(*mean, ADDED(root, use->epsilon));
    return use->step_size == 1.0f ? ADDED(param, change) : FUSED_SUM(use->step_size, change, param);
}

CUDA_BOTH float cuda_sgd_element(const cuda_sgd_numbers *use, float param, float grad, float *moment,
                                 float *stored) {
    grad = cuda_grad_of(&use->step, grad, param, stored);
    if (use->moving) {
        *moment = use->first ? grad : FUSED_SUM(use->grad_weight, grad, MULTIPLIED(use->momentum, *moment));
        grad = use->nesterov ? FUSED_SUM(*moment, use->momentum, grad) : *moment;
    }
    return FUSED_SUM(-use->step.lr, grad, param);
}

#endif
