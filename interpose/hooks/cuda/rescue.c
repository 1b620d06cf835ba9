#include "rescue.h"

#include "capture.h"
#include "base/error.h"
#include "base/log.h"
#include "device/devices.h"
#include "events/gate.h"
#include "events/life.h"
#include "observe.h"
#include "overflow.h"
#include "shims/cuda/types.h"

#define SLACK_BYTES                                                                                          \
    (UINT64_C(64) << 20) /* freed beyond what is asked for, at most: the next request is near */
#define SLACK_PART    64 /* and of the device's memory */
#define GRANULE_BYTES (UINT64_C(2) << 20) /* of what the driver takes for one allocation */

/* ---- which device ---- */

static int runtime_device(void) {
    int device = observe_thread.device;
    cudaError_t (*get)(int *) = hooks_runtime_symbol("cudaGetDevice");
    return get && get(&device) == cudaSuccess ? device : observe_thread.device;
}

static int driver_device(void) {
    CUdevice device = -1;
    CUresult (*get)(CUdevice *) = hooks_driver_symbol("cuCtxGetDevice");
    return get && get(&device) == CUDA_SUCCESS ? device : -1;
}

/* -1: the memory is not a device's. */
static int property_device(const CUmemAllocationProp_v1 *property) {
    return property && property->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? property->location.id : -1;
}

/* ---- a rescue ---- */

typedef struct rescue {
    int device;
    bool last, movable; /* the slots' memory is given too; there are homes to move */
    homes *homes;
    uint64_t bytes, rounds, freed, given;
    homes_statistics before;
} rescue;

/* True: this device says it for the first time. */
static bool first_time(bool said[DEVICES_MAX], int device) {
    return !__atomic_exchange_n(&said[device], true, __ATOMIC_RELAXED);
}

/* Of the device's memory, by the driver's account. */
typedef struct room {
    uint64_t free, total;
} room;

static room room_of(const rescue *r) {
    const device_driver *driver = devices_driver();
    room found = {0, 0};
    driver->room(driver->context, r->device, &found.free, &found.total);
    return found;
}

/* Whether what moves, and then what the slots hold, makes room; they are given when PyTorch has freed what it caches. */
static bool would_do(const rescue *r, uint64_t moves, uint64_t free_bytes) {
    uint64_t given = r->last ? slots_region_held(devices_slots(r->device)) : 0;
    return moves + given && free_bytes + moves + given >= r->bytes;
}

/* It is PyTorch's error. */
static void fixed_say(const rescue *r) {
    static bool said[DEVICES_MAX];
    homes_statistics found;
    uint64_t there = 0;
    homes_statistics_get(r->homes, &found);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        there += found.bytes[kind][DEVICE_TIER_DEVICE];
    if (there && first_time(said, r->device))
        LOG_W(
            "device %d is out of memory: its driver moves no model data, of which it has %B; give a smaller "
            "CASTOR_DEVICE_BUDGET",
            r->device, there);
}

static bool rescue_begin(rescue *r, int device, size_t bytes, bool last) {
    static bool said[DEVICES_MAX];
    *r = (rescue){.device = device, .last = last, .homes = devices_homes(device)};
    if (!r->homes)
        return false;
    r->bytes = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    room there = room_of(r);
    if (r->bytes > there.total) /* which says nothing about the memory */
        return false;
    homes_short(r->homes);
    if (capture_runs())
        return false;
    uint64_t moves = homes_evictable(r->homes);
    r->movable = moves != 0;
    /* Nothing moves in vain: PyTorch frees what it caches and asks again, or fails. */
    if (!would_do(r, moves, there.free)) {
        if (!moves && last && homes_are_fixed(r->homes))
            fixed_say(r);
        return false;
    }
    if (gate_close(GATE_PATIENCE_NS) != CASTOR_OK) {
        if (first_time(said, device))
            LOG_W("device %d is out of memory, and model data stays on it: %s", device, error_text());
        return false;
    }
    homes_statistics_get(r->homes, &r->before);
    error_set(CASTOR_OK, "none of it can move"); /* unless homes_evict knows more */
    return true;
}

/* Frees memory. In the first round what is missing by the driver's account; that may lie in pieces, so that later ones free as much as
 * is asked for. False: nothing more could be freed. */
static bool rescue_more(rescue *r) {
    room there = room_of(r);
    uint64_t slack = there.total / SLACK_PART < SLACK_BYTES ? there.total / SLACK_PART : SLACK_BYTES;
    uint64_t wanted = r->bytes + slack;
    if (r->rounds++ == 0 && there.free < r->bytes)
        wanted -= there.free;
    uint64_t freed = homes_evict(r->homes, wanted), given = 0;
    if (!freed && would_do(r, 0, room_of(r).free))
        given = slots_region_give(devices_slots(r->device));
    r->freed += freed;
    r->given += given;
    return freed + given > 0;
}

static void rescue_say(const rescue *r) {
    static const struct {
        chunk_kind kind;
        const char *name;
    } kinds[] = {{CHUNK_OPTIM, "optimizer states"}, {CHUNK_GRAD, "gradients"}, {CHUNK_PARAM, "parameters"}};
    homes_statistics now;
    char moved[160] = "";
    size_t used = 0;
    homes_statistics_get(r->homes, &now);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t before = r->before.bytes[kinds[i].kind][DEVICE_TIER_HOST],
                 after = now.bytes[kinds[i].kind][DEVICE_TIER_HOST];
        if (after > before)
            used += log_format(moved + used, sizeof moved - used, "%s%B of %s", used ? ", " : "",
                               after - before, kinds[i].name);
    }
    LOG_I("device %d was out of memory: %s moved to host memory", r->device, moved);
}

static void rescue_end(const rescue *r) {
    static bool said[DEVICES_MAX], said_given[DEVICES_MAX], said_not[DEVICES_MAX];
    gate_open();
    if (r->freed && first_time(said, r->device))
        rescue_say(r);
    else if (!r->freed && r->given && first_time(said_given, r->device))
        LOG_I(
            "device %d was out of memory: %B of slots are free now, and parameters are read from host memory "
            "meanwhile",
            r->device, r->given);
    else if (r->movable && !r->freed && !r->given && first_time(said_not, r->device))
        LOG_W("device %d is out of memory, and model data stays on it: %s", r->device, error_text());
}

/* The runtime keeps its last error until it is asked for: PyTorch would find it. */
static void error_forget(void) {
    cudaError_t (*last)(void) = hooks_runtime_symbol("cudaGetLastError");
    if (last)
        last();
}

static void nothing(void) {}

/* The replacement of a row. `otherwise`: the last resort has helped. */
#define RESCUED(result, memory_error, function, parameters, arguments, device_, bytes, forget, otherwise)    \
    static result rescued_##function parameters {                                                            \
        result(*real) parameters = hooks_find(HOOK_##function);                                              \
        result status = real arguments;                                                                      \
        rescue r;                                                                                            \
        if (status == 0)                                                                                     \
            overflow_not_needed();                                                                           \
        if (status != (memory_error))                                                                        \
            return status;                                                                                   \
        int device = device_;                                                                                \
        bool last = device >= 0 && overflow_is_last(device, bytes);                                          \
        if (rescue_begin(&r, device, bytes, last)) {                                                         \
            while (status == (memory_error) && rescue_more(&r)) {                                            \
                forget();                                                                                    \
                status = real arguments;                                                                     \
            }                                                                                                \
            rescue_end(&r);                                                                                  \
        }                                                                                                    \
        if (last && status == (memory_error) && (otherwise)) {                                               \
            forget();                                                                                        \
            status = 0;                                                                                      \
        }                                                                                                    \
        return status;                                                                                       \
    }
#define RUNTIME(function, parameters, arguments, otherwise)                                                  \
    RESCUED(cudaError_t, cudaErrorMemoryAllocation, function, parameters, arguments, runtime_device(), size, \
            error_forget, otherwise)
#define DRIVER(function, parameters, arguments, device, otherwise)                                           \
    RESCUED(CUresult, CUDA_ERROR_OUT_OF_MEMORY, function, parameters, arguments, device, size, nothing,      \
            otherwise)

RUNTIME(cudaMalloc, (void **out, size_t size), (out, size), overflow_allocate(device, size, out))
RUNTIME(cudaMallocAsync, (void **out, size_t size, cudaStream_t stream), (out, size, stream), false)
RUNTIME(cudaMallocAsync_ptsz, (void **out, size_t size, cudaStream_t stream), (out, size, stream), false)
DRIVER(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), (out, size), driver_device(), false)
DRIVER(cuMemCreate,
       (CUmemGenericAllocationHandle_v1 * handle, size_t size, const CUmemAllocationProp_v1 *property,
        unsigned long long flags),
       (handle, size, property, flags), property_device(property),
       overflow_create(device, size, (uint64_t *)handle))

/* ---- free memory ---- */

static void free_add(int device, size_t *free, const size_t *total) {
    homes *h = devices_homes(device);
    if (!h || !free)
        return;
    const device_driver *driver = devices_driver();
    uint64_t more = homes_evictable(h), host = driver->host_room(driver->context);
    *free += more < host ? more : host;
    if (total && *free > *total)
        *free = *total;
}

static cudaError_t counted_cudaMemGetInfo(size_t *free, size_t *total) {
    cudaError_t (*real)(size_t *, size_t *) = hooks_find(HOOK_cudaMemGetInfo);
    cudaError_t status = real(free, total);
    if (status == cudaSuccess)
        free_add(runtime_device(), free, total);
    return status;
}

static CUresult counted_cuMemGetInfo_v2(size_t *free, size_t *total) {
    CUresult (*real)(size_t *, size_t *) = hooks_find(HOOK_cuMemGetInfo_v2);
    CUresult status = real(free, total);
    if (status == CUDA_SUCCESS)
        free_add(driver_device(), free, total);
    return status;
}

castor_status rescue_install(void) {
    castor_status status = life_fork_register(NULL, NULL, gate_reset);
    if (status != CASTOR_OK)
        return error_set(status, "too many parts of the library want to hear of a fork");
    capture_install();
#define INSTALL(kind, function) observe_target_replace(HOOK_##function, (void *)kind##_##function)
    if (!INSTALL(rescued, cudaMalloc))
        return error_set(CASTOR_ERR_UNSUPPORTED, "there is no runtime of CUDA in this process");
    INSTALL(rescued, cudaMallocAsync);
    INSTALL(rescued, cudaMallocAsync_ptsz);
    INSTALL(rescued, cuMemAlloc_v2);
    INSTALL(rescued, cuMemCreate);
    overflow_install();
    INSTALL(counted, cudaMemGetInfo);
    INSTALL(counted, cuMemGetInfo_v2);
    return CASTOR_OK;
}
