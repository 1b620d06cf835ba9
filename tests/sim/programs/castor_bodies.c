/* Bodies of Castor's CUDA kernels (kernels/cuda), as SIM_KERNELS takes them. A simulated device computes as PyTorch does on the CPU, so the steps
 * are those of Castor's kernels for the CPU, which the preloaded libcastor.so has.
 *
 * SIM_BODIES_WRONG=1: a step adds a little to each parameter, for the test of the self-check. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "castor.h"
#include "kernels/convert.h"
#include "kernels/cuda/arguments.h"

#define BODY(name)                                                                                           \
    void sim_kernel_castor_##name(const unsigned *grid, const unsigned *block, void **arguments);            \
    void sim_kernel_castor_##name(const unsigned *grid, const unsigned *block, void **arguments)

static float load(const void *from, size_t i, int dtype) {
    if (dtype == CUDA_F32)
        return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return dtype == CUDA_BF16 ? kernel_float_of_bf16(half) : kernel_float_of_f16(half);
}

static void store(void *to, size_t i, int dtype, float x) {
    if (dtype == CUDA_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = dtype == CUDA_BF16 ? kernel_bf16_of_float(x) : kernel_f16_of_float(x);
}

static float *widened(const void *from, size_t count, int dtype) {
    float *out = malloc((count + 1) * sizeof *out);
    for (size_t i = 0; out && i < count; i++)
        out[i] = load(from, i, dtype);
    return out;
}

static void narrowed(void *to, float *from, size_t count, int dtype) {
    for (size_t i = 0; from && i < count; i++)
        store(to, i, dtype, from[i]);
    free(from);
}

/* Of libcastor.so, which is in front of the simulation. */
static void find(const char *name, void *out) {
    void *symbol = dlsym(RTLD_DEFAULT, name);
    if (!symbol) {
        fprintf(stderr, "castor_bodies: no %s\n", name);
        abort();
    }
    memcpy(out, &symbol, sizeof symbol);
}

static castor_step step_of(const cuda_step *from, double lr, int dtype) {
    return (castor_step){.param_dtype = dtype,
                         .grad_dtype = from->grad_dtype,
                         .decay_kind = from->decay_kind,
                         .fused = from->mode == CUDA_FUSED,
                         .maximize = from->maximize,
                         .variation = from->variation,
                         .inv_scale = from->inv_scale,
                         .clip = from->clip_pointer ? *from->clip_pointer : from->clip,
                         .decay = from->decay_kind == CUDA_DECOUPLED ? 1 - lr * from->weight_decay
                                                                     : from->weight_decay};
}

typedef void step_call(const void *numbers, const cuda_step_tensor *tensor, const castor_step_range *range,
                       double lr, int dtype);

/* Every tensor as a whole: blocks share the work of one, and here the first does all. */
static void steps(const cuda_step *step, const void *numbers, const cuda_step_list *list, int dtype,
                  step_call *call) {
    if (step->found_inf && *step->found_inf == 1)
        return;
    const double lr = step->lr_pointer ? *step->lr_pointer : step->lr;
    for (uint32_t i = 0; i < list->count; i++) {
        cuda_step_tensor tensor = list->tensors[i];
        if (step->grad_scale)
            for (size_t at = 0; at < tensor.numel; at++)
                store(tensor.grad, at, step->grad_dtype,
                      load(tensor.grad, at, step->grad_dtype) / *step->grad_scale);
        castor_step_range range = {.param = tensor.param,
                                   .grad = tensor.grad,
                                   .states = {tensor.states[0], tensor.states[1], tensor.states[2]},
                                   .count = tensor.numel,
                                   .numel = tensor.numel};
        int published = CUDA_F32;
        if (tensor.working) {
            range.master = tensor.param;
            range.param = tensor.working;
            published = step->working_dtype;
        }
        if (dtype != CUDA_F32) {
            range.param = widened(tensor.param, tensor.numel, dtype);
            for (int s = 0; s < CUDA_STEP_STATES; s++)
                range.states[s] = tensor.states[s] ? widened(tensor.states[s], tensor.numel, dtype) : NULL;
        }
        call(numbers, &tensor, &range, lr, published);
        if (getenv("SIM_BODIES_WRONG"))
            for (size_t at = 0; at < tensor.numel; at++)
                ((float *)range.param)[at] += 1e-3f;
        if (dtype != CUDA_F32) {
            narrowed(tensor.param, range.param, tensor.numel, dtype);
            for (int s = 0; s < CUDA_STEP_STATES; s++)
                if (tensor.states[s])
                    narrowed(tensor.states[s], range.states[s], tensor.numel, dtype);
        }
    }
}

static void adam_call(const void *numbers_, const cuda_step_tensor *tensor, const castor_step_range *range,
                      double lr, int dtype) {
    castor_status (*run)(const castor_adam *, const castor_step_range *, uint32_t, int);
    const cuda_adam *numbers = numbers_;
    castor_adam adam = {.step = step_of(&numbers->step, lr, dtype),
                        .mean_weight = 1 - numbers->beta1,
                        .square_keep = numbers->beta2,
                        .square_weight = 1 - numbers->beta2,
                        .root_divisor =
                            numbers->step.mode == CUDA_SINGLE ? 1 / tensor->root_scale : tensor->root_scale,
                        .epsilon = numbers->epsilon,
                        .negative_step = tensor->negative_step};
    if (numbers->step.mode == CUDA_FUSED) {
        adam.root_divisor = sqrt(1 - pow(numbers->beta2, *tensor->step));
        adam.negative_step = -(lr / (1 - pow(numbers->beta1, *tensor->step)));
    }
    find("castor_optimizer_adam", &run);
    run(&adam, range, 1, 1);
}

static void sgd_call(const void *numbers_, const cuda_step_tensor *tensor, const castor_step_range *range,
                     double lr, int dtype) {
    castor_status (*run)(const castor_sgd *, const castor_step_range *, uint32_t, int);
    const cuda_sgd *numbers = numbers_;
    castor_sgd sgd = {.step = step_of(&numbers->step, lr, dtype),
                      .momentum = numbers->momentum,
                      .grad_weight = 1 - numbers->dampening,
                      .negative_lr = -lr,
                      .first = numbers->first};
    (void)tensor;
    find("castor_optimizer_sgd", &run);
    run(&sgd, range, 1, 1);
}

#define STEP_BODY(kind, name, dtype)                                                                         \
    BODY(kind##_##name) {                                                                                    \
        const cuda_##kind *numbers = arguments[0];                                                           \
        (void)grid, (void)block;                                                                             \
        steps(&numbers->step, numbers, arguments[1], dtype, kind##_call);                                    \
    }
STEP_BODY(adam, f32, CUDA_F32)
STEP_BODY(adam, mixed, CUDA_F32)
STEP_BODY(adam, bf16, CUDA_BF16)
STEP_BODY(adam, f16, CUDA_F16)
STEP_BODY(sgd, f32, CUDA_F32)
STEP_BODY(sgd, mixed, CUDA_F32)
STEP_BODY(sgd, bf16, CUDA_BF16)
STEP_BODY(sgd, f16, CUDA_F16)
