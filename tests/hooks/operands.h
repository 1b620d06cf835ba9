/* What the programs of test_operands.py share: a parameter W with its home on the host, and products that read it. Runs under the
 * preloaded library with CASTOR_DEVICE_BUDGET=0, and with SIM_KERNELS naming the bodies of tests/sim/programs. Prints `ok TEST` or
 * `FAIL TEST: why`; arguments choose tests. */
#ifndef CASTOR_TESTS_HOOKS_OPERANDS_H
#define CASTOR_TESTS_HOOKS_OPERANDS_H

#include "check.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <nccl.h>
#include <unistd.h>
#include "castor.h"
#include "cubin.h"

#define N     64
#define BYTES (N * N * sizeof(float))
#define CUDA(call)                                                                                           \
    do {                                                                                                     \
        int given_ = (int)(call);                                                                            \
        if (given_) {                                                                                        \
            snprintf(check_why, sizeof check_why, "line %d: %s gives %d", __LINE__, #call, given_);          \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

static float *W, *other; /* in homes: the operand, and the parameter behind it */
static float *X, *Y;     /* on the device */
static float host[N * N], input[N * N], one = 1, zero;
static cudaStream_t stream;
static cublasHandle_t blas;
static cublasLtHandle_t light;
static char add_on_host;
static CUfunction add_function;

static __typeof__(castor_homes_get) *homes_get;
__attribute__((unused)) static __typeof__(castor_homes_offer) *homes_offer;
__attribute__((unused)) static __typeof__(castor_homes_join) *homes_join;
__attribute__((unused)) static __typeof__(castor_homes_part) *homes_part;
__attribute__((unused)) static __typeof__(castor_homes_joined) *homes_joined;

static castor_homes counted(void) {
    castor_homes now;
    homes_get(0, &now);
    return now;
}

static float value_of(int i) {
    return (float)((i * 37 + 11) % 101 - 50) / 8;
}

void **__cudaRegisterFatBinary(void *wrapped);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *tid, void *bid, void *block, void *grid, int *size);

/* Of (pointer, pointer, int), with the body that SIM_KERNELS has for its name. */
__attribute__((unused)) static void kernel_register(const char *name, char *on_host) {
    static struct {
        uint32_t magic, version;
        const void *image, *unused;
    } wrapped[2];
    static struct cubin cubins[2];
    static int count;
    cubins[count] = *(const struct cubin *)cubin_make(name);
    wrapped[count].magic = 0x466243b1;
    wrapped[count].version = 1;
    wrapped[count].image = &cubins[count];
    void **handle = __cudaRegisterFatBinary(&wrapped[count++]);
    __cudaRegisterFunction(handle, on_host, on_host, name, -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
}

static bool prepare(void) {
    castor_status (*start)(int) = dlsym(RTLD_DEFAULT, "castor_device_start");
    void *(*home)(int64_t, int, void *) = dlsym(RTLD_DEFAULT, "castor_home_of_parameter");
    castor_status (*add)(int, const void *, uint64_t) = dlsym(RTLD_DEFAULT, "castor_storage_add");
    homes_get = dlsym(RTLD_DEFAULT, "castor_homes_get");
    homes_offer = dlsym(RTLD_DEFAULT, "castor_homes_offer");
    homes_join = dlsym(RTLD_DEFAULT, "castor_homes_join");
    homes_part = dlsym(RTLD_DEFAULT, "castor_homes_part");
    homes_joined = dlsym(RTLD_DEFAULT, "castor_homes_joined");
    CHECK(start && home && add && homes_get && homes_offer && homes_join && homes_part && homes_joined);
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(NULL));
    CUDA(start(0));
    CHECK((W = home(2 * BYTES, 0, NULL)));
    other = W + N * N;
    CUDA(add(0, W, BYTES));
    CUDA(add(0, other, BYTES));
    CUDA(cudaMalloc((void **)&X, BYTES));
    CUDA(cudaMalloc((void **)&Y, 4 * BYTES));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cublasCreate(&blas));
    CUDA(cublasSetStream(blas, stream));
    CUDA(cublasLtCreate(&light));
    for (int i = 0; i < N * N; i++)
        input[i] = value_of(i + 5), host[i] = value_of(i);
    CUDA(cudaMemcpy(X, input, BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(other, host, BYTES, cudaMemcpyHostToDevice));
    kernel_register("add", &add_on_host);
    CUDA(cudaGetFuncBySymbol((cudaFunction_t *)&add_function, &add_on_host));
    return true;
}

/* Y = W * X, by columns, of what W holds now. */
static bool right(const float *got) {
    static float w[N * N];
    CUDA(cudaMemcpy(w, W, BYTES, cudaMemcpyDeviceToHost));
    for (int row = 0; row < N; row++)
        for (int column = 0; column < N; column++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += (double)w[k * N + row] * input[column * N + k];
            CHECK(fabs(got[column * N + row] - sum) <= 1e-4 * (fabs(sum) + 1));
        }
    return true;
}

static bool product(void) {
    static float got[N * N];
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, N, X, N, &zero, Y, N));
    CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return right(got);
}

/* The product reads a slot, whose copy is `fresh` or was there before. */
static bool product_by_slot(bool fresh) {
    castor_homes before = counted();
    if (!product())
        return false;
    castor_homes after = counted();
    CHECK(after.uses == before.uses + 1 && after.home_reads == before.home_reads);
    CHECK(after.copies == before.copies + fresh && after.hits == before.hits + !fresh);
    return true;
}

static bool chosen(int count, char **names, const char *name) {
    bool found = count < 2;
    for (int i = 1; i < count; i++)
        found |= strcmp(names[i], name) == 0;
    return found;
}

/* Says how a test has ended; 1: it has failed. */
static int ended(const char *name, bool well) {
    printf(well ? "ok %s\n" : "FAIL %s: %s\n", name, check_why);
    return !well;
}

typedef struct named_test {
    const char *name;
    bool (*run)(void);
} named_test;

/* Those that are chosen; returns how many have failed. */
static int tests_run(int count, char **names, const named_test *tests, size_t tests_count) {
    int failed = 0;
    for (size_t i = 0; i < tests_count; i++)
        if (chosen(count, names, tests[i].name))
            failed += check_run(tests[i].name, tests[i].run);
    return failed;
}

#endif
