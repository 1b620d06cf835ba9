/* Norms of many tensors, as torch._foreach_norm(tensors, 2): squares are added in its order, so that the bits are its bits.
 *
 * castor_norm_chunks gives the sum of squares of each chunk, castor_norm_roots the root of each tensor's sum. */

__device__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x = __fadd_rn(x, __shfl_down_sync(0xFFFFFFFFu, x, offset));
    return x;
}

/* Of the block, in its first thread. */
__device__ float block_sum(float x) {
    __shared__ float of_warps[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        of_warps[warp] = x;
    __syncthreads();
    x = threadIdx.x < CUDA_NORM_THREADS / 32 ? of_warps[lane] : 0.0f;
    return warp == 0 ? warp_sum(x) : x;
}

/* Thread t adds to four sums, by turns: four neighbours where the tensor allows it, else elements a block's width apart. */
template <typename E> __device__ float chunk_squares(const E *from, uint64_t count) {
    float sums[4] = {0, 0, 0, 0};
    const uint64_t end = count < CUDA_NORM_CHUNK ? count : CUDA_NORM_CHUNK;
    if (count % 4 == 0 && is_wide(from, 0)) {
        for (uint64_t i = threadIdx.x * 4; i < end; i += CUDA_NORM_THREADS * 4) {
            float x[4];
            load_wide(from, i, x);
#pragma unroll
            for (int part = 0; part < 4; part++)
                sums[part] = __fmaf_rn(x[part], x[part], sums[part]);
        }
    } else {
        for (uint64_t start = 0; start < end; start += CUDA_NORM_THREADS * 4) {
#pragma unroll
            for (int part = 0; part < 4; part++) {
                uint64_t i = start + threadIdx.x + part * CUDA_NORM_THREADS;
                if (i < end) {
                    float x = widened(from[i]);
                    sums[part] = __fmaf_rn(x, x, sums[part]);
                }
            }
        }
    }
    float sum = 0;
#pragma unroll
    for (int part = 0; part < 4; part++)
        sum = __fadd_rn(sum, sums[part]);
    return sum;
}

/* The chunk's sum goes to its tensor's `to`, floats, one for each chunk. */
extern "C" __global__ void __launch_bounds__(CUDA_NORM_THREADS)
    castor_norm_chunks(const __grid_constant__ cuda_each each, const __grid_constant__ cuda_pair_list list) {
    uint32_t at = cuda_tensor_of(list.first, list.count, blockIdx.x);
    const cuda_pair &pair = list.pairs[at];
    uint32_t chunk = blockIdx.x - list.first[at];
    uint64_t begin = (uint64_t)chunk * CUDA_NORM_CHUNK, count = pair.numel - begin;
    float sum;
    if (each.from_dtype == CUDA_F32)
        sum = chunk_squares((const float *)pair.from + begin, count);
    else if (each.from_dtype == CUDA_BF16)
        sum = chunk_squares((const __nv_bfloat16 *)pair.from + begin, count);
    else
        sum = chunk_squares((const __half *)pair.from + begin, count);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        ((float *)pair.to)[chunk] = sum;
}

/* One block for each tensor: `from` are `numel` sums, `to` the norm. */
extern "C" __global__ void __launch_bounds__(CUDA_NORM_THREADS)
    castor_norm_roots(const __grid_constant__ cuda_each each, const __grid_constant__ cuda_pair_list list) {
    const cuda_pair &pair = list.pairs[blockIdx.x];
    float sum = 0;
    for (uint64_t i = threadIdx.x; i < pair.numel; i += CUDA_NORM_THREADS)
        sum = __fadd_rn(sum, ((const float *)pair.from)[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        store_one(any_array{pair.to, each.to_dtype}, 0, __fsqrt_rn(sum));
}
