/* Which memory a device takes under its addresses, and whether the bytes are right: what decides the library's level. */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t level_bytes(void) {
    return settings.tiny ? 2 * MIB : 64 * MIB;
}

/* ---- what the driver says ---- */

static void report_attribute(const char *name, CUdevice_attribute attribute) {
    int value = 0;
    CUresult error = cu.cuDeviceGetAttribute(&value, attribute, device);

    if (error)
        report_text(name, error_name(error));
    else
        report(name, "%d", value);
}

static void report_line(const char *name, const char *path) {
    char line[256] = "";
    FILE *file = fopen(path, "re");

    if (file && fgets(line, sizeof line, file))
        line[strcspn(line, "\n")] = '\0';
    if (file)
        (void)fclose(file);
    report_text(name, *line ? line : "not there");
}

/* Of NVML, which a machine with a driver has: whether the device is divided (MIG). */
static void report_mig(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = library ? dlsym(library, "nvmlInit_v2") : NULL;
    int (*find)(unsigned, void **) = library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : NULL;
    int (*mode)(void *, unsigned *, unsigned *) = library ? dlsym(library, "nvmlDeviceGetMigMode") : NULL;
    unsigned current = 0, pending = 0;
    void *handle = NULL;

    if (!init || !find || !mode || init() || find(0, &handle)) {
        report_text("mig", "unknown");
        return;
    }
    int error = mode(handle, &current, &pending);
    report_text("mig", error == 3 ? "not supported" : error ? "unknown" : current ? "on" : "off");
}

static void report_granularity(void) {
    for (int place = 0; place < PLACE_COUNT; place++) {
        CUmemAllocationProp prop = place_prop(place);
        size_t least = 0, advised = 0;
        CUresult error = cu.cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (!error)
            error = cu.cuMemGetAllocationGranularity(&advised, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        report_row("granularity",
                   "\"place\": \"%s\", \"minimum\": %zu, \"recommended\": %zu, \"error\": \"%s\"",
                   place_names[place], least, advised, error ? error_name(error) : "none");
    }
}

static bool check_device(void) {
    char name[256], bus[64] = "", path[128];
    int version = 0, count = 0;
    size_t bytes = 0, free_bytes = 0, total = 0;

    DO(cu.cuDeviceGetName(name, sizeof name, device));
    report_text("name", name);
    DO(cu.cuDriverGetVersion(&version));
    report("cuda", "%d", version);
    DO(cu.cuDeviceGetCount(&count));
    report("devices", "%d", count);
    DO(cu.cuDeviceTotalMem(&bytes, device));
    report("memory_bytes", "%zu", bytes);
    DO(cu.cuMemGetInfo(&free_bytes, &total));
    report("free_bytes", "%zu", free_bytes);
    if (!cu.cuDeviceGetPCIBusId(bus, sizeof bus, device)) {
        for (char *c = bus; *c; c++)
            *c = (char)(*c >= 'A' && *c <= 'F' ? *c - 'A' + 'a' : *c);
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
        report_text("bus", bus);
        report_line("bus_numa_node", path);
    }
    report_line("kernel_driver", "/proc/driver/nvidia/version");
    report_attribute("capability_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    report_attribute("capability_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    report_attribute("virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    report_attribute("host_numa_pages", CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    report_attribute("host_pages", CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    report_attribute("host_numa_id", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    report_attribute("numa_config", CU_DEVICE_ATTRIBUTE_NUMA_CONFIG);
    report_attribute("pageable_memory_access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    report_attribute("copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    report_attribute("processors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    report("host_available_bytes", "%llu", (unsigned long long)available_bytes());
    uint64_t most = cgroup_bytes("memory.max");
    if (most == UINT64_MAX)
        report_text("cgroup_max_bytes", "none");
    else
        report("cgroup_max_bytes", "%llu", (unsigned long long)most);
    report_mig();
    report_granularity();
    return true;
}

/* ---- pages under an address ---- */

static bool wrong_words(const uint64_t *words, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] != word_of(seed, i))
            return true;
    }
    return false;
}

/* Bytes that kernels and copies write are those that they read. */
static bool exercise(CUdeviceptr address, size_t bytes) {
    uint64_t *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), wrong;

    EXPECT(host != MAP_FAILED, "no memory for %zu bytes", bytes);
    PASS(kernel_fill(address, bytes, 1, NULL));
    PASS(kernel_wrong(address, bytes, 1, &wrong));
    EXPECT(wrong == 0, "%llu words are not what a kernel wrote", (unsigned long long)wrong);
    DO(cu.cuMemcpyDtoH(host, address, bytes));
    EXPECT(!wrong_words(host, bytes, 1), "a copy to the host is not what a kernel wrote");
    for (size_t i = 0; i < bytes / sizeof *host; i++)
        host[i] = word_of(2, i);
    DO(cu.cuMemcpyHtoD(address, host, bytes));
    PASS(kernel_wrong(address, bytes, 2, &wrong));
    EXPECT(wrong == 0, "%llu words are not what a copy wrote", (unsigned long long)wrong);
    munmap(host, bytes);
    return true;
}

/* New pages elsewhere with the same bytes take the address, as a home's flip does. */
static bool flip(CUdeviceptr address, size_t bytes, enum place to, CUdeviceptr alias,
                 CUmemGenericAllocationHandle *pages) {
    CUmemGenericAllocationHandle target;

    PASS(pages_create(to, bytes, &target));
    PASS(pages_map(alias, bytes, target));
    DO(cu.cuMemcpyAsync(alias, address, bytes, NULL));
    DO(cu.cuStreamSynchronize(NULL));
    DO(cu.cuMemUnmap(address, bytes));
    PASS(pages_map(address, bytes, target));
    DO(cu.cuMemUnmap(alias, bytes));
    DO(cu.cuMemRelease(*pages));
    *pages = target;
    return true;
}

static bool pages_and_flips(enum place host) {
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, alias;
    size_t bytes = level_bytes();
    uint64_t wrong;
    static const char *const steps[] = {"host to device", "device to host", "host to device again"};

    PASS(need_kernels());
    PASS(whole_units(host, &bytes));
    DO(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    DO(cu.cuMemAddressReserve(&alias, bytes, 0, 0, 0));
    PASS(pages_create(host, bytes, &pages));
    PASS(pages_map(address, bytes, pages));
    report("mapped", "true");
    PASS(exercise(address, bytes));
    report("bytes_right", "true");
    for (int step = 0; step < 3; step++) {
        PASS(kernel_fill(address, bytes, 10 + (uint64_t)step, NULL));
        PASS(flip(address, bytes, step == 1 ? host : PLACE_DEVICE, alias, &pages));
        PASS(kernel_wrong(address, bytes, 10 + (uint64_t)step, &wrong));
        EXPECT(wrong == 0, "after the flip %s %llu words are wrong", steps[step], (unsigned long long)wrong);
        PASS(exercise(address, bytes));
    }
    report("flips", "3");
    return true;
}

static bool check_host_numa(void) {
    return pages_and_flips(PLACE_HOST_NUMA);
}

static bool check_host(void) {
    return pages_and_flips(PLACE_HOST);
}

static bool check_device_pages(void) {
    CUdeviceptr address;
    size_t bytes = level_bytes();

    PASS(need_kernels());
    PASS(place_make(PLACE_DEVICE, bytes, &address));
    return exercise(address, bytes);
}

/* ---- the host at the same address ---- */

static CUresult host_access(CUdeviceptr address, size_t bytes, CUmemLocationType type) {
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    access.location.type = type;
    access.location.id = type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? host_node : 0;
    return cu.cuMemSetAccess(address, bytes, &access, 1);
}

/* The host reads and writes what the device does, at the device's address, without a copy. */
static bool check_host_at_the_address(void) {
    size_t bytes = level_bytes();
    enum place place;
    CUdeviceptr address;
    uint64_t wrong;

    PASS(need_kernels());
    PASS(host_place(&place));
    PASS(place_make(place, bytes, &address));
    CUresult numa = host_access(address, bytes, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    CUresult host = numa ? host_access(address, bytes, CU_MEM_LOCATION_TYPE_HOST) : numa;
    report_text("access_for_HOST_NUMA", error_name(numa));
    if (numa)
        report_text("access_for_HOST", error_name(host));
    EXPECT(!host, "the host gets no access: %s", error_name(host));
    PASS(kernel_fill(address, bytes, 3, NULL));
    DO(cu.cuCtxSynchronize());
    uint64_t *words = (uint64_t *)(uintptr_t)address;
    EXPECT(!wrong_words(words, bytes, 3), "the host reads other bytes than a kernel wrote");
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = word_of(4, i);
    PASS(kernel_wrong(address, bytes, 4, &wrong));
    EXPECT(wrong == 0, "%llu words are not what the host wrote", (unsigned long long)wrong);
    return true;
}

/* What is not expected to work; the answer is the finding. */
static bool check_answers(void) {
    size_t bytes = 4 * MIB;
    CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, other;
    enum place place;

    PASS(whole_units(PLACE_DEVICE, &bytes));
    PASS(place_make(PLACE_DEVICE, bytes, &address));
    report_text("host_access_to_device_pages",
                error_name(host_access(address, bytes, CU_MEM_LOCATION_TYPE_HOST_NUMA)));
    DO(cu.cuMemAddressReserve(&other, bytes, 0, 0, 0));
    PASS(pages_create(PLACE_DEVICE, bytes, &pages));
    CUresult error = cu.cuMemMap(other, bytes / 2, bytes / 2, pages, 0);
    report_text("map_at_an_offset", error_name(error));
    if (!error)
        report_text("access_at_an_offset", error_name(cu.cuMemSetAccess(other, bytes / 2, &access, 1)));
    report_text("map_where_pages_are", error_name(cu.cuMemMap(address, bytes, 0, pages, 0)));
    report_text("unmap_of_a_part", error_name(cu.cuMemUnmap(address, bytes / 2)));
    PASS(host_place(&place));
    PASS(pages_create(place, bytes, &pages));
    DO(cu.cuMemAddressReserve(&other, 2 * bytes, 0, 0, 0));
    DO(cu.cuMemMap(other, bytes, 0, pages, 0));
    report_text("access_over_a_gap", error_name(cu.cuMemSetAccess(other, 2 * bytes, &access, 1)));
    PASS(pages_create(PLACE_DEVICE, bytes, &pages));
    DO(cu.cuMemMap(other + bytes, bytes, 0, pages, 0));
    report_text("access_over_device_and_host_pages",
                error_name(cu.cuMemSetAccess(other, 2 * bytes, &access, 1)));
    return true;
}

/* Which functions take an address of host pages, whatever their names say. */
static bool check_functions(void) {
    size_t bytes = 4 * MIB;
    CUdeviceptr address, on_device;
    static char host[4096];
    enum place place;

    PASS(host_place(&place));
    PASS(place_make(place, bytes, &address));
    DO(cu.cuMemAlloc(&on_device, bytes));
    report_text("cuMemsetD8", error_name(cu.cuMemsetD8(address, 1, bytes)));
    report_text("cuMemcpyHtoD", error_name(cu.cuMemcpyHtoD(address, host, sizeof host)));
    report_text("cuMemcpyDtoH", error_name(cu.cuMemcpyDtoH(host, address, sizeof host)));
    report_text("cuMemcpyDtoDAsync to it", error_name(cu.cuMemcpyDtoDAsync(address, on_device, bytes, NULL)));
    report_text("cuMemcpyDtoDAsync from it",
                error_name(cu.cuMemcpyDtoDAsync(on_device, address, bytes, NULL)));
    report_text("cuMemcpyAsync from it", error_name(cu.cuMemcpyAsync(on_device, address, bytes, NULL)));
    report_text("cuMemcpyHtoDAsync from it",
                error_name(cu.cuMemcpyHtoDAsync(on_device, (void *)(uintptr_t)address, bytes, NULL)));
    report_text("cuMemcpyDtoHAsync to it",
                error_name(cu.cuMemcpyDtoHAsync((void *)(uintptr_t)address, on_device, bytes, NULL)));
    report_text("cuCtxSynchronize", error_name(cu.cuCtxSynchronize()));
    for (int i = 0; i < 3; i++) {
        static const CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                         CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                         CU_POINTER_ATTRIBUTE_IS_MANAGED};
        static const char *const names[] = {"memory type", "device ordinal", "is managed"};
        unsigned value = 0;
        CUresult error = cu.cuPointerGetAttribute(&value, attributes[i], address);
        if (error)
            report_text(names[i], error_name(error));
        else
            report(names[i], "%d", (int)value);
    }
    return true;
}

/* ---- one handle, two addresses ---- */

static bool two_addresses(enum place place, bool by_descriptor) {
    CUmemAllocationProp prop = place_prop(place);
    CUmemGenericAllocationHandle pages, second;
    CUdeviceptr one, two;
    size_t bytes = level_bytes();
    uint64_t wrong;

    PASS(need_kernels());
    PASS(whole_units(place, &bytes));
    if (by_descriptor)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DO(cu.cuMemCreate(&pages, bytes, &prop, 0));
    second = pages;
    if (by_descriptor) {
        int file;
        DO(cu.cuMemExportToShareableHandle(&file, pages, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        DO(cu.cuMemImportFromShareableHandle(&second, (void *)(intptr_t)file,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(file);
    }
    DO(cu.cuMemAddressReserve(&one, bytes, 0, 0, 0));
    DO(cu.cuMemAddressReserve(&two, bytes, 0, 0, 0));
    PASS(pages_map(one, bytes, pages));
    PASS(pages_map(two, bytes, second));
    PASS(kernel_fill(one, bytes, 5, NULL));
    PASS(kernel_wrong(two, bytes, 5, &wrong));
    EXPECT(wrong == 0, "the second address has other bytes: %llu words", (unsigned long long)wrong);
    return true;
}

static bool check_two_addresses(void) {
    enum place place;

    PASS(two_addresses(PLACE_DEVICE, false));
    report("device", "true");
    PASS(host_place(&place));
    return two_addresses(place, false);
}

static bool check_shared_handles(void) {
    PASS(two_addresses(PLACE_DEVICE, true));
    report("device", "true");
    return two_addresses(PLACE_HOST_NUMA, true);
}

/* ---- the second level: host memory that was never the device's ---- */

static bool check_mapped_host(void) {
    size_t bytes = level_bytes();
    CUdeviceptr address;
    void *host;

    PASS(need_kernels());
    DO(cu.cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    DO(cu.cuMemHostGetDevicePointer(&address, host, 0));
    report("same_address", "%s", (uintptr_t)host == address ? "true" : "false");
    return exercise(address, bytes);
}

static bool check_registered_host(void) {
    size_t bytes = level_bytes();
    CUdeviceptr address;
    void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    PASS(need_kernels());
    EXPECT(host != MAP_FAILED, "no memory");
    DO(cu.cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    DO(cu.cuMemHostGetDevicePointer(&address, host, 0));
    report("same_address", "%s", (uintptr_t)host == address ? "true" : "false");
    return exercise(address, bytes);
}

/* ---- read-only for the device: what happens to a write; each in a process of its own, whose context may end ---- */

static bool write_to_read_only(enum place place, bool by_kernel) {
    CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READ);
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, alias;
    size_t bytes = level_bytes();
    uint64_t word = 0, wrong;

    PASS(need_kernels());
    PASS(whole_units(place, &bytes));
    PASS(pages_create(place, bytes, &pages));
    DO(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    DO(cu.cuMemAddressReserve(&alias, bytes, 0, 0, 0));
    PASS(pages_map(alias, bytes, pages)); /* writable */
    PASS(kernel_fill(alias, bytes, 6, NULL));
    DO(cu.cuMemMap(address, bytes, 0, pages, 0));
    CUresult given = cu.cuMemSetAccess(address, bytes, &access, 1);
    report_text("read_only_access", error_name(given));
    if (given)
        return true;
    PASS(kernel_wrong(address, bytes, 6, &wrong));
    EXPECT(wrong == 0, "%llu words read through the read-only address are wrong", (unsigned long long)wrong);
    report("reads", "true");
    if (by_kernel)
        PASS(kernel_fill(address, bytes, 7, NULL));
    CUresult write = by_kernel ? cu.cuCtxSynchronize() : cu.cuMemcpyHtoD(address, &word, sizeof word);
    report_text("write", error_name(write));
    report_text("context_after_it", error_name(cu.cuCtxSynchronize()));
    if (!write && !cu.cuMemcpyDtoH(&word, alias, sizeof word))
        report("written", "%s", word == word_of(6, 0) ? "false" : "true");
    return true;
}

static bool host_read_only(bool by_kernel) {
    enum place place;

    PASS(host_place(&place));
    return write_to_read_only(place, by_kernel);
}

static bool check_read_only_host_kernel(void) {
    return host_read_only(true);
}

static bool check_read_only_host_copy(void) {
    return host_read_only(false);
}

static bool check_read_only_device_kernel(void) {
    return write_to_read_only(PLACE_DEVICE, true);
}

const struct check checks_levels[] = {
    {"device", "levels", 20, check_device},
    {"device pages", "levels", 20, check_device_pages},
    {"host pages, HOST_NUMA", "levels", 30, check_host_numa},
    {"host pages, HOST", "levels", 30, check_host},
    {"host memory, mapped", "levels", 20, check_mapped_host},
    {"host memory, registered", "levels", 20, check_registered_host},
    {"the host at the device's address", "levels", 20, check_host_at_the_address},
    {"pages at two addresses", "levels", 20, check_two_addresses},
    {"pages by descriptor", "levels", 20, check_shared_handles},
    {"answers", "levels", 20, check_answers},
    {"functions", "levels", 20, check_functions},
    {"read-only host pages, kernel", "levels", 20, check_read_only_host_kernel},
    {"read-only host pages, copy", "levels", 20, check_read_only_host_copy},
    {"read-only device pages, kernel", "levels", 20, check_read_only_device_kernel},
    {NULL, NULL, 0, NULL}};
