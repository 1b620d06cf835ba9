/* Pools of stream-ordered memory. A freed block goes back to the device when its stream gets there; the release
 * threshold is remembered and otherwise without effect. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct CUmemPoolHandle_st {
    int device;
    bool standard; /* the device's own: it is never destroyed */
    atomic_size_t used, used_high;
    uint64_t threshold;
    int reuse[4];
};

struct free_arguments {
    CUdeviceptr address;
    CUmemoryPool pool;
    size_t bytes;
};

static struct CUmemPoolHandle_st standard[SIM_DEVICES_MAX];
static CUmemoryPool chosen[SIM_DEVICES_MAX];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult sim_pool_default(int device, CUmemoryPool *pool) {
    if (device < 0 || device >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&pool_lock);
    *pool = &standard[device];
    (*pool)->device = device;
    (*pool)->standard = true;
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult sim_pool_current(int device, CUmemoryPool *pool) {
    CUresult result = sim_pool_default(device, pool);

    if (!result && chosen[device])
        *pool = chosen[device];
    return result;
}

CUresult sim_pool_set_current(int device, CUmemoryPool pool) {
    if (device < 0 || device >= sim_config()->devices || !pool || pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    chosen[device] = pool;
    return CUDA_SUCCESS;
}

CUresult sim_pool_create(int device, CUmemoryPool *pool) {
    if (device < 0 || device >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!(*pool = calloc(1, sizeof **pool)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->device = device;
    return CUDA_SUCCESS;
}

CUresult sim_pool_destroy(CUmemoryPool pool) {
    if (!pool || pool->standard)
        return CUDA_ERROR_INVALID_VALUE;
    if (chosen[pool->device] == pool)
        chosen[pool->device] = NULL;
    return CUDA_SUCCESS; /* blocks that are still in use name it */
}

CUresult sim_pool_allocate(CUmemoryPool pool, size_t bytes, CUstream stream, CUdeviceptr *address) {
    CUcontext ctx;
    CUresult result = sim_stream_resolve(&stream);

    if (result || !bytes)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (sim_capture_takes(stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!pool && (result = sim_pool_current(stream->ctx->device, &pool)))
        return result;
    result = sim_memory_allocate(pool->device, bytes, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !sim_ctx_current(&ctx, true)) {
        sim_ctx_synchronize(ctx); /* what was freed in stream order comes back */
        result = sim_memory_allocate(pool->device, bytes, address);
    }
    if (result)
        return result;
    pthread_rwlock_wrlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_blocks, *address);
    if (block)
        block->pool = pool;
    pthread_rwlock_unlock(&sim_memory_lock);
    size_t used = atomic_fetch_add(&pool->used, bytes) + bytes;
    if (used > atomic_load(&pool->used_high))
        atomic_store(&pool->used_high, used);
    return CUDA_SUCCESS;
}

static CUresult run_free(void *arguments) {
    const struct free_arguments *op = arguments;

    if (op->pool)
        atomic_fetch_sub(&op->pool->used, op->bytes);
    return sim_memory_free_now(op->address);
}

CUresult sim_pool_free(CUdeviceptr address, CUstream stream) {
    struct sim_pointer pointer = sim_memory_find((void *)address);
    struct free_arguments op = {address, pointer.block.pool, pointer.block.size};
    CUresult result = sim_stream_resolve(&stream);

    if (result || !address)
        return result;
    if (!pointer.found || pointer.block.start != address || pointer.block.kind != SIM_DEVICE_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_capture_takes(stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim_stream_submit(stream, SIM_FREE, run_free, &op, sizeof op);
}

CUresult sim_pool_trim(CUmemoryPool pool, size_t keep) {
    (void)keep; /* nothing is kept that is not in use */
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_pool_attribute(CUmemoryPool pool, int attribute, void *value, bool set) {
    uint64_t bytes;

    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(set ? (void *)&pool->reuse[attribute] : value, set ? value : (void *)&pool->reuse[attribute],
               sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(set ? (void *)&pool->threshold : value, set ? value : (void *)&pool->threshold,
               sizeof(uint64_t));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        if (set)
            return CUDA_ERROR_INVALID_VALUE;
        bytes = atomic_load(&pool->used);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (set) {
            atomic_store(&pool->used_high, atomic_load(&pool->used));
            return CUDA_SUCCESS;
        }
        bytes = atomic_load(&pool->used_high);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
}
