/* The exported functions about optimizer steps: what they are given is checked, and PyTorch's threads are found. */
#include "castor.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "base/error.h"
#include "kernels/optimizer.h"
#include "optimizer_exports.h"
#include "same.h"

SAME(castor_step_range, kernel_range, numel);
SAME(castor_step, kernel_step, decay);
SAME(castor_adam, kernel_adam, negative_step);
SAME(castor_sgd, kernel_sgd, first);
EQUAL(CASTOR_DTYPE_F32, KERNEL_F32);
EQUAL(CASTOR_DTYPE_F16, KERNEL_F16);
EQUAL(CASTOR_DTYPE_BF16, KERNEL_BF16);
EQUAL(CASTOR_DECAY_DECOUPLED, KERNEL_DECAY_DECOUPLED);
EQUAL(CASTOR_ROUNDS_AS_CUDA_FUSED, KERNEL_ROUNDS_AS_CUDA_FUSED);

#define TORCH_CPU "libtorch_cpu.so"

/* What compilers call for a parallel region; every OpenMP library that PyTorch is built with has it. */
typedef void parallel_function(void (*body)(void *), void *context, unsigned threads, unsigned flags);
/* MKL's square roots of floats, with `int` for its integers as PyTorch is built. */
typedef void root_function(int count, const float *values, float *roots, long long mode);

/* As PyTorch asks for: of high accuracy, denormals as they are, no errors reported. */
#define ROOT_MODE (0x2 | 0x140000 | 0x100)

static struct torch_functions {
    _Atomic(parallel_function *) parallel;
    _Atomic(root_function *) root;
    atomic_int root_kind; /* kernel_root_kind */
    atomic_bool looked;
} torch;

static void find_roots(float *values, size_t count) {
    atomic_load_explicit(&torch.root, memory_order_relaxed)((int)count, values, values, ROOT_MODE);
}

/* Before PyTorch is there, nothing is noted. */
static void find_functions(void) {
    if (atomic_load_explicit(&torch.looked, memory_order_acquire))
        return;
    void *library = dlopen(TORCH_CPU, RTLD_NOLOAD | RTLD_LAZY);
    if (!library)
        return;
    atomic_store(&torch.parallel, (parallel_function *)dlsym(library, "GOMP_parallel"));
    atomic_store(&torch.root, (root_function *)dlsym(library, "vmsSqrt"));
    if (atomic_load(&torch.root))
        atomic_store(&torch.root_kind, kernel_roots_find(find_roots).kind);
    atomic_store_explicit(&torch.looked, true, memory_order_release);
    dlclose(library); /* PyTorch is never unloaded */
}

typedef struct parallel_tasks {
    void (*body)(void *context, int task);
    void *context;
    int tasks;
    atomic_int next;
} parallel_tasks;

/* However many threads come: within another parallel region it is one. */
static void take_tasks(void *all_) {
    parallel_tasks *all = all_;
    for (int task; (task = atomic_fetch_add_explicit(&all->next, 1, memory_order_relaxed)) < all->tasks;)
        all->body(all->context, task);
}

static void run_tasks(void (*body)(void *context, int task), void *context, int tasks) {
    parallel_tasks all = {.body = body, .context = context, .tasks = tasks};
    parallel_function *parallel = atomic_load_explicit(&torch.parallel, memory_order_relaxed);
    if (parallel)
        parallel(take_tasks, &all, (unsigned)tasks, 0);
    else
        take_tasks(&all);
}

/* A second pool of threads would compete with PyTorch's for the processors. */
static kernel_host host_of(int threads, kernel_roots *roots) {
    find_functions();
    *roots = (kernel_roots){.function = find_roots, .kind = (kernel_root_kind)atomic_load(&torch.root_kind)};
    return (kernel_host){
        .run = run_tasks, .threads = threads, .roots = atomic_load(&torch.root) ? roots : NULL};
}

static bool dtype_known(int32_t dtype) {
    return dtype == CASTOR_DTYPE_F32 || dtype == CASTOR_DTYPE_F16 || dtype == CASTOR_DTYPE_BF16;
}

static castor_status check_step(const castor_step *step) {
    if (!dtype_known(step->param_dtype) || !dtype_known(step->grad_dtype))
        return error_set(CASTOR_ERR_ARGUMENT,
                         "optimizer step: parameters of type %d and gradients of type %d; expected float "
                         "(0), half (2) or bfloat16 (3)",
                         step->param_dtype, step->grad_dtype);
    if (step->rounding < 0 || step->rounding > KERNEL_ROUNDS_AS_CUDA_FUSED)
        return error_set(CASTOR_ERR_ARGUMENT, "optimizer step: there is no rounding of kind %d",
                         step->rounding);
    if (step->rounding >= KERNEL_ROUNDS_AS_CUDA && step->fused)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "optimizer step: rounding as on CUDA devices is without `fused`");
    if (step->decay_kind < 0 || step->decay_kind >= KERNEL_DECAY_COUNT)
        return error_set(CASTOR_ERR_ARGUMENT, "optimizer step: there is no decay of kind %d",
                         step->decay_kind);
    return CASTOR_OK;
}

/* The first `states` of each range are needed. */
static castor_status check_ranges(const castor_step_range *ranges, uint32_t count, int states) {
    for (uint32_t i = 0; i < count; i++) {
        const castor_step_range *range = &ranges[i];
        if (range->offset > range->numel || range->count > range->numel - range->offset)
            return error_set(
                CASTOR_ERR_ARGUMENT,
                "optimizer step: range %u, %zu elements from %zu on, is beyond its tensor of %zu", i,
                range->count, range->offset, range->numel);
        bool missing = !range->param || !range->grad;
        for (int state = 0; state < states; state++)
            missing |= !range->states[state];
        if (missing && range->count)
            return error_set(
                CASTOR_ERR_ARGUMENT,
                "optimizer step: range %u lacks its parameter, its gradient or one of its %d states", i,
                states);
    }
    return CASTOR_OK;
}

castor_status optimizer_check_adam(const castor_adam *adam, const castor_step_range *ranges, uint32_t count) {
    castor_status status = check_step(&adam->step);
    return status ? status : check_ranges(ranges, count, adam->step.variation ? 3 : 2);
}

castor_status optimizer_check_sgd(const castor_sgd *sgd, const castor_step_range *ranges, uint32_t count) {
    castor_status status = check_step(&sgd->step);
    if (status == CASTOR_OK && sgd->step.decay_kind == CASTOR_DECAY_DECOUPLED)
        status = error_set(CASTOR_ERR_ARGUMENT, "optimizer step: SGD has no decoupled decay");
    return status ? status : check_ranges(ranges, count, sgd->momentum != 0 ? 1 : 0);
}

castor_status castor_optimizer_adam(const castor_adam *adam, const castor_step_range *ranges, uint32_t count,
                                    int threads) {
    castor_status status = optimizer_check_adam(adam, ranges, count);
    kernel_roots roots;
    kernel_host host = host_of(threads, &roots);
    if (status == CASTOR_OK)
        kernel_adam_step((const kernel_adam *)adam, (const kernel_range *)ranges, count, &host);
    return status;
}

castor_status castor_optimizer_sgd(const castor_sgd *sgd, const castor_step_range *ranges, uint32_t count,
                                   int threads) {
    castor_status status = optimizer_check_sgd(sgd, ranges, count);
    kernel_roots roots;
    kernel_host host = host_of(threads, &roots);
    if (status == CASTOR_OK)
        kernel_sgd_step((const kernel_sgd *)sgd, (const kernel_range *)ranges, count, &host);
    return status;
}

bool optimizer_roots(kernel_roots *roots) {
    return host_of(1, roots).roots != NULL;
}
