/* What the kernels compute from made numbers, one hash for each way of calling them: the same lines on every architecture. Every
 * variant that the processor has must give the reference's. Exit status 1: one does not. */
#include <stdio.h>
#include <string.h>
#include "kernels/optimizer.h"

enum { COUNT = 4099, ARRAYS = 6 };

static float arrays[ARRAYS][COUNT];
static uint64_t state;
static int failures;

static uint32_t drawn(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33);
}

/* From -1 to 1, and now and then one of another size, or zero. */
static float number(void) {
    float value = (float)((int32_t)(drawn() % 2000001) - 1000000) * 1e-6f;
    uint32_t kind = drawn() % 16;
    return kind == 0 ? value * 1e-30f : kind == 1 ? value * 1e20f : kind == 2 ? 0.0f : value;
}

static void halves(void *out, int dtype) {
    uint16_t *half = out;
    for (int i = 0; i < COUNT; i++) { /* neither an infinity nor what is no number */
        uint16_t bits = (uint16_t)drawn();
        half[i] = dtype == KERNEL_F16 ? bits & 0xBBFF : bits & 0xBFFF;
    }
}

static void fill(int param_dtype, int grad_dtype) {
    state = 7;
    for (int a = 0; a < ARRAYS; a++)
        for (int i = 0; i < COUNT; i++)
            arrays[a][i] = a > 3 && number() < 0 ? 0.25f : number();
    for (int i = 0; i < COUNT; i++)
        for (int a = 4; a < ARRAYS; a++) /* squares */
            arrays[a][i] = arrays[a][i] < 0 ? -arrays[a][i] : arrays[a][i];
    if (param_dtype != KERNEL_F32)
        halves(arrays[0], param_dtype);
    if (grad_dtype != KERNEL_F32)
        halves(arrays[1], grad_dtype);
}

static uint64_t hash_of_arrays(void) {
    uint64_t hash = 14695981039346656037ull;
    const unsigned char *bytes = (const unsigned char *)arrays;
    for (size_t i = 0; i < sizeof arrays; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

static void name_call(FILE *to, const char *what, const int *ways, int count) {
    fprintf(to, "%s", what);
    for (int i = 0; i < count; i++)
        fprintf(to, " %d", ways[i]);
}

static void say(const char *what, const int *ways, int count, void (*run)(const int *ways)) {
    uint64_t first = 0;
    for (int variant = 0; variant < KERNEL_VARIANT_COUNT; variant++) {
        if (!kernel_variant_select((kernel_variant)variant))
            continue;
        run(ways);
        uint64_t hash = hash_of_arrays();
        if (variant == KERNEL_VARIANT_REFERENCE)
            first = hash;
        else if (hash != first) {
            name_call(stderr, what, ways, count);
            fprintf(stderr, ": %s has other bits than the reference\n",
                    kernel_variant_name((kernel_variant)variant));
            failures++;
        }
    }
    name_call(stdout, what, ways, count);
    printf(": %016llx\n", (unsigned long long)first);
}

/* ways: optimizer, type of parameters, type of gradients, flags */
static void step(const int *ways) {
    const int flags = ways[3];
    const kernel_step common = {.param_dtype = ways[1],
                                .grad_dtype = ways[2],
                                .decay_kind = flags & 1 ? KERNEL_DECAY_COUPLED : KERNEL_DECAY_NONE,
                                .fused = flags >> 1 & 1,
                                .rounding = flags >> 2 & 1,
                                .variation = flags >> 3 & 1,
                                .maximize = flags >> 4 & 1,
                                .inv_scale = 0.5,
                                .clip = 0.75,
                                .decay = 0.01};
    fill(ways[1], ways[2]);
    kernel_range range = {.param = arrays[0],
                          .grad = arrays[1],
                          .master = flags >> 5 & 1 ? arrays[2] : NULL,
                          .states = {arrays[3], arrays[4], arrays[5]},
                          .count = COUNT,
                          .numel = COUNT};
    switch (ways[0]) {
    case 0:
        kernel_adam_step(&(kernel_adam){.step = common,
                                        .mean_weight = 0.1,
                                        .square_keep = 0.999,
                                        .square_weight = 0.001,
                                        .root_divisor = 0.03,
                                        .epsilon = 1e-8,
                                        .negative_step = -0.01},
                         &range, 1, NULL);
        break;
    default:
        kernel_sgd_step(&(kernel_sgd){.step = common, .momentum = 0.9, .grad_weight = 1, .negative_lr = -0.1},
                        &range, 1, NULL);
    }
}

/* ways: type */
static void scales(const int *ways) {
    kernel_dtype dtype = (kernel_dtype)ways[0];
    const size_t count = dtype == KERNEL_F64 ? COUNT / 2 : COUNT;
    fill(dtype == KERNEL_F64 ? KERNEL_F32 : ways[0], dtype == KERNEL_F64 ? KERNEL_F32 : ways[0]);
    if (dtype == KERNEL_F64)
        for (size_t i = 0; i < count; i++) { /* aligned well enough for what is tested */
            double pair[2] = {number(), number()};
            memcpy((char *)arrays[0] + i * sizeof(double), &pair[0], sizeof(double));
            memcpy((char *)arrays[1] + i * sizeof(double), &pair[1], sizeof(double));
        }
    kernel_scale_add(dtype, arrays[0], arrays[1], count, 0.3);
    kernel_scale_store(dtype, arrays[2], arrays[1], count, 1.7);
}

/* ways: type, operation */
static void combines(const int *ways) {
    kernel_combine *combine = kernel_combine_find((kernel_element)ways[0], (kernel_combination)ways[1]);
    const bool half = ways[0] == KERNEL_ELEMENT_F16 || ways[0] == KERNEL_ELEMENT_BF16;
    const int dtype = ways[0] == KERNEL_ELEMENT_F16 ? KERNEL_F16 : half ? KERNEL_BF16 : KERNEL_F32;
    fill(dtype, dtype);
    if (combine)
        combine(arrays[2], arrays[0], arrays[1],
                sizeof arrays[0] / kernel_element_bytes((kernel_element)ways[0]) - (half ? COUNT : 0));
}

/* ways: type. A third of the wide values are as they round. */
static void settles(const int *ways) {
    fill(KERNEL_F32, ways[0]);
    const uint16_t *narrow = (const uint16_t *)arrays[1];
    kernel_settle((kernel_dtype)ways[0], arrays[2], narrow, COUNT);
    for (int i = 0; i < COUNT; i++)
        arrays[0][i] = i % 3 ? arrays[0][i] : arrays[2][i] * (1 + 0x1p-13f);
    kernel_settle((kernel_dtype)ways[0], arrays[0], narrow, COUNT);
}

int main(void) {
    for (int optimizer = 0; optimizer < 2; optimizer++)
        for (int param = 0; param < KERNEL_DTYPE_COUNT; param++)
            for (int grad = 0; grad < KERNEL_DTYPE_COUNT; grad++)
                for (int flags = 0; flags < 64 && param != KERNEL_F64 && grad != KERNEL_F64; flags++)
                    say("step", (int[]){optimizer, param, grad, flags}, 4, step);
    for (int dtype = 0; dtype < KERNEL_DTYPE_COUNT; dtype++)
        say("scale", &dtype, 1, scales);
    for (int dtype = KERNEL_F16; dtype <= KERNEL_BF16; dtype++)
        say("settle", &dtype, 1, settles);
    for (int element = 0; element < KERNEL_ELEMENT_COUNT; element++)
        for (int operation = 0; operation < KERNEL_COMBINATION_COUNT; operation++)
            if (kernel_combine_find((kernel_element)element, (kernel_combination)operation))
                say("combine", (int[]){element, operation}, 2, combines);
    return failures != 0;
}
