/* Kernels that find a parameter's address in a table in the device's memory: nothing among their arguments tells that they read or
 * write it. What they write is what the next product reads, and what they read is what the parameter holds. */
#include "operands.h"

#include <pthread.h>

static char through_on_host;
static float **table; /* on the device */
static __typeof__(castor_home_of_parameter) *home_of;
static __typeof__(castor_home_free) *home_free;
static __typeof__(castor_storage_add) *storage_add;

static bool prepare_tables(void) {
    if (!prepare())
        return false;
    home_of = dlsym(RTLD_DEFAULT, "castor_home_of_parameter");
    home_free = dlsym(RTLD_DEFAULT, "castor_home_free");
    storage_add = dlsym(RTLD_DEFAULT, "castor_storage_add");
    CHECK(home_of && home_free && storage_add);
    kernel_register("through", &through_on_host);
    CUDA(cudaMalloc((void **)&table, 1 << 22));
    return true;
}

/* W is a parameter that no test has used, and it has a slot. */
static bool parameter(void) {
    CHECK((W = home_of(BYTES, 0, NULL)));
    CUDA(storage_add(0, W, BYTES));
    CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    return product() && product_by_slot(false);
}

static bool product_at_home(void) {
    castor_homes before = counted();
    if (!product())
        return false;
    castor_homes after = counted();
    CHECK(after.home_reads == before.home_reads + 1 && after.copies == before.copies);
    return true;
}

/* W's bits as integers: 1 << 23 more is twice the number. */
static bool write_through(float **at) {
    static int doubled = 1 << 23;
    void *arguments[] = {&at, &at, &doubled};
    CUDA(cudaLaunchKernel(&through_on_host, (dim3){N, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    return true;
}

/* ---- ways in which an address comes to the device ---- */

static bool by_memcpy(void *const *source) {
    CUDA(cudaMemcpy(table, source, 8, cudaMemcpyHostToDevice));
    return true;
}
static bool by_memcpy_default(void *const *source) {
    CUDA(cudaMemcpy(table, source, 8, cudaMemcpyDefault));
    return true;
}
static bool by_memcpy_async(void *const *source) {
    CUDA(cudaMemcpyAsync(table, source, 8, cudaMemcpyHostToDevice, stream));
    return true;
}
static bool by_pinned(void *const *source) {
    void **pinned;
    CUDA(cudaMallocHost((void **)&pinned, 64));
    pinned[1] = *source;
    CUDA(cudaMemcpyAsync(table, pinned + 1, 8, cudaMemcpyDefault, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaFreeHost(pinned));
    return true;
}
static bool by_driver(void *const *source) {
    CUDA(cuMemcpyHtoD((CUdeviceptr)table, source, 8));
    return true;
}
static bool by_driver_async(void *const *source) {
    CUDA(cuMemcpyHtoDAsync((CUdeviceptr)table, source, 8, stream));
    CUDA(cudaStreamSynchronize(stream));
    return true;
}
static bool by_driver_unified(void *const *source) {
    CUDA(cuMemcpyAsync((CUdeviceptr)table, (CUdeviceptr)source, 8, stream));
    CUDA(cudaStreamSynchronize(stream));
    return true;
}
static bool by_rows(void *const *source) {
    void *rows[4] = {NULL, NULL, *source, NULL};
    CUDA(cudaMemcpy2D(table - 1, 8, rows, 16, 8, 2, cudaMemcpyHostToDevice));
    return true;
}
/* At an odd place of the host's memory, and behind what is no whole word of the device's. */
static bool by_bytes(void *const *source) {
    char bytes[16] = {0};
    memcpy(bytes + 5, source, 8);
    CUDA(cudaMemcpy((char *)table - 4, bytes + 1, 12, cudaMemcpyHostToDevice));
    return true;
}
/* Copied from there to where the kernel finds it. */
static bool by_way_of_the_device(void *const *source) {
    CUDA(cudaMemcpy(Y, source, 8, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(table, Y, 8, cudaMemcpyDeviceToDevice));
    return true;
}

static bool a_way(bool (*carry)(void *const *)) {
    void *source = NULL;
    table += 2;
    if (!parameter())
        return false;
    source = W;
    castor_homes before = counted();
    if (!carry(&source))
        return false;
    CHECK(counted().stale == before.stale + 1);
    /* The slot is gone before anybody writes, since nobody tells of that. */
    before = counted();
    if (!product_at_home() || !write_through(table))
        return false;
    CHECK(counted().stale == before.stale);
    return product_at_home();
}

static const struct {
    const char *name;
    bool (*carry)(void *const *);
} ways[] = {
    {"memcpy", by_memcpy},
    {"memcpy_default", by_memcpy_default},
    {"memcpy_async", by_memcpy_async},
    {"pinned", by_pinned},
    {"driver", by_driver},
    {"driver_async", by_driver_async},
    {"driver_unified", by_driver_unified},
    {"rows", by_rows},
    {"bytes", by_bytes},
    {"by_way_of_the_device", by_way_of_the_device},
};

/* ---- which words are addresses ---- */

/* A kernel that reads through a table in the device's memory, after each writer. */
static bool read_through(void) {
    static float got[N * N], expected[N * N];
    float *from[2];
    int nothing = 0;
    if (!parameter())
        return false;
    from[0] = W, from[1] = Y;
    CUDA(cudaMemcpy(table, from, sizeof from, cudaMemcpyHostToDevice));
    float **out = table + 1;
    void *arguments[] = {&out, &table, &nothing};
    for (int round = 0; round < 2; round++) {
        CUDA(cudaLaunchKernel(&through_on_host, (dim3){N, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
        CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(expected, W, BYTES, cudaMemcpyDeviceToHost));
        CHECK(memcmp(got, expected, BYTES) == 0);
        CUDA(cudaMemcpyAsync(W, X, BYTES, cudaMemcpyDefault, stream));
    }
    return product_at_home();
}

/* The table is made before anybody knows that a parameter lies there. */
static bool before_the_storage(void) {
    CHECK((W = home_of(BYTES, 0, NULL)));
    CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    float *inside = W + 9;
    CUDA(cudaMemcpy(table, &inside, 8, cudaMemcpyHostToDevice));
    CUDA(storage_add(0, W, BYTES));
    return product_at_home();
}

/* A product that reads W through an array that a kernel has made reads the home, whose slot is as good as before. */
static bool by_array(void) {
    static float got[N * N];
    float *from[] = {W, X, Y};
    float **array = table;
    if (!parameter())
        return false;
    from[0] = W;
    for (size_t at = 0; at < sizeof from; at += sizeof(int)) /* by halves: no copy carries an address */
        CUDA(cudaMemcpy((char *)array + at, (char *)from + at, sizeof(int), cudaMemcpyHostToDevice));
    for (int round = 0; round < 2; round++) {
        castor_homes before = counted();
        CUDA(cublasSgemmBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, (const float *const *)array, N,
                                (const float *const *)array + 1, N, &zero, array + 2, N, 1));
        CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        CHECK(right(got) && counted().uses == before.uses && counted().stale == before.stale + !round);
        CUDA(cudaMemcpyAsync(W, X, BYTES, cudaMemcpyDefault, stream));
    }
    return product_by_slot(true);
}

/* Its memory is freed: what lies there next is another one's. */
static bool freed(void) {
    if (!parameter())
        return false;
    float *before = W;
    CUDA(cudaMemcpy(table, &W, 8, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(stream));
    home_free(W, BYTES, 0, NULL);
    if (!parameter())
        return false;
    CHECK(W == before);
    return true;
}

/* A long copy with single words that look like addresses leaves slots alone, unless a parameter begins there. */
static bool in_long_copies(void) {
    static uintptr_t words[1 << 18];
    if (!parameter())
        return false;
    words[100] = (uintptr_t)(W + 1);
    words[2000] = (uintptr_t)(W + 2);
    words[(1 << 17) + 1] = (uintptr_t)W; /* behind the first MiB */
    CUDA(cudaMemcpy(table, words, sizeof words, cudaMemcpyHostToDevice));
    if (!product_by_slot(false))
        return false;
    words[2001] = (uintptr_t)(W + 2);
    CUDA(cudaMemcpy(table, words, sizeof words, cudaMemcpyHostToDevice));
    if (!product_at_home() || !parameter())
        return false;
    memset(words, 0, sizeof words);
    words[(1 << 17) - 1] = (uintptr_t)W;
    CUDA(cudaMemcpy(table, words, sizeof words, cudaMemcpyHostToDevice));
    return product_at_home();
}

/* What is in no home, or comes from no host, or failed. */
static bool no_addresses(void) {
    uintptr_t words[64];
    if (!parameter())
        return false;
    CUDA(cudaMemcpy(words, W, 8, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++)
        words[i] = (uintptr_t)W + ((uintptr_t)1 << 40) + 8 * (uintptr_t)i;
    CUDA(cudaMemcpy(table, words, sizeof words, cudaMemcpyHostToDevice));
    words[0] = (uintptr_t)W;
    CHECK(cudaMemcpy(table, words, (size_t)1 << 40, cudaMemcpyHostToDevice) != cudaSuccess);
    cudaGetLastError();
    CUDA(cudaMemcpy(words, table, 64, cudaMemcpyDeviceToHost));
    return product_by_slot(false);
}

/* How far a kernel writes from there is unknown: all parameters in the home are read there. */
static bool neighbours(void) {
    if (!parameter())
        return false;
    float *apart = W;
    CHECK((W = home_of(2 * BYTES, 0, NULL)));
    CUDA(storage_add(0, W, BYTES));
    CUDA(storage_add(0, W + N * N, BYTES));
    CUDA(cudaMemcpy(W + N * N, host, BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(table, &W, 8, cudaMemcpyHostToDevice));
    W += N * N;
    if (!product_at_home())
        return false;
    W = apart;
    return product_by_slot(false);
}

/* A kernel that gets a tensor map reads and writes there, and no argument of it tells. */
static bool by_tensor_map(void) {
    static CUtensorMap map;
    const cuuint64_t sizes[] = {N, N}, strides[] = {N * sizeof(float)};
    const cuuint32_t box[] = {1, 1}, steps[] = {1, 1};
    if (!parameter())
        return false;
    castor_homes before = counted();
    CUDA(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, W, sizes, strides, box, steps,
                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    CHECK(counted().stale == before.stale + 1);
    return product_at_home();
}

static void *go_on(void *flag) {
    usleep(50000);
    *(volatile uint32_t *)flag = 1;
    return NULL;
}

/* A step on the host is still to begin when the device gets the parameter's address: kernels may read there at once, so the step is over
 * when the copy returns. */
static bool after_a_step(void) {
    __typeof__(castor_device_updates) *able = dlsym(RTLD_DEFAULT, "castor_device_updates");
    __typeof__(castor_device_sgd) *step = dlsym(RTLD_DEFAULT, "castor_device_sgd");
    __typeof__(castor_home_of_gradient) *gradient_of = dlsym(RTLD_DEFAULT, "castor_home_of_gradient");
    CHECK(able && step && gradient_of);
    float *gradient = gradient_of(BYTES, 0, NULL);
    uint32_t *flag;
    cudaStream_t apart;
    pthread_t later;
    if (!parameter())
        return false;
    CHECK(gradient);
    CUDA(able(0));
    CUDA(cudaMallocHost((void **)&flag, 64));
    CUDA(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    for (int i = 0; i < N * N; i++)
        gradient[i] = 1;
    *flag = 0;
    CUDA(cuStreamWaitValue32(apart, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    const castor_sgd numbers = {.step = {.inv_scale = 1, .clip = 1}, .grad_weight = 1, .negative_lr = -1};
    const castor_step_range range = {.param = W, .grad = gradient, .count = N * N, .numel = N * N};
    const float before = W[0];
    CUDA(step(0, (uint64_t)apart, &numbers, &range, 1, 1));
    CHECK(W[0] == before && pthread_create(&later, NULL, go_on, flag) == 0);
    CUDA(cudaMemcpy(table, &W, 8, cudaMemcpyHostToDevice));
    CHECK(W[0] == before - 1 && W[N * N - 1] == host[N * N - 1] - 1);
    pthread_join(later, NULL);
    return product_at_home();
}

static const named_test tests[] = {
    {"after_a_step", after_a_step},
    {"by_tensor_map", by_tensor_map},
    {"read_through", read_through},
    {"before_the_storage", before_the_storage},
    {"by_array", by_array},
    {"freed", freed},
    {"in_long_copies", in_long_copies},
    {"no_addresses", no_addresses},
    {"neighbours", neighbours},
};

int main(int count, char **names) {
    int failed = check_run("prepare", prepare_tables);
    for (size_t i = 0; !failed && i < sizeof ways / sizeof *ways; i++)
        if (chosen(count, names, ways[i].name))
            failed += ended(ways[i].name, a_way(ways[i].carry));
    return failed || tests_run(count, names, tests, sizeof tests / sizeof *tests);
}
