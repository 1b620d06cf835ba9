/* The kernels' speed as a ratio to memcpy's time for the same bytes, per variant, dtype and size.
 *
 *   build/bin/bench-kernels [RESULT.json]
 *
 * `block` walks through an array in blocks of 1 MiB, as the reduction does; `array` hands over the whole
 * array. The contenders of one row are measured in turn, round by round, so that other load on the machine
 * hits all of them; a row is the median of the rounds. memcmp of equal pages stands beside them: it is what
 * the store uses to find changed pages. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include "kernels/kernels.h"

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

enum { ROUNDS = 15, ROWS_MAX = 128, ARRAY_BYTES = 64 << 20, BLOCK_BYTES = 1 << 20 };

typedef enum operation { COPY, COMPARE, STORE, STORE_ONE, SUM, SUM_ONE, OPERATION_COUNT } operation;
static const char *const operation_names[] = {"memcpy",           "memcmp",    "scale_store",
                                              "scale_store by 1", "scale_add", "scale_add by 1"};
static const char *const dtype_names[] = {"f32", "f64", "f16", "bf16"};

typedef struct row {
    operation operation;
    kernel_dtype dtype;
    kernel_variant variant;
    size_t block_bytes;
    double seconds[ROUNDS];
    double median, ratio;
} row;

static double now_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static volatile int sink;

static double measure(const row *row, char *dst, const char *src) {
    size_t width = kernel_dtype_bytes(row->dtype), count = row->block_bytes / width;
    kernel_variant_select(row->variant);
    double begin = now_seconds();
    for (size_t at = 0; at < ARRAY_BYTES; at += row->block_bytes)
        switch (row->operation) {
        case COPY:
            memcpy(dst + at, src + at, row->block_bytes);
            break;
        case COMPARE:
            sink += memcmp(dst + at, src + at, row->block_bytes);
            break;
        case STORE:
            kernel_scale_store(row->dtype, dst + at, src + at, count, 0.5);
            break;
        case STORE_ONE:
            kernel_scale_store(row->dtype, dst + at, src + at, count, 1.0);
            break;
        case SUM:
            kernel_scale_add(row->dtype, dst + at, src + at, count, 0.5);
            break;
        default:
            kernel_scale_add(row->dtype, dst + at, src + at, count, 1.0);
        }
    return now_seconds() - begin;
}

static int compare_doubles(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static double median(const double *values) {
    double sorted[ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, compare_doubles);
    return sorted[ROUNDS / 2];
}

static void cpu_model(char *out, size_t out_size) {
    snprintf(out, out_size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value)
            continue;
        value[strcspn(value, "\n\"\\")] = 0;
        snprintf(out, out_size, "%s", value + 2);
        break;
    }
    fclose(file);
}

static bool write_json(const char *path, const row *rows, size_t row_count) {
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    char cpu[128];
    struct utsname system;
    cpu_model(cpu, sizeof cpu);
    uname(&system);
    system.release[strspn(system.release, "0123456789.")] = 0;
    fprintf(file, "{\n  \"command\": \"build/bin/bench-kernels\",\n");
    fprintf(file, "  \"machine\": {\"cpu\": \"%s\", \"kernel\": \"%s\", \"compiler\": \"%s\"},\n", cpu,
            system.release, COMPILER);
    fprintf(file, "  \"array_bytes\": %d,\n  \"rounds\": %d,\n", ARRAY_BYTES, ROUNDS);
    fprintf(file,
            "  \"ratio\": \"median time / median time of memcpy at the same block size\",\n  \"rows\": [\n");
    for (size_t i = 0; i < row_count; i++) {
        const row *row = &rows[i];
        fprintf(file,
                "    {\"operation\": \"%s\", \"dtype\": \"%s\", \"variant\": \"%s\", \"block_bytes\": %zu, "
                "\"gib_per_second\": %.2f, \"ratio\": %.2f}%s\n",
                operation_names[row->operation], dtype_names[row->dtype], kernel_variant_name(row->variant),
                row->block_bytes, ARRAY_BYTES / row->median / (1 << 30), row->ratio,
                i + 1 < row_count ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    return fclose(file) == 0;
}

int main(int argc, char **argv) {
    char *dst =
        mmap(NULL, ARRAY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    char *src =
        mmap(NULL, ARRAY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    static row rows[ROWS_MAX];
    size_t row_count = 0;
    if (dst == MAP_FAILED || src == MAP_FAILED) {
        fprintf(stderr, "bench-kernels: needs %d MiB of memory\n", 2 * ARRAY_BYTES >> 20);
        return 1;
    }
    /* Ordinary numbers in every dtype: no zeros, denormals or NaN. */
    uint32_t random = 1;
    for (size_t i = 0; i < ARRAY_BYTES / sizeof(uint16_t); i++) {
        random = random * 1664525u + 1013904223u;
        ((uint16_t *)src)[i] = (uint16_t)(0x3A00u + (random >> 23));
    }
    static const size_t block_bytes[] = {BLOCK_BYTES, ARRAY_BYTES};
    for (size_t size = 0; size < 2; size++) {
        rows[row_count++] = (row){.operation = COPY, .block_bytes = block_bytes[size]};
        rows[row_count++] = (row){.operation = COMPARE, .block_bytes = block_bytes[size]};
        for (kernel_dtype dtype = 0; dtype < KERNEL_DTYPE_COUNT; dtype++)
            for (operation operation = STORE; operation < OPERATION_COUNT; operation++)
                for (kernel_variant variant = 0; variant < KERNEL_VARIANT_COUNT; variant++)
                    if (kernel_variant_supported(variant) && row_count < ROWS_MAX &&
                        (operation != STORE_ONE || variant == KERNEL_VARIANT_REFERENCE))
                        rows[row_count++] =
                            (row){operation, dtype, variant, .block_bytes = block_bytes[size]};
    }
    for (int round = -1; round < ROUNDS; round++) /* the first round only warms up */
        for (size_t i = 0; i < row_count; i++) {
            memcpy(dst, src, ARRAY_BYTES); /* equal pages for memcmp; and sums that do not grow */
            double seconds = measure(&rows[i], dst, src);
            if (round >= 0)
                rows[i].seconds[round] = seconds;
        }
    double copy_seconds = 0;
    printf("%-18s %-5s %-10s %10s %8s %8s\n", "operation", "dtype", "variant", "block KiB", "GiB/s", "ratio");
    for (size_t i = 0; i < row_count; i++) {
        rows[i].median = median(rows[i].seconds);
        if (rows[i].operation == COPY)
            copy_seconds = rows[i].median;
        rows[i].ratio = rows[i].median / copy_seconds;
        printf("%-18s %-5s %-10s %10zu %8.2f %8.2f\n", operation_names[rows[i].operation],
               dtype_names[rows[i].dtype], kernel_variant_name(rows[i].variant), rows[i].block_bytes >> 10,
               ARRAY_BYTES / rows[i].median / (1 << 30), rows[i].ratio);
    }
    if (argc > 1 && !write_json(argv[1], rows, row_count)) {
        fprintf(stderr, "bench-kernels: cannot write %s\n", argv[1]);
        return 1;
    }
    return 0;
}
