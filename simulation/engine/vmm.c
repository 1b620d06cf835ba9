/* Virtual memory management: reservations, physical memory, and the maps between them.
 *
 * A reservation is inaccessible; a map becomes accessible by sim_vmm_access and faults again after sim_vmm_unmap. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct sim_allocation **made; /* what handles name; guarded by the memory lock */
static size_t made_count, made_capacity;

static int remember(struct sim_allocation *physical) {
    if (made_count == made_capacity) {
        size_t capacity = made_capacity ? made_capacity * 2 : 256;
        struct sim_allocation **larger = realloc(made, capacity * sizeof *made);
        if (!larger)
            return -1;
        made = larger;
        made_capacity = capacity;
    }
    made[made_count++] = physical;
    return 0;
}

static bool known(const struct sim_allocation *physical) {
    for (size_t i = made_count; i-- > 0;) {
        if (made[i] == physical)
            return true;
    }
    return false;
}

bool sim_vmm_known(const struct sim_allocation *physical) {
    pthread_rwlock_rdlock(&sim_memory_lock);
    bool is_known = known(physical);
    pthread_rwlock_unlock(&sim_memory_lock);
    return is_known;
}

/* Gives up one reference; a handle is forgotten with the last one. The lock is held. */
static void drop(struct sim_allocation *physical) {
    if (atomic_load(&physical->references) == 1) {
        for (size_t i = 0; i < made_count; i++) {
            if (made[i] == physical) {
                made[i] = made[--made_count];
                break;
            }
        }
    }
    sim_physical_drop(physical);
}

CUresult sim_vmm_create(size_t size, const CUmemAllocationProp *prop, struct sim_allocation **physical) {
    CUmemLocationType type = prop->location.type;

    if (!size || size % SIM_GRANULE || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_LOCATION_TYPE_DEVICE) {
        if (prop->location.id < 0 || prop->location.id >= sim_config()->devices)
            return CUDA_ERROR_INVALID_DEVICE;
    } else if (type == CU_MEM_LOCATION_TYPE_HOST) { /* no other process may have it */
        if (prop->requestedHandleTypes)
            return CUDA_ERROR_INVALID_VALUE;
    } else if (type != CU_MEM_LOCATION_TYPE_HOST_NUMA) {
        return CUDA_ERROR_INVALID_VALUE;
    } else if (prop->location.id != 0) { /* one node */
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_rwlock_wrlock(&sim_memory_lock);
    CUresult result = sim_physical_make(prop, size, physical);
    if (!result && remember(*physical)) {
        sim_physical_drop(*physical);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_release(struct sim_allocation *physical) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    pthread_rwlock_wrlock(&sim_memory_lock);
    if (known(physical)) {
        drop(physical);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_retain(struct sim_allocation **physical, const void *address) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    pthread_rwlock_rdlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_blocks, (uintptr_t)address);
    if (block && block->kind == SIM_MAPPED) {
        *physical = block->physical;
        atomic_fetch_add(&block->physical->references, 1);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_reserve(size_t size, size_t alignment, CUdeviceptr hint, CUdeviceptr *address) {
    struct sim_block *block;

    (void)hint; /* a wish that CUDA need not grant */
    if (!size || size % SIM_GRANULE || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!(block = calloc(1, sizeof *block)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&sim_memory_lock);
    block->start = sim_zone_take(size, alignment > SIM_GRANULE ? alignment : SIM_GRANULE);
    block->size = block->length = size;
    bool reserved =
        block->start &&
        mmap((void *)block->start, size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED &&
        !sim_space_add(&sim_reservations, block);
    pthread_rwlock_unlock(&sim_memory_lock);
    if (!reserved) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = block->start;
    return CUDA_SUCCESS;
}

/* The blocks in the range, which they must fill exactly when `whole`; -1 when one sticks out or a part is bare. */
static long blocks_in(uintptr_t start, size_t size, bool whole, size_t *first) {
    size_t index = 0, covered = 0;
    long count = 0;

    while (index < sim_blocks.count &&
           sim_blocks.items[index]->start + sim_blocks.items[index]->length <= start)
        index++;
    *first = index;
    for (; index < sim_blocks.count && sim_blocks.items[index]->start < start + size; index++, count++) {
        const struct sim_block *block = sim_blocks.items[index];
        if (block->kind != SIM_MAPPED || block->start < start || block->start + block->size > start + size)
            return -1;
        covered += block->size;
    }
    return whole && covered != size ? -1 : count;
}

CUresult sim_vmm_unreserve(CUdeviceptr address, size_t size) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    size_t first;

    pthread_rwlock_wrlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_reservations, address);
    if (block && block->start == address && block->size == size &&
        blocks_in(address, size, false, &first) == 0) {
        sim_space_remove(&sim_reservations, block);
        munmap((void *)block->start, size);
        free(block);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_map(CUdeviceptr address, size_t size, size_t offset, struct sim_allocation *physical) {
    struct sim_block *block = calloc(1, sizeof *block);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    size_t first;

    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&sim_memory_lock);
    struct sim_block *reservation = sim_space_find(&sim_reservations, address);
    if (!reservation || !known(physical) || !size || size % SIM_GRANULE || address % SIM_GRANULE || offset ||
        address + size > reservation->start + reservation->size || size > physical->size ||
        blocks_in(address, size, false, &first) != 0)
        goto out;
    *block = (struct sim_block){.start = address, .size = size, .length = size, .kind = SIM_MAPPED};
    block->device = physical->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? physical->prop.location.id
                                                                                : CU_DEVICE_CPU;
    block->physical = physical;
    block->id = sim_next_id();
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
             physical->offset + (off_t)offset) == MAP_FAILED ||
        sim_space_add(&sim_blocks, block)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        goto out;
    }
    madvise((void *)address, size, MADV_DONTFORK);
    atomic_fetch_add(&physical->references, 1);
    result = CUDA_SUCCESS;
out:
    pthread_rwlock_unlock(&sim_memory_lock);
    if (result)
        free(block);
    return result;
}

CUresult sim_vmm_unmap(CUdeviceptr address, size_t size) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    size_t first;

    pthread_rwlock_wrlock(&sim_memory_lock);
    long count = blocks_in(address, size, true, &first);
    if (count > 0) {
        mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        while (count-- > 0) {
            struct sim_block *block = sim_blocks.items[first];
            sim_space_remove(&sim_blocks, block);
            drop(block->physical);
            free(block);
        }
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    size_t first;

    pthread_rwlock_wrlock(&sim_memory_lock);
    long blocks = blocks_in(address, size, true, &first);
    if (blocks <= 0)
        goto out;
    for (size_t i = 0; i < count; i++) {
        bool on_device = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        if (on_device && (desc[i].location.id < 0 || desc[i].location.id >= sim_config()->devices)) {
            result = CUDA_ERROR_INVALID_DEVICE;
            goto out;
        }
        unsigned bit = on_device ? 1u << desc[i].location.id : 1u << SIM_DEVICES_MAX;
        for (long b = 0; b < blocks; b++) {
            struct sim_block *block = sim_blocks.items[first + (size_t)b];
            block->access = desc[i].flags ? block->access | bit : block->access & ~bit;
            block->writable = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? block->writable | bit
                                                                                  : block->writable & ~bit;
            mprotect((void *)block->start, block->size,
                     (block->access ? PROT_READ : 0) | (block->writable ? PROT_WRITE : 0));
        }
    }
    result = CUDA_SUCCESS;
out:
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_vmm_export(struct sim_allocation *physical, int *fd) {
    if (!sim_vmm_known(physical) ||
        !(physical->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    *fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* Whether it is the host's memory travels with a descriptor, in the file's name; the device that it came from does not, and the importer's
 * stands for it. */
static bool fd_is_host(int fd) {
    char link[64], name[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, name, sizeof name - 1) > 0 && strstr(name, SIM_SHARED_HOST) != NULL;
}

CUresult sim_vmm_import(int fd, struct sim_allocation **physical) {
    struct sim_allocation *imported = calloc(1, sizeof *imported);
    struct stat status;

    if (!imported)
        return CUDA_ERROR_OUT_OF_MEMORY;
    imported->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (imported->fd < 0 || fstat(imported->fd, &status)) {
        free(imported);
        return CUDA_ERROR_INVALID_VALUE;
    }
    imported->size = (size_t)status.st_size;
    imported->references = 1;
    imported->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    imported->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    bool host = fd_is_host(imported->fd);
    imported->prop.location.type = host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    imported->prop.location.id = host ? 0 : sim_device();
    pthread_rwlock_wrlock(&sim_memory_lock);
    int failed = remember(imported);
    pthread_rwlock_unlock(&sim_memory_lock);
    if (failed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = imported;
    return CUDA_SUCCESS;
}
