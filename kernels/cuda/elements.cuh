/* Elements from and to memory. */

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
