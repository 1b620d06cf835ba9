/* Bandwidth: kernels and copy engines, on device memory, host pages and pinned memory. */
#include "probe.h"

#include <stdio.h>

/* Milliseconds between two events around what is enqueued; waits. */
struct span {
    CUevent begin, end;
};

static bool span_make(struct span *span) {
    DO(cu.cuEventCreate(&span->begin, 0));
    DO(cu.cuEventCreate(&span->end, 0));
    return true;
}

static bool span_end(struct span *span, CUstream stream, double *ms) {
    float elapsed;

    DO(cu.cuEventRecord(span->end, stream));
    DO(cu.cuEventSynchronize(span->end));
    DO(cu.cuEventElapsedTime(&elapsed, span->begin, span->end));
    *ms = elapsed > 1e-3f ? (double)elapsed : 1e-3;
    return true;
}

static double gb_per_s(double bytes, double ms) {
    return bytes / ms / 1e6;
}

/* ---- kernels ---- */

static bool kernel_rates(const char *where, CUdeviceptr address, size_t bytes) {
    struct span span;
    double read = 1e30, write = 1e30, ms;

    PASS(span_make(&span));
    for (int round = 0; round < (bytes > 8 * GIB ? 1 : 3); round++) {
        DO(cu.cuEventRecord(span.begin, NULL));
        PASS(kernel_fill(address, bytes, 1, NULL));
        PASS(span_end(&span, NULL, &ms));
        write = ms < write ? ms : write;
        DO(cu.cuEventRecord(span.begin, NULL));
        PASS(kernel_sum(address, bytes, NULL));
        PASS(span_end(&span, NULL, &ms));
        read = ms < read ? ms : read;
    }
    report_row("kernels",
               "\"memory\": \"%s\", \"gib\": %.3f, \"read_gb_per_s\": %.2f, \"write_gb_per_s\": %.2f", where,
               (double)bytes / (double)GIB, gb_per_s((double)bytes, read), gb_per_s((double)bytes, write));
    return true;
}

/* Host pages in handles of 128 MiB under one range, more and more of them. */
static bool check_kernels(void) {
    static const size_t steps_gib[] = {1, 4, 16, 32, 64};
    size_t piece = settings.tiny ? 2 * MIB : 128 * MIB, step = settings.tiny ? 4 * MIB : GIB, made = 0;
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address, block;
    enum place place;
    void *pinned;

    PASS(need_kernels());
    DO(cu.cuMemAlloc(&block, step));
    PASS(kernel_rates("device", block, step));
    DO(cu.cuMemHostAlloc(&pinned, step, CU_MEMHOSTALLOC_DEVICEMAP));
    PASS(kernel_rates("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)pinned, step));
    PASS(host_place(&place));
    DO(cu.cuMemAddressReserve(&address, 64 * step, 0, 0, 0));
    report("host_room_bytes", "%llu", (unsigned long long)host_room());
    for (size_t i = 0; i < sizeof steps_gib / sizeof *steps_gib; i++) {
        size_t bytes = steps_gib[i] * step;
        double begin = now_us(), before = (double)made;
        if (bytes - made > host_room() && bytes - made > step)
            break;
        for (; made < bytes; made += piece) {
            PASS(pages_create(place, piece, &pages));
            PASS(pages_map(address + made, piece, pages));
            DO(cu.cuMemRelease(pages));
        }
        report_row("created", "\"gib\": %.3f, \"gb_per_s\": %.2f", (double)made / (double)GIB,
                   ((double)made - before) / (now_us() - begin) / 1e3);
        PASS(kernel_rates(place_names[place], address, bytes));
    }
    return true;
}

/* ---- copy engines ---- */

struct way {
    CUdeviceptr to, from;
    CUstream stream;
};

/* `count` copies of `bytes` one way, or of both ways at once. */
static bool copies(const struct way *ways, int way_count, size_t bytes, int count, double *ms) {
    struct span span;
    CUevent joined;

    PASS(span_make(&span));
    DO(cu.cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    for (int w = 0; w < way_count; w++)
        DO(cu.cuStreamSynchronize(ways[w].stream));
    DO(cu.cuEventRecord(span.begin, ways[0].stream));
    for (int w = 1; w < way_count; w++)
        DO(cu.cuStreamWaitEvent(ways[w].stream, span.begin, 0));
    for (int i = 0; i < count; i++) {
        for (int w = 0; w < way_count; w++)
            DO(cu.cuMemcpyAsync(ways[w].to, ways[w].from, bytes, ways[w].stream));
    }
    for (int w = 1; w < way_count; w++) {
        DO(cu.cuEventRecord(joined, ways[w].stream));
        DO(cu.cuStreamWaitEvent(ways[0].stream, joined, 0));
    }
    return span_end(&span, ways[0].stream, ms);
}

static bool copy_rates(const char *memory, CUdeviceptr host[2], CUdeviceptr on_device[2],
                       CUstream streams[2]) {
    static const size_t sizes_kib[] = {64, 256, 1024, 4096, 16384, 65536, 262144};
    struct way in = {on_device[0], host[0], streams[0]}, out = {host[1], on_device[1], streams[1]};

    for (size_t i = 0; i < sizeof sizes_kib / sizeof *sizes_kib; i++) {
        size_t bytes = settings.tiny ? 64 * KIB : sizes_kib[i] * KIB;
        int count = settings.tiny ? 2 : (int)(512 * MIB / bytes > 100 ? 100 : 512 * MIB / bytes);
        double to, from, both;
        PASS(copies(&in, 1, bytes, 2, &to));
        PASS(copies(&in, 1, bytes, count, &to));
        PASS(copies(&out, 1, bytes, 2, &from));
        PASS(copies(&out, 1, bytes, count, &from));
        PASS(copies((struct way[]){in, out}, 2, bytes, count, &both));
        double moved = (double)bytes * count;
        report_row(
            "copies",
            "\"memory\": \"%s\", \"kib\": %zu, \"to_device_gb_per_s\": %.2f, \"from_device_gb_per_s\": %.2f, "
            "\"both_at_once_gb_per_s\": %.2f",
            memory, (size_t)(bytes / KIB), gb_per_s(moved, to), gb_per_s(moved, from),
            gb_per_s(2 * moved, both));
    }
    return true;
}

static bool check_copies(void) {
    size_t bytes = settings.tiny ? 2 * MIB : 256 * MIB;
    CUdeviceptr host[2], on_device[2];
    CUstream streams[2];
    enum place place;

    for (int i = 0; i < 2; i++) {
        void *pinned;
        DO(cu.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        DO(cu.cuMemAlloc(&on_device[i], bytes));
        DO(cu.cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
        host[i] = (CUdeviceptr)(uintptr_t)pinned;
    }
    PASS(copy_rates("cuMemHostAlloc", host, on_device, streams));
    PASS(host_place(&place));
    for (int i = 0; i < 2; i++)
        PASS(place_make(place, bytes, &host[i]));
    return copy_rates(place_names[place], host, on_device, streams);
}

/* A kernel that reads the device's memory beside copies in both directions: what copies take from it, and it from them. */
static bool check_beside(void) {
    size_t bytes = settings.tiny ? 2 * MIB : 256 * MIB, large = settings.tiny ? 4 * MIB : 4 * GIB;
    CUdeviceptr host[2], on_device[2], block;
    CUstream streams[2], work;
    struct span span;
    double alone, beside, copies_alone, copies_beside;
    enum place place;

    PASS(need_kernels());
    PASS(host_place(&place));
    for (int i = 0; i < 2; i++) {
        DO(cu.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        DO(cu.cuMemAlloc(&on_device[i], bytes));
        PASS(place_make(place, bytes, &host[i]));
    }
    DO(cu.cuStreamCreate(&work, CU_STREAM_NON_BLOCKING));
    DO(cu.cuMemAlloc(&block, large));
    PASS(span_make(&span));
    struct way ways[2] = {{on_device[0], host[0], streams[0]}, {host[1], on_device[1], streams[1]}};
    int count = settings.tiny ? 1 : 10, sums = settings.tiny ? 1 : 40;
    for (int round = 0; round < 2; round++) {
        DO(cu.cuEventRecord(span.begin, work));
        for (int i = 0; i < sums; i++)
            PASS(kernel_sum(block, large, work));
        if (round)
            PASS(copies(ways, 2, bytes, count, &copies_beside));
        PASS(span_end(&span, work, round ? &beside : &alone));
    }
    PASS(copies(ways, 2, bytes, count, &copies_alone));
    double moved = 2 * (double)bytes * count, read = (double)large * sums;
    report("kernel_alone_gb_per_s", "%.1f", gb_per_s(read, alone));
    report("kernel_beside_copies_gb_per_s", "%.1f", gb_per_s(read, beside));
    report("copies_alone_gb_per_s", "%.1f", gb_per_s(moved, copies_alone));
    report("copies_beside_a_kernel_gb_per_s", "%.1f", gb_per_s(moved, copies_beside));
    return true;
}

const struct check checks_moves[] = {{"kernels on host pages", "timings", 90, check_kernels},
                                     {"copy engines", "timings", 40, check_copies},
                                     {"kernels beside copies", "timings", 20, check_beside},
                                     {NULL, NULL, 0, NULL}};
