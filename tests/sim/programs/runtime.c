/* The runtime as a program built by nvcc uses it: registered kernels, variables, and default streams per thread (it is
 * compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM). Runs with SIM_DEVICES=2 SIM_MEMORY=1G and with SIM_KERNELS naming
 * the library of bodies.c. */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM

#include "check.h"

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "cubin.h"

/* What nvcc writes into a program: a wrapper of the images, an address per kernel, a variable per device variable. */
struct wrapper {
    uint32_t magic, version;
    const void *image, *unused;
};
static char add_on_host, variable_on_host;

void **__cudaRegisterFatBinary(void *wrapped);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *tid, void *bid, void *block, void *grid, int *size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global);

static bool registered_kernel(void) {
    static struct wrapper wrapped = {0x466243b1, 1, NULL, NULL};
    int numbers[256], number = 100;
    int *in, *out;
    size_t offset, size;
    cudaFunction_t function;
    const char *name;

    wrapped.image = cubin_make("add");
    void **handle = __cudaRegisterFatBinary(&wrapped);
    CHECK(handle);
    __cudaRegisterFunction(handle, &add_on_host, &add_on_host, "add", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(handle, &variable_on_host, &variable_on_host, "variable", 0, 40, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);

    CHECK(!cudaMalloc((void **)&in, sizeof numbers) && !cudaMalloc((void **)&out, sizeof numbers));
    for (int i = 0; i < 256; i++)
        numbers[i] = i;
    CHECK(!cudaMemcpy(in, numbers, sizeof numbers, cudaMemcpyHostToDevice));
    void *arguments[] = {&out, &in, &number};
    CHECK(!cudaLaunchKernel(&add_on_host, (dim3){2, 1, 1}, (dim3){128, 1, 1}, arguments, 0, NULL));
    CHECK(!cudaMemcpy(numbers, out, sizeof numbers, cudaMemcpyDeviceToHost));
    CHECK(numbers[0] == 100 && numbers[255] == 355);
    CHECK(!cudaGetFuncBySymbol(&function, &add_on_host));
    CHECK(!cudaFuncGetName(&name, &add_on_host) && strcmp(name, "add") == 0);
    CHECK(!cudaFuncGetParamInfo(&add_on_host, 1, &offset, &size) && offset == 8 && size == 8);
    CHECK(cudaLaunchKernel(&number, (dim3){1, 1, 1}, (dim3){1, 1, 1}, arguments, 0, NULL) ==
          cudaErrorInvalidDeviceFunction);
    CHECK(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){1025, 1, 1}, arguments, 0, NULL) ==
          cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    CHECK(!cudaFree(in) && !cudaFree(out));
    return true;
}

static bool device_variable(void) {
    char values[40] = "castor", back[40] = "";
    void *first, *second;
    size_t size;

    CHECK(!cudaGetSymbolSize(&size, &variable_on_host) && size == 40);
    CHECK(!cudaMemcpyToSymbol(&variable_on_host, values, 7, 0, cudaMemcpyHostToDevice));
    CHECK(!cudaMemcpyFromSymbol(back, &variable_on_host, 7, 0, cudaMemcpyDeviceToHost));
    CHECK(strcmp(back, "castor") == 0);
    CHECK(cudaMemcpyToSymbol(&variable_on_host, values, 40, 1, cudaMemcpyHostToDevice) ==
          cudaErrorInvalidValue);
    CHECK(!cudaGetSymbolAddress(&first, &variable_on_host));
    CHECK(!cudaSetDevice(1) && !cudaGetSymbolAddress(&second, &variable_on_host) && !cudaSetDevice(0));
    CHECK(first != second); /* each device has its own */
    CHECK(cudaGetSymbolAddress(&first, values) == cudaErrorInvalidSymbol);
    (void)cudaGetLastError();
    return true;
}

static sem_t gate;

static void *gated_thread(void *started) {
    cudaLaunchHostFunc(0, gate_wait, &gate);
    sem_post(started);
    cudaStreamSynchronize(0);
    return NULL;
}

static void set(void *done) {
    *(int *)done = 1;
}

static bool default_stream_per_thread(void) {
    sem_t started;
    int done = 0;
    pthread_t thread;

    CHECK(!sem_init(&gate, 0, 0) && !sem_init(&started, 0, 0));
    CHECK(!pthread_create(&thread, NULL, gated_thread, &started));
    gate_wait(&started);
    CHECK(!cudaLaunchHostFunc(0, set, &done)); /* stream 0 is another one in each thread */
    CHECK(!cudaStreamSynchronize(0));
    CHECK(done == 1);
    sem_post(&gate);
    pthread_join(thread, NULL);
    return true;
}

static bool directions_and_attributes(void) {
    struct cudaPointerAttributes attributes;
    char host[100], *device, *pinned;

    CHECK(!cudaMalloc((void **)&device, 100) && !cudaMallocHost((void **)&pinned, 100));
    CHECK(cudaMemcpy(host, device, 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(device, host, 100, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(device, host, 100, (enum cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemcpy(device, host, 101, cudaMemcpyDefault) == cudaErrorInvalidValue);
    CHECK(!cudaMemcpy(device, host, 100, cudaMemcpyDefault));
    CHECK(!cudaPointerGetAttributes(&attributes, device + 50) && attributes.type == cudaMemoryTypeDevice);
    CHECK(!cudaPointerGetAttributes(&attributes, pinned) && attributes.type == cudaMemoryTypeHost);
    CHECK(!cudaPointerGetAttributes(&attributes, host) && attributes.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFree(pinned) == cudaErrorInvalidValue && cudaFreeHost(device) == cudaErrorInvalidValue);
    CHECK(!cudaFree(device) && !cudaFreeHost(pinned) && !cudaFree(NULL));
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    (void)cudaGetLastError();
    return true;
}

static bool managed_and_3d(void) {
    struct cudaMemcpy3DParms copy = {.kind = cudaMemcpyDefault};
    char *shared, source[2][3][4], target[2][3][4];

    CHECK(!cudaMallocManaged((void **)&shared, 4096, cudaMemAttachGlobal));
    shared[4095] = 1; /* the host may write it, too */
    CHECK(!cudaMemset(shared, 2, 4095) && shared[0] == 2 && shared[4095] == 1);
    for (int i = 0; i < 24; i++)
        source[i / 12][i / 4 % 3][i % 4] = (char)i;
    memset(target, 99, sizeof target);
    copy.srcPtr = (struct cudaPitchedPtr){source, 4, 4, 3};
    copy.dstPtr = (struct cudaPitchedPtr){target, 4, 4, 3};
    copy.srcPos = (struct cudaPos){1, 1, 0};
    copy.extent = (struct cudaExtent){2, 2, 2};
    CHECK(!cudaMemcpy3D(&copy));
    CHECK(target[0][0][0] == 5 && target[1][1][1] == 22 && target[0][2][0] == 99);
    CHECK(!cudaFree(shared));
    return true;
}

int main(void) {
    int failed = 0;

    failed += RUN(registered_kernel);
    failed += RUN(device_variable);
    failed += RUN(default_stream_per_thread);
    failed += RUN(directions_and_attributes);
    failed += RUN(managed_and_3d);
    return failed != 0;
}
