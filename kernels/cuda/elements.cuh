/* Elements from and to memory, and operations on each of them: cast, scale and add, the search for numbers that are not finite. */

__device__ __forceinline__ float widened(float x) {
    return x;
}
__device__ __forceinline__ float widened(__half x) {
    return __half2float(x);
}
__device__ __forceinline__ float widened(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ void narrow(float *to, float x) {
    *to = x;
}
__device__ __forceinline__ void narrow(__half *to, float x) {
    *to = __float2half_rn(x);
}
__device__ __forceinline__ void narrow(__nv_bfloat16 *to, float x) {
    *to = __float2bfloat16_rn(x);
}

template <typename E> struct __align__(4 * sizeof(E)) wide_elements {
    E element[4];
};
template <typename E> __device__ __forceinline__ void load_wide(const E *from, uint64_t at, float *to) {
    const wide_elements<E> read = *(const wide_elements<E> *)(from + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = widened(read.element[i]);
}
template <typename E> __device__ __forceinline__ void store_wide(E *to, uint64_t at, const float *from) {
    wide_elements<E> written;
#pragma unroll
    for (int i = 0; i < 4; i++)
        narrow(&written.element[i], from[i]);
    *(wide_elements<E> *)(to + at) = written;
}
template <typename E> __device__ __forceinline__ float load_one(const E *from, uint64_t at) {
    return widened(from[at]);
}
template <typename E> __device__ __forceinline__ void store_one(E *to, uint64_t at, float x) {
    narrow(to + at, x);
}
template <typename E> __device__ __forceinline__ bool is_wide(const E *p, uint64_t at) {
    return (uintptr_t)(p + at) % (4 * sizeof(E)) == 0;
}

/* An array whose type is a number of the launch: all threads take the same branch. */
struct any_array {
    void *elements;
    int dtype;
    __device__ explicit operator bool() const { return elements != 0; }
};
#define AS(type, array) ((type *)(array).elements)
#define BY_TYPE(array, call)                                                                                 \
    do {                                                                                                     \
        if ((array).dtype == CUDA_F32) {                                                                     \
            typedef float type;                                                                              \
            call;                                                                                            \
        } else if ((array).dtype == CUDA_BF16) {                                                             \
            typedef __nv_bfloat16 type;                                                                      \
            call;                                                                                            \
        } else {                                                                                             \
            typedef __half type;                                                                             \
            call;                                                                                            \
        }                                                                                                    \
    } while (0)
__device__ __forceinline__ void load_wide(const any_array &from, uint64_t at, float *to) {
    BY_TYPE(from, load_wide(AS(type, from), at, to));
}
__device__ __forceinline__ void store_wide(const any_array &to, uint64_t at, const float *from) {
    BY_TYPE(to, store_wide(AS(type, to), at, from));
}
__device__ __forceinline__ float load_one(const any_array &from, uint64_t at) {
    BY_TYPE(from, return load_one(AS(type, from), at));
}
__device__ __forceinline__ void store_one(const any_array &to, uint64_t at, float x) {
    BY_TYPE(to, store_one(AS(type, to), at, x));
}
__device__ __forceinline__ bool is_wide(const any_array &array, uint64_t at) {
    BY_TYPE(array, return is_wide(AS(type, array), at));
}

/* Each element of this block's chunk, by body(index in the tensor). */
template <typename Body> __device__ void each_element(const cuda_pair_list &list, const Body &body) {
    uint32_t at = cuda_tensor_of(list.first, list.count, blockIdx.x);
    const cuda_pair &pair = list.pairs[at];
    uint64_t begin = (uint64_t)(blockIdx.x - list.first[at]) * CUDA_CHUNK;
    uint64_t end = begin + CUDA_CHUNK < pair.numel ? begin + CUDA_CHUNK : pair.numel;
    for (uint64_t i = begin + threadIdx.x; i < end; i += CUDA_THREADS)
        body(pair, i);
}

__device__ float each_rounded(int dtype, float x) {
    return dtype == CUDA_F32    ? x
           : dtype == CUDA_BF16 ? widened(__float2bfloat16_rn(x))
                                : widened(__float2half_rn(x));
}

/* to = from * scale, of any two types; 1 leaves an element as it is, and a NaN its payload. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    castor_cast(const __grid_constant__ cuda_each each, const __grid_constant__ cuda_pair_list list) {
    const float scale = each.scale_pointer ? *each.scale_pointer : each.scale;
    each_element(list, [&](const cuda_pair &pair, uint64_t i) {
        float x = load_one(any_array{(void *)pair.from, each.from_dtype}, i);
        store_one(any_array{pair.to, each.to_dtype}, i, scale == 1.0f ? x : __fmul_rn(x, scale));
    });
}

/* to = to + from * scale; the product is rounded to the type before it is added, as kernel_scale_add does. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    castor_scale_add(const __grid_constant__ cuda_each each, const __grid_constant__ cuda_pair_list list) {
    const float scale = each.scale_pointer ? *each.scale_pointer : each.scale;
    each_element(list, [&](const cuda_pair &pair, uint64_t i) {
        float product = __fmul_rn(load_one(any_array{(void *)pair.from, each.from_dtype}, i), scale);
        float sum =
            __fadd_rn(load_one(any_array{pair.to, each.to_dtype}, i), each_rounded(each.to_dtype, product));
        store_one(any_array{pair.to, each.to_dtype}, i, sum);
    });
}

/* *found_inf = 1 where an element of `from` is infinite or no number; `to`, where it is not NULL, becomes from * scale, as PyTorch's
 * GradScaler unscales. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    castor_check(const __grid_constant__ cuda_each each, const __grid_constant__ cuda_pair_list list) {
    const float scale = each.scale_pointer ? *each.scale_pointer : each.scale;
    each_element(list, [&](const cuda_pair &pair, uint64_t i) {
        float x = load_one(any_array{(void *)pair.from, each.from_dtype}, i);
        if (!isfinite(x))
            *each.found_inf = 1.0f;
        if (pair.to)
            store_one(any_array{pair.to, each.to_dtype}, i, scale == 1.0f ? x : __fmul_rn(x, scale));
    });
}
