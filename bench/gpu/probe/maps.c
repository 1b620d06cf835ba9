/* What memory costs: creating, mapping, access, unmapping, releasing, flips; at rest and beside running work. */
#include "probe.h"

#include <stdio.h>

#define ROUNDS_MAX 16

enum part { CREATE, MAP, ACCESS, READ_ONLY, UNMAP, RELEASE, PARTS };

static const size_t sizes_mib[] = {2, 8, 32, 64, 128, 512};
#define SIZES (sizeof sizes_mib / sizeof *sizes_mib)

static size_t size_of(size_t i) {
    return settings.tiny ? 2 * MIB : sizes_mib[i] * MIB;
}

/* A kernel that runs longer than what is timed beside it. */
static bool keep_busy(CUstream stream) {
    return kernel_spin(settings.tiny ? 5000000 : 40000000, stream);
}

static CUresult one_cycle(enum place place, size_t bytes, CUdeviceptr address, double us[PARTS]) {
    CUmemAllocationProp prop = place_prop(place);
    CUmemAccessDesc write = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                    read = device_access(CU_MEM_ACCESS_FLAGS_PROT_READ);
    CUmemGenericAllocationHandle pages;
    CUresult error;
    double begin = now_us(), end;

#define STEP(part, call)                                                                                     \
    if ((error = (call)))                                                                                    \
        return error;                                                                                        \
    end = now_us();                                                                                          \
    us[part] = end - begin;                                                                                  \
    begin = end;
    STEP(CREATE, cu.cuMemCreate(&pages, bytes, &prop, 0))
    STEP(MAP, cu.cuMemMap(address, bytes, 0, pages, 0))
    STEP(ACCESS, cu.cuMemSetAccess(address, bytes, &write, 1))
    STEP(READ_ONLY, cu.cuMemSetAccess(address, bytes, &read, 1))
    STEP(UNMAP, cu.cuMemUnmap(address, bytes))
    STEP(RELEASE, cu.cuMemRelease(pages))
#undef STEP
    return CUDA_SUCCESS;
}

static bool cycles(enum place place, size_t bytes, bool busy, CUstream stream) {
    double samples[PARTS][ROUNDS_MAX], us[PARTS] = {0};
    size_t rounds = settings.tiny ? 2 : bytes > 64 * MIB ? 3 : 7;
    CUdeviceptr address;

    DO(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    for (size_t round = 0; round < rounds + 1; round++) {
        if (busy)
            PASS(keep_busy(stream));
        DO(one_cycle(place, bytes, address, us));
        DO(cu.cuStreamSynchronize(stream));
        for (int part = 0; round && part < PARTS; part++)
            samples[part][round - 1] = us[part];
    }
    for (int part = 0; part < PARTS; part++)
        us[part] = median(samples[part], rounds);
    report_row("times",
               "\"place\": \"%s\", \"mib\": %zu, \"beside\": \"%s\", \"create_us\": %.1f, \"map_us\": %.1f, "
               "\"access_us\": %.1f, \"read_only_us\": %.1f, \"unmap_us\": %.1f, \"release_us\": %.1f",
               place_names[place], (size_t)(bytes / MIB), busy ? "a running kernel" : "nothing", us[CREATE],
               us[MAP], us[ACCESS], us[READ_ONLY], us[UNMAP], us[RELEASE]);
    return true;
}

static bool map_times(enum place place) {
    CUstream stream;

    DO(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < SIZES; i++)
        PASS(cycles(place, size_of(i), false, stream));
    PASS(need_kernels());
    for (size_t i = 0; i < SIZES; i++)
        PASS(cycles(place, size_of(i), true, stream));
    return true;
}

static bool check_times_device(void) {
    return map_times(PLACE_DEVICE);
}

static bool check_times_host(void) {
    enum place place;

    PASS(host_place(&place));
    return map_times(place);
}

/* ---- which calls wait for what runs ---- */

#define SPIN_MS (settings.tiny ? 30ull : 200ull)

/* How long a call takes that is made while an unrelated kernel of SPIN_MS runs. */
static bool beside_a_kernel(const char *name, CUstream stream, double begin, CUresult error) {
    double us = now_us() - begin;

    DO(cu.cuStreamSynchronize(stream));
    report_row("calls", "\"call\": \"%s\", \"ms\": %.3f, \"waits\": %s, \"error\": \"%s\"", name, us / 1e3,
               us / 1e3 > (double)SPIN_MS * 0.7 ? "true" : "false", error ? error_name(error) : "none");
    return true;
}

#define BESIDE(name, call)                                                                                   \
    do {                                                                                                     \
        PASS(kernel_spin(SPIN_MS * 1000000, stream));                                                        \
        double begin = now_us();                                                                             \
        CUresult error = (call);                                                                             \
        PASS(beside_a_kernel(name, stream, begin, error));                                                   \
    } while (0)

static bool check_waits(void) {
    size_t bytes = settings.tiny ? 2 * MIB : 32 * MIB;
    CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, block;
    CUstream stream;
    enum place host;
    void *pinned;

    PASS(need_kernels());
    DO(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    report("kernel_ms", "%llu", (unsigned long long)SPIN_MS);
    PASS(kernel_spin(1000, stream)); /* what the first launch loads */
    DO(cu.cuStreamSynchronize(stream));
    PASS(host_place(&host));
    for (int i = 0; i < 2; i++) {
        enum place place = i ? host : PLACE_DEVICE;
        CUmemAllocationProp prop = place_prop(place);
        char name[64];
        DO(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
#define NAMED(call) (snprintf(name, sizeof name, "%s, %s", call, place_names[place]), name)
        BESIDE(NAMED("create"), cu.cuMemCreate(&pages, bytes, &prop, 0));
        BESIDE(NAMED("map"), cu.cuMemMap(address, bytes, 0, pages, 0));
        BESIDE(NAMED("access"), cu.cuMemSetAccess(address, bytes, &access, 1));
        BESIDE(NAMED("unmap"), cu.cuMemUnmap(address, bytes));
        BESIDE(NAMED("release"), cu.cuMemRelease(pages));
#undef NAMED
    }
    BESIDE("cuMemAlloc", cu.cuMemAlloc(&block, bytes));
    BESIDE("cuMemFree", cu.cuMemFree(block));
    BESIDE("cuMemHostAlloc", cu.cuMemHostAlloc(&pinned, bytes, 0));
    BESIDE("cuMemGetInfo", cu.cuMemGetInfo(&bytes, &bytes));
    return true;
}

/* A kernel that is running writes to pages at its end, and they are unmapped before: the call waits, or the kernel faults. */
static bool unmap_in_use(enum place place) {
    size_t bytes = 2 * MIB;
    CUdeviceptr address;
    CUstream stream;

    PASS(need_kernels());
    if (settings.tiny)
        return check_left_out(
            "a simulated device's kernel is the host's code, and its fault ends the process");
    PASS(whole_units(place, &bytes));
    DO(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    PASS(place_make(place, bytes, &address));
    PASS(kernel_spin_write(1000, address, stream));
    DO(cu.cuStreamSynchronize(stream));
    PASS(kernel_spin_write(SPIN_MS * 1000000, address, stream));
    double begin = now_us();
    CUresult unmap = cu.cuMemUnmap(address, bytes);
    report("unmap_ms", "%.3f", (now_us() - begin) / 1e3);
    report_text("unmap", error_name(unmap));
    report_text("kernel", error_name(cu.cuStreamSynchronize(stream)));
    return true;
}

static bool check_unmap_in_use_device(void) {
    return unmap_in_use(PLACE_DEVICE);
}

static bool check_unmap_in_use_host(void) {
    enum place place;

    PASS(host_place(&place));
    return unmap_in_use(place);
}

/* ---- flips ---- */

/* One flip as homes do it, in parts: the new pages, the copy, the change at the address, the release of the old. */
static bool flip(CUdeviceptr address, CUdeviceptr alias, size_t bytes, enum place to,
                 CUmemGenericAllocationHandle *pages, double us[4]) {
    CUmemGenericAllocationHandle target;
    double begin = now_us(), end;

#define DONE(part) (end = now_us(), us[part] = end - begin, begin = end)
    PASS(pages_create(to, bytes, &target));
    PASS(pages_map(alias, bytes, target));
    DONE(0);
    DO(cu.cuMemcpyAsync(alias, address, bytes, NULL));
    DO(cu.cuStreamSynchronize(NULL));
    DONE(1);
    DO(cu.cuMemUnmap(address, bytes));
    PASS(pages_map(address, bytes, target));
    DONE(2);
    DO(cu.cuMemUnmap(alias, bytes));
    DO(cu.cuMemRelease(*pages));
    DONE(3);
#undef DONE
    *pages = target;
    return true;
}

static bool flips_of(enum place host, size_t bytes) {
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, alias;
    double us[4] = {0}, total[2][ROUNDS_MAX], copy[2][ROUNDS_MAX], remap[2][ROUNDS_MAX],
           create[2][ROUNDS_MAX];
    size_t rounds = settings.tiny ? 2 : 5;

    DO(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    DO(cu.cuMemAddressReserve(&alias, bytes, 0, 0, 0));
    PASS(pages_create(PLACE_DEVICE, bytes, &pages));
    PASS(pages_map(address, bytes, pages));
    DO(cu.cuMemsetD8(address, 1, bytes));
    for (size_t round = 0; round < rounds; round++) {
        for (int way = 0; way < 2; way++) {
            PASS(flip(address, alias, bytes, way ? PLACE_DEVICE : host, &pages, us));
            create[way][round] = us[0];
            copy[way][round] = us[1];
            remap[way][round] = us[2];
            total[way][round] = us[0] + us[1] + us[2] + us[3];
        }
    }
    for (int way = 0; way < 2; way++) {
        double whole = median(total[way], rounds), copied = median(copy[way], rounds);
        report_row("flips",
                   "\"mib\": %zu, \"to\": \"%s\", \"us\": %.1f, \"pages_us\": %.1f, \"copy_us\": %.1f, "
                   "\"remap_us\": %.1f, \"gb_per_s\": %.2f, \"copy_gb_per_s\": %.2f",
                   (size_t)(bytes / MIB), way ? "device" : "host", whole, median(create[way], rounds), copied,
                   median(remap[way], rounds), (double)bytes / whole / 1e3, (double)bytes / copied / 1e3);
    }
    return true;
}

static bool check_flips(void) {
    enum place place;

    PASS(host_place(&place));
    for (size_t i = 0; i < SIZES; i++)
        PASS(flips_of(place, size_of(i)));
    return true;
}

/* ---- many small homes ---- */

/* One access call over many maps, and how many handles there may be. */
static bool check_many(void) {
    size_t count = settings.tiny ? 16 : 4096, unit = 2 * MIB, made = 0;
    CUmemAccessDesc access = device_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemGenericAllocationHandle pages;
    enum place place;
    CUdeviceptr address;

    PASS(host_place(&place));
    for (int i = 0; i < 2; i++) {
        CUmemAllocationProp prop = place_prop(i ? place : PLACE_DEVICE);
        CUresult error = CUDA_SUCCESS;
        if (i && host_room() < count * unit)
            count = host_room() / unit;
        DO(cu.cuMemAddressReserve(&address, count * unit, 0, 0, 0));
        double begin = now_us();
        for (made = 0; made < count && !error; made++) {
            error = cu.cuMemCreate(&pages, unit, &prop, 0);
            if (!error)
                error = cu.cuMemMap(address + made * unit, unit, 0, pages, 0);
        }
        made -= error != CUDA_SUCCESS;
        double mapped = now_us();
        CUresult given = cu.cuMemSetAccess(address, made * unit, &access, 1);
        double end = now_us();
        report_row("handles",
                   "\"place\": \"%s\", \"count\": %zu, \"error\": \"%s\", \"create_and_map_us_each\": %.2f, "
                   "\"access_us_each\": %.3f, \"access\": \"%s\"",
                   place_names[i ? place : PLACE_DEVICE], made, error ? error_name(error) : "none",
                   (mapped - begin) / (double)(made ? made : 1), (end - mapped) / (double)(made ? made : 1),
                   error_name(given));
    }
    return true;
}

const struct check checks_maps[] = {{"map times, device", "timings", 20, check_times_device},
                                    {"map times, host", "timings", 40, check_times_host},
                                    {"what waits for kernels", "timings", 20, check_waits},
                                    {"unmap in use, device", "timings", 15, check_unmap_in_use_device},
                                    {"unmap in use, host", "timings", 15, check_unmap_in_use_host},
                                    {"flips", "timings", 40, check_flips},
                                    {"many handles", "timings", 30, check_many},
                                    {NULL, NULL, 0, NULL}};
