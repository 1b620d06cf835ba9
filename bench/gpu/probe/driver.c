/* The driver, the first device, pages and kernels, as the checks use them. */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUM_BLOCKS  1024u
#define SUM_THREADS 256u

struct driver cu;
CUdevice device;
int host_node;
const char *const place_names[PLACE_COUNT] = {"device", "HOST_NUMA", "HOST"};

static const char *const kernel_names[KERNEL_COUNT] = {"probe_fill", "probe_wrong", "probe_sum", "probe_spin",
                                                       "probe_spin_write"};
static CUfunction kernels[KERNEL_COUNT];
static bool kernels_loaded;
static CUdeviceptr scratch; /* of the sums, and the count of wrong words */

#define NAME_OF(name)        #name
#define DRIVER_LOOK_UP(name) {NAME_OF(name), (void **)&cu.name},

const char *error_name(CUresult error) {
    const char *name = NULL;

    if (!cu.cuGetErrorName || cu.cuGetErrorName(error, &name) || !name)
        return "an error without a name";
    return name;
}

static bool load_driver(void) {
    struct {
        const char *name;
        void **pointer;
    } functions[] = {DRIVER_FUNCTIONS(DRIVER_LOOK_UP)};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

    EXPECT(library, "libcuda.so.1: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *functions[i].pointer = dlsym(library, functions[i].name);
        EXPECT(*functions[i].pointer, "this driver has no %s", functions[i].name);
    }
    return true;
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    long bytes;

    if (file && !fseek(file, 0, SEEK_END) && (bytes = ftell(file)) >= 0 &&
        (text = calloc(1, (size_t)bytes + 1))) {
        rewind(file);
        if (fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(text);
            text = NULL;
        }
    }
    if (file)
        (void)fclose(file);
    return text;
}

static bool load_kernels(void) {
    CUlibrary library;
    CUkernel kernel;
    char *image = read_file(settings.kernels);

    EXPECT(image, "%s cannot be read", settings.kernels);
    DO(cu.cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    for (int i = 0; i < KERNEL_COUNT; i++) {
        DO(cu.cuLibraryGetKernel(&kernel, library, kernel_names[i]));
        DO(cu.cuKernelGetFunction(&kernels[i], kernel));
    }
    DO(cu.cuMemAlloc(&scratch, (SUM_BLOCKS * SUM_THREADS + 1) * sizeof(uint64_t)));
    kernels_loaded = true;
    return true;
}

bool device_open(void) {
    CUcontext context;

    PASS(load_driver());
    DO(cu.cuInit(0));
    DO(cu.cuDeviceGet(&device, 0));
    DO(cu.cuDevicePrimaryCtxRetain(&context, device));
    DO(cu.cuCtxSetCurrent(context));
    if (cu.cuDeviceGetAttribute(&host_node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) || host_node < 0)
        host_node = 0;
    return !settings.kernels || load_kernels();
}

bool need_kernels(void) {
    return kernels_loaded || check_left_out("there are no kernels: nvcc has not made any");
}

/* ---- pages ---- */

CUmemAllocationProp place_prop(enum place place) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    prop.location.type = place == PLACE_DEVICE      ? CU_MEM_LOCATION_TYPE_DEVICE
                         : place == PLACE_HOST_NUMA ? CU_MEM_LOCATION_TYPE_HOST_NUMA
                                                    : CU_MEM_LOCATION_TYPE_HOST;
    prop.location.id = place == PLACE_DEVICE ? device : place == PLACE_HOST_NUMA ? host_node : 0;
    return prop;
}

CUmemAccessDesc device_access(CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.flags = flags};

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    return access;
}

bool whole_units(enum place place, size_t *bytes) {
    CUmemAllocationProp prop = place_prop(place);
    size_t unit;

    DO(cu.cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    *bytes = (*bytes + unit - 1) / unit * unit;
    return true;
}

bool pages_create(enum place place, size_t bytes, CUmemGenericAllocationHandle *pages) {
    CUmemAllocationProp prop = place_prop(place);

    DO(cu.cuMemCreate(pages, bytes, &prop, 0));
    return true;
}

bool pages_map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle pages) {
    CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    DO(cu.cuMemMap(address, bytes, 0, pages, 0));
    DO(cu.cuMemSetAccess(address, bytes, &access, 1));
    return true;
}

bool place_make(enum place place, size_t bytes, CUdeviceptr *address) {
    CUmemGenericAllocationHandle pages;

    PASS(whole_units(place, &bytes));
    PASS(pages_create(place, bytes, &pages));
    DO(cu.cuMemAddressReserve(address, bytes, 0, 0, 0));
    return pages_map(*address, bytes, pages);
}

bool host_place(enum place *place) {
    for (*place = PLACE_HOST_NUMA; *place < PLACE_COUNT; (*place)++) {
        CUmemAllocationProp prop = place_prop(*place);
        CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUmemGenericAllocationHandle pages;
        CUdeviceptr address;
        size_t bytes = 1;
        if (cu.cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
            cu.cuMemCreate(&pages, bytes, &prop, 0))
            continue;
        bool works = !cu.cuMemAddressReserve(&address, bytes, 0, 0, 0) &&
                     !cu.cuMemMap(address, bytes, 0, pages, 0) &&
                     !cu.cuMemSetAccess(address, bytes, &access, 1);
        if (works && !cu.cuMemUnmap(address, bytes) && !cu.cuMemRelease(pages)) {
            report_text("host_pages", place_names[*place]);
            return true;
        }
    }
    return check_left_out("this driver puts no host pages under a device's address");
}

static uint64_t number_in(const char *path, const char *before) {
    char line[256];
    uint64_t number = UINT64_MAX;
    FILE *file = fopen(path, "re");

    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, before, strlen(before)) == 0) {
            const char *digits = line + strlen(before);
            digits += strspn(digits, " \t");
            if (*digits >= '0' && *digits <= '9')
                number = strtoull(digits, NULL, 10);
            break;
        }
    }
    if (file)
        (void)fclose(file);
    return number;
}

/* The process's own group, as version 2 of control groups has it; else the root of what the container sees; else version 1. */
uint64_t cgroup_bytes(const char *name) {
    char line[512] = "", path[800];
    uint64_t bytes = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");

    while (file && fgets(line, sizeof line, file) && strncmp(line, "0::", 3) != 0)
        continue;
    if (file)
        (void)fclose(file);
    if (strncmp(line, "0::", 3) == 0) {
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", line + 3, name);
        bytes = number_in(path, "");
    }
    if (bytes == UINT64_MAX) {
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
        bytes = number_in(path, "");
    }
    if (bytes == UINT64_MAX)
        bytes = number_in(strcmp(name, "memory.max") == 0 ? "/sys/fs/cgroup/memory/memory.limit_in_bytes"
                                                          : "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                          "");
    return bytes >> 60 ? UINT64_MAX : bytes; /* version 1 has a number for no limit */
}

uint64_t available_bytes(void) {
    uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");

    return kib == UINT64_MAX ? 0 : kib * KIB;
}

uint64_t host_room(void) {
    if (settings.host_bytes) /* a machine may have more than it shows at first */
        return settings.host_bytes;
    uint64_t room = available_bytes(), most = cgroup_bytes("memory.max"),
             used = cgroup_bytes("memory.current");

    if (most != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = most > used ? most - used : 0;
        room = left < room ? left : room;
    }
    return room / 10 * 7; /* the rest of the machine lives on */
}

/* ---- kernels ---- */

static bool launch(enum kernel kernel, unsigned blocks, unsigned threads, CUstream stream, void **arguments) {
    PASS(need_kernels());
    DO(cu.cuLaunchKernel(kernels[kernel], blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL));
    return true;
}

static bool fill(CUdeviceptr to, size_t bytes, uint64_t seed, uint64_t keep, uint64_t set, CUstream stream) {
    uint64_t words = bytes / sizeof(uint64_t);

    return launch(KERNEL_FILL, SUM_BLOCKS, SUM_THREADS, stream, (void *[]){&to, &words, &seed, &keep, &set});
}

bool kernel_fill(CUdeviceptr to, size_t bytes, uint64_t seed, CUstream stream) {
    return fill(to, bytes, seed, UINT64_MAX, 0, stream);
}

/* The sign and the mantissa of each bfloat16 stay, and of the upper half of each float; the exponent is that of 0.5. */
bool kernel_numbers(CUdeviceptr to, size_t bytes, uint64_t seed, CUstream stream) {
    return fill(to, bytes, seed, 0x807f807f807f807full, 0x3f003f003f003f00ull, stream);
}

bool kernel_wrong(CUdeviceptr from, size_t bytes, uint64_t seed, uint64_t *wrong) {
    uint64_t words = bytes / sizeof(uint64_t);
    CUdeviceptr count = scratch + (size_t)SUM_BLOCKS * SUM_THREADS * sizeof(uint64_t);

    PASS(need_kernels());
    DO(cu.cuMemsetD8(count, 0, sizeof *wrong));
    PASS(launch(KERNEL_WRONG, SUM_BLOCKS, SUM_THREADS, NULL, (void *[]){&from, &words, &seed, &count}));
    DO(cu.cuMemcpyDtoH(wrong, count, sizeof *wrong));
    return true;
}

bool kernel_sum(CUdeviceptr from, size_t bytes, CUstream stream) {
    uint64_t words = bytes / sizeof(uint64_t);

    return launch(KERNEL_SUM, SUM_BLOCKS, SUM_THREADS, stream, (void *[]){&from, &words, &scratch});
}

bool kernel_spin(uint64_t ns, CUstream stream) {
    return launch(KERNEL_SPIN, 1, 1, stream, (void *[]){&ns});
}

bool kernel_spin_write(uint64_t ns, CUdeviceptr to, CUstream stream) {
    return launch(KERNEL_SPIN_WRITE, 1, 1, stream, (void *[]){&ns, &to});
}

uint64_t word_of(uint64_t seed, uint64_t index) {
    uint64_t x = (index + seed) * 0x9e3779b97f4a7c15ull;

    return x ^ x >> 29;
}
