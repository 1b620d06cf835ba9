/* The host's time of small calls; how long running out of memory takes; how pinned memory is accounted. */
#include "probe.h"

#include <stdio.h>
#include <sys/resource.h>

#define CALLS 2000

/* ---- small calls ---- */

#define COST(name, call)                                                                                     \
    do {                                                                                                     \
        double samples[5];                                                                                   \
        for (int round = 0; round < 5; round++) {                                                            \
            double begin = now_us();                                                                         \
            for (int i = 0; i < CALLS; i++)                                                                  \
                DO(call);                                                                                    \
            samples[round] = (now_us() - begin) * 1e3 / CALLS;                                               \
            DO(cu.cuCtxSynchronize());                                                                       \
        }                                                                                                    \
        report_row("calls", "\"call\": \"%s\", \"ns\": %.1f", name, median(samples, 5));                     \
    } while (0)

static bool check_small_calls(void) {
    CUstream stream, other;
    CUevent timed, plain;
    CUdeviceptr block;
    size_t some, more;

    DO(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DO(cu.cuEventCreate(&timed, 0));
    DO(cu.cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    DO(cu.cuMemAlloc(&block, 2 * MIB));
    COST("event record, timed", cu.cuEventRecord(timed, stream));
    COST("event record", cu.cuEventRecord(plain, stream));
    COST("event query", cu.cuEventQuery(plain));
    COST("stream wait, event done", cu.cuStreamWaitEvent(other, plain, 0));
    COST("record and wait", (cu.cuEventRecord(plain, stream), cu.cuStreamWaitEvent(other, plain, 0)));
    COST("memory info", cu.cuMemGetInfo(&some, &more));
    COST("copy of 256 bytes on the device", cu.cuMemcpyAsync(block, block + MIB, 256, stream));
    PASS(need_kernels());
    COST("launch", kernel_spin(0, stream) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    DO(cu.cuCtxSynchronize());
    return true;
}

/* What an event in another stream adds between two kernels, on the device. */
static bool check_chains(void) {
    enum { KERNELS = 200 };
    CUstream streams[2];
    CUevent begin, end, joined;
    float ms;

    PASS(need_kernels());
    for (int i = 0; i < 2; i++)
        DO(cu.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    DO(cu.cuEventCreate(&begin, 0));
    DO(cu.cuEventCreate(&end, 0));
    DO(cu.cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    for (int across = 0; across < 2; across++) {
        for (int round = 0; round < 2; round++) {
            PASS(kernel_spin(5000000, streams[0])); /* the host is ahead of the device */
            DO(cu.cuEventRecord(begin, streams[0]));
            for (int i = 0; i < KERNELS; i++) {
                CUstream here = streams[across && i % 2], next = streams[across && !(i % 2)];
                PASS(kernel_spin(0, here));
                DO(cu.cuEventRecord(joined, here));
                DO(cu.cuStreamWaitEvent(next, joined, 0));
            }
            DO(cu.cuEventRecord(end, streams[0]));
            DO(cu.cuEventSynchronize(end));
        }
        DO(cu.cuEventElapsedTime(&ms, begin, end));
        report(across ? "kernel_and_change_of_stream_us" : "kernel_and_event_us", "%.3f",
               (double)ms * 1e3 / KERNELS);
    }
    return true;
}

/* ---- out of memory ---- */

static void report_failure(const char *call, const char *when, double begin, CUresult error) {
    report_row("failures", "\"call\": \"%s\", \"when\": \"%s\", \"ms\": %.3f, \"error\": \"%s\"", call, when,
               (now_us() - begin) / 1e3, error_name(error));
}

static bool check_out_of_memory(void) {
    CUmemAllocationProp prop = place_prop(PLACE_DEVICE);
    CUmemGenericAllocationHandle pages;
    size_t free_bytes, total, unit = settings.tiny ? 64 * MIB : GIB;
    CUdeviceptr block;
    CUstream stream;

    DO(cu.cuMemGetInfo(&free_bytes, &total));
    double begin = now_us();
    CUresult error = cu.cuMemAlloc(&block, 2 * total);
    report_failure("cuMemAlloc", "more than there is", begin, error);
    size_t whole = 2 * total / GIB * GIB + GIB;
    begin = now_us();
    error = cu.cuMemCreate(&pages, whole, &prop, 0);
    report_failure("cuMemCreate", "more than there is", begin, error);
    begin = now_us();
    while (!cu.cuMemAlloc(&block, unit))
        continue;
    report("fill_ms", "%.1f", (now_us() - begin) / 1e3);
    DO(cu.cuMemGetInfo(&free_bytes, &total));
    report("left_bytes", "%zu", free_bytes);
    begin = now_us();
    error = cu.cuMemAlloc(&block, unit);
    report_failure("cuMemAlloc", "the device is full", begin, error);
    begin = now_us();
    error = cu.cuMemCreate(&pages, unit, &prop, 0);
    report_failure("cuMemCreate", "the device is full", begin, error);
    PASS(need_kernels());
    DO(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    PASS(kernel_spin(settings.tiny ? 20000000 : 200000000, stream));
    begin = now_us();
    error = cu.cuMemAlloc(&block, unit);
    report_failure("cuMemAlloc", "the device is full, a kernel runs", begin, error);
    DO(cu.cuStreamSynchronize(stream));
    return true;
}

/* ---- pinned memory ---- */

struct account {
    uint64_t group, available;
    long resident_kib;
};

static struct account account_now(void) {
    struct account now = {cgroup_bytes("memory.current"), available_bytes(), 0};
    FILE *file = fopen("/proc/self/statm", "re");
    long pages = 0;

    if (file && fscanf(file, "%*d %ld", &pages) == 1) /* NOLINT(cert-err34-c): the kernel wrote it */
        now.resident_kib = pages * 4;
    if (file)
        (void)fclose(file);
    return now;
}

static void report_account(const char *memory, size_t bytes, const struct account *before, double us) {
    struct account after = account_now();
    bool has_group = before->group != UINT64_MAX && after.group != UINT64_MAX;

    report_row("memory",
               "\"memory\": \"%s\", \"bytes\": %zu, \"gb_per_s\": %.2f, \"cgroup_bytes\": %lld, "
               "\"available_bytes\": %lld, \"resident_bytes\": %lld",
               memory, bytes, (double)bytes / us / 1e3,
               has_group ? (long long)(after.group - before->group) : -1,
               (long long)(before->available - after.available),
               (long long)(after.resident_kib - before->resident_kib) * 1024);
}

static bool check_accounting(void) {
    size_t bytes = settings.tiny ? 16 * MIB : 4 * GIB, piece = settings.tiny ? 2 * MIB : 128 * MIB;
    CUmemGenericAllocationHandle pages;
    struct account before;
    struct rlimit lock;
    enum place place;
    void *pinned;

    if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0)
        report("memlock_limit", "%lld", lock.rlim_cur == RLIM_INFINITY ? -1 : (long long)lock.rlim_cur);
    if (host_room() < 3 * bytes)
        return check_left_out("the host has no room for %zu bytes, twice", bytes);
    before = account_now();
    double begin = now_us();
    DO(cu.cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    report_account("cuMemHostAlloc", bytes, &before, now_us() - begin);
    PASS(host_place(&place));
    before = account_now();
    begin = now_us();
    for (size_t made = 0; made < bytes; made += piece)
        PASS(pages_create(place, piece, &pages));
    report_account("cuMemCreate on the host", bytes, &before, now_us() - begin);
    return true;
}

const struct check checks_costs[] = {{"small calls", "timings", 20, check_small_calls},
                                     {"chains of kernels", "timings", 15, check_chains},
                                     {"out of memory", "timings", 30, check_out_of_memory},
                                     {"accounting of pinned memory", "timings", 30, check_accounting},
                                     {NULL, NULL, 0, NULL}};
