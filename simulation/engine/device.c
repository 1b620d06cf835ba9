/* Devices and contexts: what they say about themselves, and which one a thread works on. */
#include "sim.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 32

static struct CUctx_st *primary[SIM_DEVICES_MAX];
static atomic_bool started;
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct {
    CUcontext stack[STACK_DEPTH];
    int depth;
    int device;
} current;

static CUcontext context_make(int device, bool is_primary, unsigned flags) {
    CUcontext ctx = calloc(1, sizeof *ctx);

    if (!ctx)
        return NULL;
    ctx->device = device;
    ctx->primary = is_primary;
    ctx->flags = flags;
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    pthread_mutex_init(&ctx->order, NULL);
    return ctx;
}

/* Finds the part of NVRTC that lies beside a library of CUDA; `context` gets its path. */
static int see_builtins(struct dl_phdr_info *object, size_t size, void *context) {
    const char *slash = strrchr(object->dlpi_name, '/');
    char pattern[PATH_MAX];
    glob_t found;
    (void)size;

    if (!slash || (strncmp(slash, "/libcu", 6) != 0 && strncmp(slash, "/libnv", 6) != 0))
        return 0;
    int length = snprintf(pattern, sizeof pattern, "%.*s/libnvrtc-builtins.so.13.*",
                          (int)(slash - object->dlpi_name), object->dlpi_name);
    if (length >= PATH_MAX || glob(pattern, 0, NULL, &found) != 0)
        return 0;
    snprintf(context, PATH_MAX, "%s", found.gl_pathv[0]);
    globfree(&found);
    return 1;
}

/* NVRTC asks for that part by its name alone, along no path that leads to it: PyTorch would answer by loading the wheel's cuBLAS in
 * front, which does not start behind the simulated cuBLASLt. Once it is loaded, it is found by its name. */
static void load_builtins(void) {
    char path[PATH_MAX];
    if (dl_iterate_phdr(see_builtins, path) == 1)
        dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

CUresult sim_ctx_primary(int device, CUcontext *ctx) {
    if (sim_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= sim_config()->devices)
        return sim_config()->devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NO_DEVICE;
    static pthread_once_t builtins_loaded = PTHREAD_ONCE_INIT;
    pthread_once(&builtins_loaded, load_builtins);
    pthread_mutex_lock(&primary_lock);
    if (!primary[device])
        primary[device] = context_make(device, true, 0);
    *ctx = primary[device];
    pthread_mutex_unlock(&primary_lock);
    return *ctx ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_start(void) {
    atomic_store_explicit(&started, true, memory_order_relaxed);
}

bool sim_started(void) {
    return atomic_load_explicit(&started, memory_order_relaxed);
}

bool sim_ctx_primary_active(int device) {
    pthread_mutex_lock(&primary_lock);
    bool active = device >= 0 && device < SIM_DEVICES_MAX && primary[device];
    pthread_mutex_unlock(&primary_lock);
    return active;
}

CUresult sim_ctx_current(CUcontext *ctx, bool make) {
    *ctx = current.depth ? current.stack[current.depth - 1] : NULL;
    if (!*ctx && make) {
        CUresult result = sim_ctx_primary(current.device, ctx);
        if (result)
            return result;
        return sim_ctx_set(*ctx);
    }
    if (*ctx && (*ctx)->destroyed)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_set(CUcontext ctx) {
    if (!ctx) {
        if (current.depth)
            current.stack[current.depth - 1] = NULL;
        return CUDA_SUCCESS;
    }
    if (!current.depth)
        current.depth = 1;
    current.stack[current.depth - 1] = ctx;
    current.device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_push(CUcontext ctx) {
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth == STACK_DEPTH)
        return CUDA_ERROR_UNKNOWN;
    current.stack[current.depth++] = ctx;
    current.device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_pop(CUcontext *ctx) {
    if (!current.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext top = current.stack[--current.depth];
    if (ctx)
        *ctx = top;
    if (current.depth && current.stack[current.depth - 1])
        current.device = current.stack[current.depth - 1]->device;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_create(int device, unsigned flags, CUcontext *ctx) {
    if (device < 0 || device >= sim_config()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *ctx = context_make(device, false, flags);
    return *ctx ? sim_ctx_push(*ctx) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_ctx_destroy(CUcontext ctx) {
    if (!ctx || ctx->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_ctx_synchronize(ctx);
    ctx->destroyed = true; /* the memory stays: threads may still name it */
    if (current.depth && current.stack[current.depth - 1] == ctx)
        current.depth--;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_synchronize(CUcontext ctx) {
    CUresult result = sim_capture_forbid();

    if (result)
        return result;
    pthread_mutex_lock(&ctx->order);
    for (CUstream stream = ctx->streams; stream; stream = stream->next_in_context) {
        uint64_t last = stream->submitted;
        pthread_mutex_unlock(&ctx->order);
        sim_stream_await(stream, last); /* streams are never freed, and new ones come at the front */
        pthread_mutex_lock(&ctx->order);
    }
    pthread_mutex_unlock(&ctx->order);
    return (CUresult)atomic_load(&ctx->sticky);
}

void sim_ctx_fail(CUcontext ctx, CUresult error) {
    int none = 0;

    atomic_compare_exchange_strong(&ctx->sticky, &none, (int)error);
}

int sim_device(void) {
    CUcontext ctx = current.depth ? current.stack[current.depth - 1] : NULL;

    return ctx ? ctx->device : current.device;
}

CUresult sim_device_set(int device) {
    CUcontext ctx;
    CUresult result = sim_ctx_primary(device, &ctx);

    return result ? result : sim_ctx_set(ctx);
}

void sim_device_uuid(int device, void *uuid) {
    unsigned char bytes[16] = "castor-sim-gpu-0";

    bytes[15] = (unsigned char)('a' + sim_config()->visible[device]);
    memcpy(uuid, bytes, sizeof bytes);
}

int sim_device_bus(int device) {
    return sim_config()->visible[device] + 1;
}

CUresult sim_device_attribute(int *value, int attribute, int device) {
    static const struct {
        int attribute, value;
    } known[] = {
#define ATTRIBUTE(name, value) {CU_DEVICE_ATTRIBUTE_##name, value},
#include "attributes.def"
#undef ATTRIBUTE
    };
    const struct sim_config *c = sim_config();

    if (device < 0 || device >= c->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *value = c->major;
    else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *value = c->minor;
    else if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = sim_device_bus(device);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].attribute == attribute)
            *value = known[i].value;
    }
    return CUDA_SUCCESS;
}
