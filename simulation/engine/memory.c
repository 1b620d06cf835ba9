/* Memory: addresses of the zone, the physical memory of devices (a sparse memfd each) and what hosts register.
 *
 * A device's memory is one memfd whose offsets are given once and never again, so that a freed range can be handed back
 * to the system by punching a hole, and so that another process can map it. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct sim_space sim_blocks, sim_reservations;
pthread_rwlock_t sim_memory_lock = PTHREAD_RWLOCK_INITIALIZER;
static uintptr_t zone_next = SIM_ZONE_START;
static struct {
    int fd; /* plus one */
    off_t end;
    size_t used, peak;
} devices[SIM_DEVICES_MAX + 1]; /* the last one is host memory */

uint64_t sim_next_id(void) {
    static atomic_ulong last;

    return atomic_fetch_add(&last, 1) + 1;
}

/* The index of the first block that starts after the address. */
static size_t space_after(const struct sim_space *space, uintptr_t address) {
    size_t low = 0, high = space->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (space->items[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sim_block *sim_space_find(const struct sim_space *space, uintptr_t address) {
    size_t after = space_after(space, address);
    struct sim_block *block = after ? space->items[after - 1] : NULL;

    return block && address - block->start < block->size ? block : NULL;
}

int sim_space_add(struct sim_space *space, struct sim_block *block) {
    if (space->count == space->capacity) {
        size_t capacity = space->capacity ? space->capacity * 2 : 256;
        struct sim_block **items = realloc(space->items, capacity * sizeof *items);
        if (!items)
            return -1;
        space->items = items;
        space->capacity = capacity;
    }
    size_t at = space_after(space, block->start);
    memmove(space->items + at + 1, space->items + at, (space->count - at) * sizeof *space->items);
    space->items[at] = block;
    space->count++;
    return 0;
}

void sim_space_remove(struct sim_space *space, struct sim_block *block) {
    size_t at = space_after(space, block->start);

    if (!at || space->items[at - 1] != block)
        return;
    memmove(space->items + at - 1, space->items + at, (space->count - at) * sizeof *space->items);
    space->count--;
}

/* A page is left free behind each range, so that a step over its end faults. */
uintptr_t sim_zone_take(size_t length, size_t alignment) {
    uintptr_t start = (zone_next + alignment - 1) / alignment * alignment;

    if (start + length + SIM_PAGE > SIM_ZONE_END) {
        sim_say("the zone of addresses is used up");
        return 0;
    }
    zone_next = start + length + SIM_PAGE;
    return start;
}

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static int account_of(const CUmemAllocationProp *prop) {
    return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : SIM_DEVICES_MAX;
}

bool sim_physical_charge(struct sim_allocation *physical) {
    int account = account_of(&physical->prop);
    size_t limit = account < SIM_DEVICES_MAX ? sim_config()->memory : sim_config()->host_memory;

    if (limit && devices[account].used + physical->size > limit)
        return false;
    devices[account].used += physical->size;
    if (devices[account].used > devices[account].peak)
        devices[account].peak = devices[account].used;
    physical->charged = true;
    return true;
}

CUresult sim_physical_make(const CUmemAllocationProp *prop, size_t size, struct sim_allocation **made) {
    struct sim_allocation *physical = calloc(1, sizeof *physical);
    int account = account_of(prop);

    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->prop = *prop;
    physical->size = round_up(size, SIM_PAGE);
    physical->references = 1;
    if (!sim_physical_charge(physical)) {
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        bool host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
        physical->fd = memfd_create(host ? SIM_SHARED_HOST : "sim-shared", MFD_CLOEXEC);
    } else {
        if (!devices[account].fd)
            devices[account].fd = memfd_create("sim-device", MFD_CLOEXEC) + 1;
        physical->fd = devices[account].fd - 1;
        physical->offset = devices[account].end;
        devices[account].end += (off_t)physical->size;
    }
    if (physical->fd < 0 || ftruncate(physical->fd, physical->offset + (off_t)physical->size)) {
        sim_say("no memory for a device of %zu bytes: %s", physical->size, strerror(errno));
        sim_physical_drop(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = physical;
    return CUDA_SUCCESS;
}

void sim_physical_drop(struct sim_allocation *physical) {
    if (atomic_fetch_sub(&physical->references, 1) > 1)
        return;
    if (physical->charged)
        devices[account_of(&physical->prop)].used -= physical->size;
    if (physical->fd == devices[account_of(&physical->prop)].fd - 1)
        fallocate(physical->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical->offset,
                  (off_t)physical->size);
    else if (physical->fd >= 0)
        close(physical->fd);
    free(physical);
}

static CUresult allocate(const CUmemAllocationProp *prop, size_t bytes, enum sim_kind kind, unsigned flags,
                         CUdeviceptr *address) {
    struct sim_block *block = calloc(1, sizeof *block);
    struct sim_allocation *physical = NULL;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    size_t length = round_up(bytes, SIM_PAGE);

    if (!block)
        return result;
    pthread_rwlock_wrlock(&sim_memory_lock);
    uintptr_t start = sim_zone_take(length, length >= SIM_GRANULE ? SIM_GRANULE : SIM_PAGE);
    if (!start || (result = sim_physical_make(prop, length, &physical)))
        goto failed;
    *block =
        (struct sim_block){.start = start, .size = bytes, .length = length, .kind = kind, .flags = flags};
    block->device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : sim_device();
    block->physical = physical;
    block->id = sim_next_id();
    if (mmap((void *)start, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, physical->fd,
             physical->offset) != (void *)start ||
        sim_space_add(&sim_blocks, block)) {
        sim_say("%zu bytes cannot be mapped: %s", length, strerror(errno));
        munmap((void *)start, length);
        sim_physical_drop(physical);
        result = CUDA_ERROR_OUT_OF_MEMORY;
        goto failed;
    }
    madvise((void *)start, length, MADV_DONTFORK);
    sim_ctx_current(&block->ctx, false);
    pthread_rwlock_unlock(&sim_memory_lock);
    *address = start;
    return CUDA_SUCCESS;
failed:
    pthread_rwlock_unlock(&sim_memory_lock);
    free(block);
    return result;
}

static CUresult may_allocate(CUcontext *ctx) {
    CUresult result = sim_ctx_current(ctx, true);

    if (!result)
        result = sim_capture_forbid();
    return result ? result : (CUresult)atomic_load(&(*ctx)->sticky);
}

CUresult sim_memory_allocate(int device, size_t bytes, CUdeviceptr *address) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUcontext ctx;
    CUresult result = may_allocate(&ctx);

    if (result)
        return result;
    *address = 0;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return allocate(&prop, bytes, SIM_DEVICE_MEMORY, 0, address);
}

CUresult sim_memory_managed(size_t bytes, unsigned flags, CUdeviceptr *address) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUcontext ctx;
    CUresult result = may_allocate(&ctx);

    if (result)
        return result;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    return allocate(&prop, bytes, SIM_MANAGED, flags, address);
}

CUresult sim_host_allocate(size_t bytes, unsigned flags, void **address) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUdeviceptr made = 0;
    CUcontext ctx;
    CUresult result = may_allocate(&ctx);

    *address = NULL;
    if (result || !bytes)
        return result;
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    result = allocate(&prop, bytes, SIM_HOST_MEMORY, flags, &made);
    *address = (void *)made;
    return result;
}

/* Takes the block out; the caller holds the lock. */
static void remove_block(struct sim_block *block) {
    sim_space_remove(&sim_blocks, block);
    if (block->kind != SIM_REGISTERED) {
        munmap((void *)block->start, block->length);
        sim_physical_drop(block->physical);
    }
    free(block);
}

static CUresult free_at(uintptr_t address, unsigned kinds, CUresult missing) {
    CUresult result = missing;

    pthread_rwlock_wrlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_blocks, address);
    if (block && block->start == address && (kinds & (1u << block->kind)) && !block->imported) {
        remove_block(block);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}

CUresult sim_memory_free_now(CUdeviceptr address) {
    return free_at(address, 1u << SIM_DEVICE_MEMORY | 1u << SIM_MANAGED, CUDA_ERROR_INVALID_VALUE);
}

static CUresult quiet_before_free(uintptr_t address) {
    struct sim_pointer pointer = sim_memory_find((void *)address);
    CUresult result = sim_capture_forbid();

    if (result || !pointer.found || !pointer.block.ctx)
        return result;
    sim_ctx_synchronize(pointer.block.ctx);
    return CUDA_SUCCESS;
}

CUresult sim_memory_free(CUdeviceptr address) {
    if (!address)
        return CUDA_SUCCESS;
    if (sim_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = quiet_before_free(address);
    return result ? result : sim_memory_free_now(address);
}

CUresult sim_host_free(void *address) {
    if (!address)
        return CUDA_SUCCESS;
    CUresult result = quiet_before_free((uintptr_t)address);
    return result ? result : free_at((uintptr_t)address, 1u << SIM_HOST_MEMORY, CUDA_ERROR_INVALID_VALUE);
}

CUresult sim_host_register(void *address, size_t bytes, unsigned flags) {
    struct sim_block *block;
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);

    if (result || !address || !bytes)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (!(block = calloc(1, sizeof *block)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *block = (struct sim_block){.start = (uintptr_t)address,
                                .size = bytes,
                                .length = bytes,
                                .kind = SIM_REGISTERED,
                                .device = ctx->device,
                                .flags = flags,
                                .ctx = ctx};
    block->id = sim_next_id();
    pthread_rwlock_wrlock(&sim_memory_lock);
    size_t after = space_after(&sim_blocks, block->start + bytes - 1);
    struct sim_block *before = after ? sim_blocks.items[after - 1] : NULL;
    if (before && before->start + before->size > block->start)
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if (sim_space_add(&sim_blocks, block))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_unlock(&sim_memory_lock);
    if (result)
        free(block);
    return result;
}

CUresult sim_host_unregister(void *address) {
    struct sim_pointer pointer = sim_memory_find(address);

    if (pointer.found && pointer.block.ctx)
        sim_ctx_synchronize(pointer.block.ctx);
    return free_at((uintptr_t)address, 1u << SIM_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

struct sim_pointer sim_memory_find(const void *address) {
    struct sim_pointer pointer = {.found = false};

    pthread_rwlock_rdlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_blocks, (uintptr_t)address);
    if (block) {
        pointer.block = *block;
        pointer.found = true;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return pointer;
}

bool sim_memory_valid(const void *address, size_t bytes) {
    uintptr_t at = (uintptr_t)address, end = at + bytes;
    bool valid = true;

    if (!bytes || !sim_in_zone(at))
        return !bytes || !sim_in_zone(end - 1);
    pthread_rwlock_rdlock(&sim_memory_lock);
    while (valid && at < end) {
        struct sim_block *block = sim_space_find(&sim_blocks, at);
        valid = block && (block->kind != SIM_MAPPED || block->access);
        at = block ? block->start + block->size : end;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    return valid;
}

bool sim_memory_given(uintptr_t address) {
    pthread_rwlock_rdlock(&sim_memory_lock);
    bool given = address >= SIM_ZONE_START && address < zone_next;
    pthread_rwlock_unlock(&sim_memory_lock);
    return given;
}

size_t sim_memory_peak(int device) {
    pthread_rwlock_wrlock(&sim_memory_lock);
    size_t peak = devices[device].peak;
    devices[device].peak = devices[device].used;
    pthread_rwlock_unlock(&sim_memory_lock);
    return peak;
}

CUresult sim_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    if (device < 0 || device >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_rwlock_rdlock(&sim_memory_lock);
    *total_bytes = sim_config()->memory;
    *free_bytes = *total_bytes - devices[device].used;
    pthread_rwlock_unlock(&sim_memory_lock);
    return CUDA_SUCCESS;
}

/* ---- sharing between processes ---- */

struct ipc_handle {
    uint32_t magic, device;
    int32_t pid, fd;
    int64_t offset;
    uint64_t size;
    uint64_t distance; /* of the exported address from the block's start; CUDA opens the whole block */
};

#define IPC_MAGIC 0x53494d31u

CUresult sim_ipc_export(CUdeviceptr address, void *handle64) {
    struct sim_pointer pointer = sim_memory_find((void *)address);

    if (!pointer.found || pointer.block.kind != SIM_DEVICE_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_allocation *physical = pointer.block.physical;
    struct ipc_handle handle = {.magic = IPC_MAGIC,
                                .device = (uint32_t)pointer.block.device,
                                .pid = getpid(),
                                .fd = physical->fd,
                                .offset = physical->offset,
                                .size = pointer.block.size};
    memset(handle64, 0, 64);
    memcpy(handle64, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

CUresult sim_ipc_open(const void *handle64, CUdeviceptr *address) {
    struct ipc_handle handle;
    char path[64];
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    memcpy(&handle, handle64, sizeof handle);
    if (handle.magic != IPC_MAGIC)
        return result;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT; /* CUDA refuses its own memory, too */
    struct sim_block *block = calloc(1, sizeof *block);
    struct sim_allocation *physical = calloc(1, sizeof *physical);
    if (!block || !physical) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        goto failed;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.pid, (int)handle.fd);
    *physical = (struct sim_allocation){.references = 1, .size = handle.size, .offset = handle.offset};
    physical->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    physical->prop.location.id = (int)handle.device;
    if ((physical->fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        goto failed;
    *block = (struct sim_block){.size = handle.size, .length = round_up(handle.size, SIM_PAGE)};
    block->device = (int)handle.device;
    block->physical = physical;
    block->imported = true;
    block->id = sim_next_id();
    pthread_rwlock_wrlock(&sim_memory_lock);
    block->start = sim_zone_take(block->length, SIM_GRANULE);
    if (!block->start ||
        mmap((void *)block->start, block->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
             physical->fd, physical->offset) == MAP_FAILED) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        result = sim_space_add(&sim_blocks, block) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim_memory_lock);
    if (!result) {
        *address = block->start;
        return CUDA_SUCCESS;
    }
    close(physical->fd);
failed:
    free(physical);
    free(block);
    return result;
}

CUresult sim_ipc_close(CUdeviceptr address) {
    CUresult result = quiet_before_free(address);

    if (result)
        return result;
    pthread_rwlock_wrlock(&sim_memory_lock);
    struct sim_block *block = sim_space_find(&sim_blocks, address);
    if (block && block->start == address && block->imported)
        remove_block(block);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&sim_memory_lock);
    return result;
}
