/* Loads the CUDA kernels, and packs their arguments. */
#include "cuda_steps.h"

#include <stdatomic.h>
#include <string.h>
#include "cuda/arguments.h"
#include "optimizer.h"

_Static_assert((int)CUDA_F32 == (int)KERNEL_F32 && (int)CUDA_F16 == (int)KERNEL_F16 &&
                   (int)CUDA_BF16 == (int)KERNEL_BF16 && (int)CUDA_COUPLED == (int)KERNEL_DECAY_COUPLED &&
                   (int)CUDA_DECOUPLED == (int)KERNEL_DECAY_DECOUPLED &&
                   (int)CUDA_FOREACH == (int)KERNEL_CUDA_FOREACH &&
                   (int)CUDA_SINGLE == (int)KERNEL_CUDA_SINGLE && (int)CUDA_FUSED == (int)KERNEL_CUDA_FUSED,
               "one value, two names");
_Static_assert(CUDA_FITS(cuda_adam, cuda_step_list) && CUDA_FITS(cuda_sgd, cuda_step_list),
               "the arguments of a kernel are limited");

/* kernels/cuda/image.S */
extern const unsigned char kernel_cuda_image[];
extern const uint64_t kernel_cuda_image_bytes; /* 0: built without nvcc */

enum { ADAM, SGD = ADAM + 4, KERNELS = SGD + 4 };
static const char *const names[KERNELS] = {
    "castor_adam_f32", "castor_adam_f16", "castor_adam_bf16", "castor_adam_mixed",
    "castor_sgd_f32",  "castor_sgd_f16",  "castor_sgd_bf16",  "castor_sgd_mixed",
};
enum { OF_F32, OF_F16, OF_BF16, OF_MIXED }; /* behind ADAM and SGD */

#define BLOCKS_MAX 0x7FFFFFFFu

static struct {
    kernel_cuda_driver driver;
    void *kernels[KERNELS];
    atomic_bool loaded;
} loaded;

bool kernel_cuda_built(void) {
    return kernel_cuda_image_bytes > 0;
}

int kernel_cuda_load(const kernel_cuda_driver *driver) {
    if (atomic_load_explicit(&loaded.loaded, memory_order_acquire))
        return KERNEL_CUDA_OK;
    if (!kernel_cuda_built())
        return KERNEL_CUDA_ABSENT;
    /* The driver unloads it with the process. */
    void *library = NULL;
    int result = driver->library_load(&library, kernel_cuda_image, NULL, NULL, 0, NULL, NULL, 0);
    for (int i = 0; i < KERNELS && result == KERNEL_CUDA_OK; i++)
        result = driver->library_kernel(&loaded.kernels[i], library, names[i]);
    if (result == KERNEL_CUDA_OK) {
        loaded.driver = *driver;
        atomic_store_explicit(&loaded.loaded, true, memory_order_release);
    }
    return result;
}

static int launch(int kernel, uint32_t blocks, const void *numbers, const void *list, uint64_t stream) {
    void *arguments[] = {(void *)numbers, (void *)list};
    return loaded.driver.launch(loaded.kernels[kernel], blocks, 1, 1, CUDA_THREADS, 1, 1, 0,
                                (void *)(uintptr_t)stream, arguments, NULL);
}

static uint64_t chunks_of(uint64_t numel) {
    return numel / CUDA_CHUNK + (numel % CUDA_CHUNK != 0);
}

static bool is_dtype(int32_t dtype) {
    return dtype == KERNEL_F32 || dtype == KERNEL_F16 || dtype == KERNEL_BF16;
}

/* ---- steps ---- */

/* -1: there is none. */
static int step_kernel(const kernel_cuda_step *step, bool works) {
    if (!is_dtype(step->dtype) || !is_dtype(step->grad_dtype) || (works && !is_dtype(step->working_dtype)))
        return -1;
    if (step->dtype != KERNEL_F32) {
        bool same = step->grad_dtype == step->dtype && !works && step->mode == KERNEL_CUDA_FUSED;
        return !same ? -1 : step->dtype == KERNEL_F16 ? OF_F16 : OF_BF16;
    }
    bool plain = step->grad_dtype == KERNEL_F32 && (!works || step->working_dtype == KERNEL_F32);
    return plain ? OF_F32 : OF_MIXED;
}

static cuda_step step_packed(const kernel_cuda_step *step) {
    double decay =
        step->decay_kind == KERNEL_DECAY_DECOUPLED ? 1.0 - step->lr * step->weight_decay : step->weight_decay;
    return (cuda_step){.found_inf = step->found_inf,
                       .grad_scale = step->grad_scale,
                       .lr_pointer = step->lr_pointer,
                       .clip_pointer = step->clip_pointer,
                       .lr = step->lr,
                       .weight_decay = step->weight_decay,
                       .inv_scale = (float)step->inv_scale,
                       .clip = (float)step->clip,
                       .decay = (float)decay,
                       .mode = step->mode,
                       .decay_kind = step->decay_kind,
                       .maximize = step->maximize,
                       .variation = step->variation,
                       .grad_dtype = step->grad_dtype,
                       .working_dtype = step->working_dtype};
}

/* What only fused steps of PyTorch have. */
static bool step_is_possible(const kernel_cuda_step *step) {
    bool fused = step->mode == KERNEL_CUDA_FUSED;
    return (fused || (!step->grad_scale && !step->lr_pointer)) && step->mode >= KERNEL_CUDA_FOREACH &&
           step->mode <= KERNEL_CUDA_FUSED && step->decay_kind >= KERNEL_DECAY_NONE &&
           step->decay_kind < KERNEL_DECAY_COUNT;
}

static void tensor_pack(cuda_step_tensor *to, const kernel_cuda_tensor *from, int mode) {
    double divisor = from->root_divisor;
    *to = (cuda_step_tensor){.param = from->param,
                             .grad = from->grad,
                             .working = from->working,
                             .step = from->step,
                             .numel = from->numel,
                             .root_scale = (float)(mode == KERNEL_CUDA_SINGLE ? 1.0 / divisor : divisor),
                             .negative_step = (float)from->negative_step};
    memcpy(to->states, from->states, sizeof to->states);
}

static int step_launch(int kernels, const kernel_cuda_step *step, const void *numbers,
                       const kernel_cuda_tensor *tensors, size_t count, uint64_t stream) {
    if (!atomic_load_explicit(&loaded.loaded, memory_order_acquire))
        return KERNEL_CUDA_NOT_LOADED;
    bool works = false;
    for (size_t i = 0; i < count; i++) {
        if (chunks_of(tensors[i].numel) > BLOCKS_MAX)
            return KERNEL_CUDA_UNKNOWN;
        works |= tensors[i].working != NULL;
    }
    int kernel = step_kernel(step, works);
    if (kernel < 0 || !step_is_possible(step))
        return KERNEL_CUDA_UNKNOWN;

    cuda_step_list list;
    memset(&list, 0, sizeof list);
    int result = KERNEL_CUDA_OK;
    for (size_t i = 0; i < count && result == KERNEL_CUDA_OK; i++) {
        const uint64_t blocks = chunks_of(tensors[i].numel);
        if (blocks == 0)
            continue;
        if (list.count == CUDA_STEP_TENSORS || list.first[list.count] + blocks > BLOCKS_MAX) {
            result = launch(kernels + kernel, list.first[list.count], numbers, &list, stream);
            list.count = 0;
        }
        tensor_pack(&list.tensors[list.count], &tensors[i], step->mode);
        list.first[list.count + 1] = list.first[list.count] + (uint32_t)blocks;
        list.count++;
    }
    if (list.count && result == KERNEL_CUDA_OK)
        result = launch(kernels + kernel, list.first[list.count], numbers, &list, stream);
    return result;
}

int kernel_cuda_adam_step(const kernel_cuda_adam *adam, const kernel_cuda_tensor *tensors, size_t count,
                          uint64_t stream) {
    const cuda_adam numbers = {.step = step_packed(&adam->step),
                               .beta1 = adam->beta1,
                               .beta2 = adam->beta2,
                               .epsilon = adam->epsilon};
    return step_launch(ADAM, &adam->step, &numbers, tensors, count, stream);
}

int kernel_cuda_sgd_step(const kernel_cuda_sgd *sgd, const kernel_cuda_tensor *tensors, size_t count,
                         uint64_t stream) {
    const cuda_sgd numbers = {.step = step_packed(&sgd->step),
                              .momentum = sgd->momentum,
                              .dampening = sgd->dampening,
                              .first = sgd->first};
    if (sgd->step.decay_kind == KERNEL_DECAY_DECOUPLED)
        return KERNEL_CUDA_UNKNOWN;
    return step_launch(SGD, &sgd->step, &numbers, tensors, count, stream);
}
