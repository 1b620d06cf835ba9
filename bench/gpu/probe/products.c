/* Matrix products of cuBLAS whose weights lie on the device, on host pages, or on host pages and pass through slots: a layer's
 * weight is copied into one of two slots while the product of the layer before runs. */
#include "probe.h"

#include <dlfcn.h>

#define LAYERS 6
#define SLOTS  2

/* Of cuBLAS's binary interface, which is stable in a major version. */
enum {
    OPERATION_PLAIN = 0,
    COMPUTE_FLOAT = 68,
    COMPUTE_TF32 = 77,
    TYPE_FLOAT = 0,
    TYPE_BFLOAT16 = 14,
    ALGORITHM_DEFAULT = -1
};
typedef struct cublasContext *cublas_handle;
static int (*cublas_create)(cublas_handle *);
static int (*cublas_stream)(cublas_handle, CUstream);
static int (*cublas_product)(cublas_handle, int, int, int, int, int, const void *, const void *, int, int,
                             const void *, int, int, const void *, void *, int, int, int, int);

struct layers {
    cublas_handle handle;
    CUstream compute, copy;
    CUevent ready[SLOTS], used[SLOTS], begin, end;
    CUdeviceptr weights[LAYERS], slots[SLOTS], input, output;
    int type, width, tokens; /* weights are width x width */
    size_t bytes;            /* of a weight */
};

enum way { ON_DEVICE, ON_HOST_PAGES, BY_SLOTS, WAYS };
static const char *const way_names[WAYS] = {"on the device", "on host pages", "by slots"};

static bool load_cublas(void) {
    void *library;

    if (!settings.cublas || !(library = dlopen(settings.cublas, RTLD_NOW | RTLD_GLOBAL)))
        return check_left_out("no cuBLAS: %s", settings.cublas ? dlerror() : "none was named");
    cublas_create = (int (*)(cublas_handle *))dlsym(library, "cublasCreate_v2");
    cublas_stream = (int (*)(cublas_handle, CUstream))dlsym(library, "cublasSetStream_v2");
    cublas_product = (__typeof__(cublas_product))dlsym(library, "cublasGemmEx");
    EXPECT(cublas_create && cublas_stream && cublas_product, "cuBLAS lacks a function");
    return true;
}

static bool product(const struct layers *l, CUdeviceptr weight) {
    const float one = 1, zero = 0;
    int error =
        cublas_product(l->handle, OPERATION_PLAIN, OPERATION_PLAIN, l->width, l->tokens, l->width, &one,
                       (void *)(uintptr_t)weight, l->type, l->width, (void *)(uintptr_t)l->input, l->type,
                       l->width, &zero, (void *)(uintptr_t)l->output, l->type, l->width,
                       l->type == TYPE_FLOAT ? COMPUTE_TF32 : COMPUTE_FLOAT, ALGORITHM_DEFAULT);

    EXPECT(error == 0, "cublasGemmEx: status %d", error);
    return true;
}

static bool by_slot(const struct layers *l, int layer) {
    int slot = layer % SLOTS;

    DO(cu.cuStreamWaitEvent(l->copy, l->used[slot], 0));
    DO(cu.cuMemcpyAsync(l->slots[slot], l->weights[layer], l->bytes, l->copy));
    DO(cu.cuEventRecord(l->ready[slot], l->copy));
    DO(cu.cuStreamWaitEvent(l->compute, l->ready[slot], 0));
    PASS(product(l, l->slots[slot]));
    DO(cu.cuEventRecord(l->used[slot], l->compute));
    return true;
}

/* Milliseconds of a product, of all layers one after the other. */
static bool layers_time(const struct layers *l, enum way way, double *ms) {
    double best = 1e30;
    float elapsed;

    for (int round = 0; round < (settings.tiny ? 1 : 3); round++) {
        DO(cu.cuEventRecord(l->begin, l->compute));
        for (int layer = 0; layer < LAYERS; layer++)
            PASS(way == BY_SLOTS ? by_slot(l, layer) : product(l, l->weights[layer]));
        DO(cu.cuEventRecord(l->end, l->compute));
        DO(cu.cuEventSynchronize(l->end));
        DO(cu.cuEventElapsedTime(&elapsed, l->begin, l->end));
        best = (double)elapsed < best ? (double)elapsed : best;
    }
    *ms = best / LAYERS;
    return true;
}

static bool layers_make(struct layers *l, enum place place) {
    size_t element = l->type == TYPE_FLOAT ? 4 : 2;

    l->bytes = element * (size_t)l->width * (size_t)l->width;
    for (int i = 0; i < LAYERS; i++) {
        PASS(place_make(place, l->bytes, &l->weights[i]));
        PASS(kernel_numbers(l->weights[i], l->bytes, (uint64_t)i << 20, NULL));
    }
    DO(cu.cuCtxSynchronize());
    return true;
}

/* What is on the device in every way. */
static bool layers_open(struct layers *l, int most_tokens) {
    size_t bytes = (l->type == TYPE_FLOAT ? 4u : 2u) * (size_t)l->width * (size_t)most_tokens;

    EXPECT(cublas_create(&l->handle) == 0, "cublasCreate fails");
    DO(cu.cuStreamCreate(&l->compute, CU_STREAM_NON_BLOCKING));
    DO(cu.cuStreamCreate(&l->copy, CU_STREAM_NON_BLOCKING));
    EXPECT(cublas_stream(l->handle, l->compute) == 0, "cublasSetStream fails");
    for (int i = 0; i < SLOTS; i++) {
        DO(cu.cuEventCreate(&l->ready[i], CU_EVENT_DISABLE_TIMING));
        DO(cu.cuEventCreate(&l->used[i], CU_EVENT_DISABLE_TIMING));
        DO(cu.cuMemAlloc(&l->slots[i],
                         (l->type == TYPE_FLOAT ? 4u : 2u) * (size_t)l->width * (size_t)l->width));
    }
    DO(cu.cuEventCreate(&l->begin, 0));
    DO(cu.cuEventCreate(&l->end, 0));
    DO(cu.cuMemAlloc(&l->input, bytes));
    DO(cu.cuMemAlloc(&l->output, bytes));
    PASS(kernel_numbers(l->input, bytes, 77, NULL));
    return true;
}

static bool products_of(int type, enum place host) {
    static const int tokens[] = {512, 2048, 8192, 32768};
    struct layers l = {.type = type, .width = settings.tiny ? 64 : 8192};
    int most = settings.tiny ? 64 : tokens[3];
    double ms[WAYS] = {0};

    PASS(layers_open(&l, most));
    struct layers on_host = l;
    PASS(layers_make(&l, PLACE_DEVICE));
    PASS(layers_make(&on_host, host));
    for (int i = 0; i < 4; i++) {
        l.tokens = on_host.tokens = settings.tiny ? 64 : tokens[i];
        double operations = 2.0 * l.width * l.width * l.tokens;
        for (int way = 0; way < WAYS; way++) {
            PASS(layers_time(way == ON_DEVICE ? &l : &on_host, way, &ms[way]));
            report_row(
                "products",
                "\"type\": \"%s\", \"weight_mib\": %.1f, \"tokens\": %d, \"weights\": \"%s\", \"ms\": %.4f, "
                "\"tflops\": %.1f, \"slower\": %.2f",
                type == TYPE_FLOAT ? "float (TF32)" : "bfloat16", (double)l.bytes / (double)MIB, l.tokens,
                way_names[way], ms[way], operations / (ms[way] > 0 ? ms[way] : 1) / 1e9,
                ms[ON_DEVICE] > 0 ? ms[way] / ms[ON_DEVICE] : 0);
        }
    }
    return true;
}

static bool products(int type) {
    enum place place;

    PASS(need_kernels());
    PASS(load_cublas());
    PASS(host_place(&place));
    return products_of(type, place);
}

static bool check_bfloat16(void) {
    return products(TYPE_BFLOAT16);
}

static bool check_float(void) {
    return products(TYPE_FLOAT);
}

const struct check checks_products[] = {{"products, bfloat16", "timings", 30, check_bfloat16},
                                        {"products, float", "timings", 30, check_float},
                                        {NULL, NULL, 0, NULL}};
