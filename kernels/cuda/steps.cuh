/* Optimizer steps in one pass over parameter, gradient and states. Where these lie does not matter: on host pages the same accesses
 * go over the link. */

/* Four of each array at a time where all are aligned, so that a warp moves whole lines. ELEMENT(i, lane) is one element. */
enum { WIDTH = 4 };

/* Arrays of a step over a tensor: parameter and states have the type T; A is the gradient and the working copy, which may have
 * other types. */
template <typename T, typename A> struct step_arrays {
    T *param, *states[CUDA_STEP_STATES];
    A grad, working;
};

/* The elements [begin, end) by step(param, grad, states, stored), which gives the new parameter. STATES of the arrays are there. */
template <int STATES, typename T, typename A, typename Step>
__device__ void step_elements(const step_arrays<T, A> &to, uint64_t begin, uint64_t end, bool stores,
                              const Step &step) {
    const bool works = (bool)to.working;
    bool wide = is_wide(to.param, begin) && is_wide(to.grad, begin) && (!works || is_wide(to.working, begin));
    for (int s = 0; s < STATES; s++)
        wide = wide && is_wide(to.states[s], begin);
    const uint64_t whole = wide ? begin + (end - begin) / WIDTH * WIDTH : begin;

    for (uint64_t i = begin + threadIdx.x * WIDTH; i < whole; i += CUDA_THREADS * WIDTH) {
        float param[WIDTH], grad[WIDTH], states[CUDA_STEP_STATES][WIDTH], stored[WIDTH];
        load_wide(to.param, i, param);
        load_wide(to.grad, i, grad);
#pragma unroll
        for (int s = 0; s < STATES; s++)
            load_wide(to.states[s], i, states[s]);
#pragma unroll
        for (int lane = 0; lane < WIDTH; lane++) {
            float own[CUDA_STEP_STATES];
            for (int s = 0; s < STATES; s++)
                own[s] = states[s][lane];
            param[lane] = step(param[lane], grad[lane], own, &stored[lane]);
            for (int s = 0; s < STATES; s++)
                states[s][lane] = own[s];
        }
        store_wide(to.param, i, param);
        if (works)
            store_wide(to.working, i, param);
        if (stores)
            store_wide(to.grad, i, stored);
#pragma unroll
        for (int s = 0; s < STATES; s++)
            store_wide(to.states[s], i, states[s]);
    }
    for (uint64_t i = whole + threadIdx.x; i < end; i += CUDA_THREADS) {
        float own[CUDA_STEP_STATES], stored;
        for (int s = 0; s < STATES; s++)
            own[s] = load_one(to.states[s], i);
        const float param = step(load_one(to.param, i), load_one(to.grad, i), own, &stored);
        store_one(to.param, i, param);
        if (works)
            store_one(to.working, i, param);
        if (stores)
            store_one(to.grad, i, stored);
        for (int s = 0; s < STATES; s++)
            store_one(to.states[s], i, own[s]);
    }
}

template <typename T> __device__ step_arrays<T, T *> same_arrays(const cuda_step_tensor &tensor) {
    return {(T *)tensor.param,
            {(T *)tensor.states[0], (T *)tensor.states[1], (T *)tensor.states[2]},
            (T *)tensor.grad,
            (T *)tensor.working};
}
/* Parameters and states are float; the gradient and the working copy may have 16 bits. */
__device__ step_arrays<float, any_array> mixed_arrays(const cuda_step &step, const cuda_step_tensor &tensor) {
    return {(float *)tensor.param,
            {(float *)tensor.states[0], (float *)tensor.states[1], (float *)tensor.states[2]},
            {tensor.grad, step.grad_dtype},
            {tensor.working, step.working_dtype}};
}

template <typename T, typename A>
__device__ void adam_tensor(const cuda_adam &adam, const cuda_step_tensor &tensor,
                            const step_arrays<T, A> &to, uint64_t begin, uint64_t end) {
    const cuda_adam_numbers use = cuda_adam_prepare(&adam, &tensor);
    auto step = [&use](float param, float grad, float *states, float *stored) {
        return cuda_adam_element(&use, param, grad, &states[0], &states[1], &states[2], stored);
    };
    if (use.maximum)
        step_elements<3>(to, begin, end, use.step.divided, step);
    else
        step_elements<2>(to, begin, end, use.step.divided, step);
}

template <typename T, typename A>
__device__ void sgd_tensor(const cuda_sgd &sgd, const cuda_step_tensor &, const step_arrays<T, A> &to,
                           uint64_t begin, uint64_t end) {
    const cuda_sgd_numbers use = cuda_sgd_prepare(&sgd);
    auto step = [&use](float param, float grad, float *states, float *stored) {
        return cuda_sgd_element(&use, param, grad, &states[0], stored);
    };
    if (use.moving)
        step_elements<1>(to, begin, end, use.step.divided, step);
    else
        step_elements<0>(to, begin, end, use.step.divided, step);
}

/* Steps the chunk of this block; nothing after an overflow. */
template <typename Numbers, typename Body>
__device__ void step_chunk(const Numbers &numbers, const cuda_step_list &list, const Body &body) {
    if (numbers.step.found_inf && *numbers.step.found_inf == 1.0f)
        return;
    uint32_t at = cuda_tensor_of(list.first, list.count, blockIdx.x);
    const cuda_step_tensor &tensor = list.tensors[at];
    uint64_t begin = (uint64_t)(blockIdx.x - list.first[at]) * CUDA_CHUNK;
    uint64_t end = begin + CUDA_CHUNK < tensor.numel ? begin + CUDA_CHUNK : tensor.numel;
    body(tensor, begin, end);
}

#define STEP_KERNEL(KIND, NAME, ARRAYS)                                                                      \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) castor_##KIND##_##NAME(                       \
        const __grid_constant__ cuda_##KIND numbers, const __grid_constant__ cuda_step_list list) {          \
        step_chunk(numbers, list, [&](const cuda_step_tensor &tensor, uint64_t begin, uint64_t end) {        \
            KIND##_tensor(numbers, tensor, ARRAYS, begin, end);                                              \
        });                                                                                                  \
    }
#define STEP_KERNELS(KIND)                                                                                   \
    STEP_KERNEL(KIND, f32, same_arrays<float>(tensor))                                                       \
    STEP_KERNEL(KIND, bf16, same_arrays<__nv_bfloat16>(tensor))                                              \
    STEP_KERNEL(KIND, f16, same_arrays<__half>(tensor))                                                      \
    STEP_KERNEL(KIND, mixed, mixed_arrays(numbers.step, tensor))

STEP_KERNELS(adam)
STEP_KERNELS(sgd)
