/* Kernels and their launches. A kernel does nothing, unless SIM_KERNELS names a library that has a body for it: a
 * function `sim_kernel_NAME(const unsigned grid[3], const unsigned block[3], void **arguments)`. */
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION_MAGIC 0x46554e43u
#define HOST_BUCKETS   16384u
#define RECORDS        65536u
#define LAYOUT_UNKNOWN 0u

struct launch_arguments {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes, bytes;
    uint64_t stream_id;
    int device;
    bool checked; /* the layout is known */
    _Alignas(16) unsigned char parameters[];
};

static CUfunction by_host[HOST_BUCKETS];
static pthread_rwlock_t functions_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct sim_launch *records;
static uint64_t recorded, dangling_seen;
static FILE *log_file;
static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static void *bodies;
static pthread_once_t bodies_once = PTHREAD_ONCE_INIT;

static void open_bodies(void) {
    const char *path = getenv("SIM_KERNELS");

    if (path && !(bodies = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        sim_say("SIM_KERNELS: %s", dlerror());
}

CUmodule sim_module_add(const void *image) {
    CUmodule module = calloc(1, sizeof *module);

    if (!module)
        return NULL;
    module->image = image;
    pthread_mutex_init(&module->lock, NULL);
    return module;
}

static size_t bucket(const void *host) {
    return ((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15ull >> 50;
}

CUfunction sim_function_add(CUmodule module, const char *name, const void *host) {
    CUfunction function = calloc(1, sizeof *function);
    char symbol[512];

    if (!function)
        return NULL;
    pthread_once(&bodies_once, open_bodies);
    function->magic = FUNCTION_MAGIC;
    function->name = name;
    function->host = host;
    function->module = module;
    function->dynamic_shared_limit = 49152;
    if (bodies && snprintf(symbol, sizeof symbol, "sim_kernel_%s", name) < (int)sizeof symbol) {
        void *body = dlsym(bodies, symbol);
        memcpy(&function->body, &body, sizeof body);
    }
    pthread_rwlock_wrlock(&functions_lock);
    function->next_in_module = module->functions;
    module->functions = function;
    if (host) {
        CUfunction *place = &by_host[bucket(host)];
        function->next_by_host = *place;
        *place = function;
    }
    pthread_rwlock_unlock(&functions_lock);
    return function;
}

CUfunction sim_function_by_host(const void *host) {
    pthread_rwlock_rdlock(&functions_lock);
    CUfunction function = by_host[bucket(host)];
    while (function && function->host != host)
        function = function->next_by_host;
    pthread_rwlock_unlock(&functions_lock);
    return function;
}

CUfunction sim_function_by_name(CUmodule module, const char *name) {
    pthread_rwlock_rdlock(&functions_lock);
    CUfunction function = module->functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next_in_module;
    pthread_rwlock_unlock(&functions_lock);
    return function;
}

void sim_function_layout(CUfunction function) {
    CUmodule module = function->module;

    pthread_mutex_lock(&module->lock);
    if (!module->parsed) {
        sim_fatbin_parse(module);
        module->parsed = true;
    }
    pthread_mutex_unlock(&module->lock);
}

CUresult sim_module_load(const void *image, CUmodule *module) {
    const char *text = image;

    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(*module = sim_module_add(image)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*module)->loaded = true;
    if (strstr(text, ".version") || strstr(text, ".entry"))
        (*module)->names = strdup(text);
    else
        sim_fatbin_parse(*module);
    (*module)->parsed = true;
    (*module)->image = NULL;
    if ((*module)->names || (*module)->functions)
        return CUDA_SUCCESS;
    sim_module_unload(*module);
    return CUDA_ERROR_INVALID_IMAGE;
}

/* Its functions stay, marked: launches of them may be on their way. */
CUresult sim_module_unload(CUmodule module) {
    if (!module || module->unloaded)
        return CUDA_ERROR_INVALID_HANDLE;
    module->unloaded = true;
    for (CUfunction f = module->functions; f; f = f->next_in_module)
        f->magic = 0;
    return CUDA_SUCCESS;
}

CUfunction sim_module_function(CUmodule module, const char *name) {
    CUfunction function;
    char entry[512];

    if (!module || module->unloaded || !name)
        return NULL;
    function = sim_function_by_name(module, name);
    if (!function && module->names && snprintf(entry, sizeof entry, ".entry %s", name) < (int)sizeof entry &&
        strstr(module->names, entry))
        function = sim_function_add(module, strdup(name), NULL);
    return function;
}

/* An address that no mapped block holds; one past the end of a block counts as inside. */
static bool is_dangling(uintptr_t address) {
    return !sim_memory_valid((void *)address, 1) && !sim_memory_valid((void *)(address - 1), 1);
}

static void record(const struct launch_arguments *launch, unsigned pointers, unsigned dangling) {
    pthread_mutex_lock(&records_lock);
    if (!records)
        records = calloc(RECORDS, sizeof *records);
    if (records) {
        struct sim_launch *entry = &records[recorded % RECORDS];
        *entry = (struct sim_launch){.sequence = recorded,
                                     .name = launch->function->name,
                                     .shared_bytes = launch->shared_bytes,
                                     .stream_id = launch->stream_id,
                                     .device = launch->device,
                                     .argument_bytes = launch->checked ? launch->bytes : LAYOUT_UNKNOWN,
                                     .pointers = pointers,
                                     .dangling = dangling};
        memcpy(entry->grid, launch->grid, sizeof entry->grid);
        memcpy(entry->block, launch->block, sizeof entry->block);
    }
    if (sim_config()->log_launches && !log_file) {
        log_file = fopen(getenv("SIM_LAUNCHES"), "ae");
        if (log_file)
            setvbuf(log_file, NULL, _IOLBF, 0);
    }
    if (log_file)
        fprintf(log_file,
                "%llu device=%d stream=%llu grid=%u,%u,%u block=%u,%u,%u shared=%u bytes=%u pointers=%u "
                "dangling=%u %s\n",
                (unsigned long long)recorded, launch->device, (unsigned long long)launch->stream_id,
                launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0], launch->block[1],
                launch->block[2], launch->shared_bytes, launch->bytes, pointers, dangling,
                launch->function->name);
    recorded++;
    dangling_seen += dangling;
    pthread_mutex_unlock(&records_lock);
}

static CUresult run_launch(void *arguments) {
    struct launch_arguments *launch = arguments;
    CUfunction function = launch->function;
    unsigned pointers = 0, dangling = 0;

    for (unsigned at = 0; launch->checked && at + sizeof(uintptr_t) <= launch->bytes;
         at += sizeof(uintptr_t)) {
        uintptr_t value;
        memcpy(&value, launch->parameters + at, sizeof value);
        if (!sim_memory_given(value))
            continue;
        pointers++;
        dangling += is_dangling(value);
    }
    record(launch, pointers, dangling);
    atomic_fetch_add(&function->launches, 1);
    if (dangling && sim_config()->check_faults)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (function->body && launch->checked) {
        void *values[128];
        for (unsigned i = 0; i < function->parameter_count && i < 128; i++)
            values[i] = launch->parameters + function->parameters[i].offset;
        function->body(launch->grid, launch->block, values);
    }
    return CUDA_SUCCESS;
}

static bool fits(const unsigned *grid, const unsigned *block, unsigned shared_bytes) {
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];

    return grid[0] && grid[1] && grid[2] && threads && threads <= 1024 && block[2] <= 64 &&
           grid[0] <= 2147483647u && grid[1] <= 65535 && grid[2] <= 65535 && shared_bytes <= 232448;
}

CUresult sim_launch(CUfunction function, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                    CUstream stream, void **arguments, const void *buffer, size_t buffer_bytes) {
    CUresult result = sim_stream_resolve(&stream);

    if (result)
        return result;
    if (!function || function->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!fits(grid, block, shared_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    sim_function_layout(function);
    size_t bytes = buffer ? buffer_bytes : function->parameter_bytes;
    if (bytes > 32768)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned char place[sizeof(struct launch_arguments) + 4096 + 8];
    struct launch_arguments *launch = (void *)place;
    if (bytes > 4096 && !(launch = malloc(sizeof *launch + bytes + 8)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *launch = (struct launch_arguments){
        .function = function, .shared_bytes = shared_bytes, .bytes = (unsigned)bytes};
    memcpy(launch->grid, grid, sizeof launch->grid);
    memcpy(launch->block, block, sizeof launch->block);
    launch->stream_id = stream->id;
    launch->device = stream->ctx->device;
    launch->checked = function->laid_out && (buffer || arguments || !function->parameter_count);
    memset(launch->parameters, 0, bytes);
    if (buffer) {
        memcpy(launch->parameters, buffer, bytes);
    } else if (launch->checked) {
        for (unsigned i = 0; i < function->parameter_count; i++)
            memcpy(launch->parameters + function->parameters[i].offset, arguments[i],
                   function->parameters[i].size);
    }
    result = sim_stream_submit(stream, function->body ? SIM_KERNEL : SIM_LAUNCH, run_launch, launch,
                               sizeof *launch + bytes);
    if ((void *)launch != place)
        free(launch);
    return result;
}

uint64_t sim_launch_count(void) {
    pthread_mutex_lock(&records_lock);
    uint64_t count = recorded;
    pthread_mutex_unlock(&records_lock);
    return count;
}

uint64_t sim_launch_dangling(void) {
    pthread_mutex_lock(&records_lock);
    uint64_t count = dangling_seen;
    pthread_mutex_unlock(&records_lock);
    return count;
}

int sim_launch_get(uint64_t sequence, struct sim_launch *launch) {
    int found = 0;

    pthread_mutex_lock(&records_lock);
    if (records && sequence < recorded && recorded - sequence <= RECORDS) {
        *launch = records[sequence % RECORDS];
        found = 1;
    }
    pthread_mutex_unlock(&records_lock);
    return found;
}
