/* Operands of products and writers of homes, by their effect, on simulated devices: a matrix with its home on the host is read from a slot,
 * and after each way of writing it the next product reads what was written. UNKNOWN_LAYOUTS in the environment: nobody tells how
 * kernels' parameters lie. */
#include "operands.h"

/* ---- writers ---- */

static bool write_memcpy(void) {
    CUDA(cudaMemcpy(W + 7, input, 400, cudaMemcpyHostToDevice));
    return true;
}
static bool write_memcpy_async(void) {
    CUDA(cudaMemcpyAsync(W, X, BYTES / 2, cudaMemcpyDefault, stream));
    return true;
}
static bool write_memset_async(void) {
    CUDA(cudaMemsetAsync(W + 100, 0, 800, stream));
    return true;
}
static bool write_memcpy_2d(void) {
    /* `width * height` bytes from its address on would be in the storage before. */
    CUDA(cudaMemcpy2DAsync(W + N, N * sizeof(float), X, N * sizeof(float), 8, N - 1, cudaMemcpyDefault,
                           stream));
    return true;
}
static bool write_memset_2d(void) {
    CUDA(cudaMemset2DAsync(W + 4, N * sizeof(float), 0, 16, N, stream));
    return true;
}
static bool write_memcpy_3d(void) {
    struct cudaMemcpy3DParms parameters = {
        .srcPtr = {X, N * sizeof(float), N, N},
        .dstPtr = {W, N * sizeof(float), N, N},
        .dstPos = {16, 30, 0},
        .extent = {64, 20, 1},
        .kind = cudaMemcpyDefault,
    };
    CUDA(cudaMemcpy3DAsync(&parameters, stream));
    return true;
}
static bool write_driver_copy(void) {
    CUDA(cuMemcpyHtoDAsync((CUdeviceptr)(W + 3), input, 64, stream));
    return true;
}
static bool write_driver_set(void) {
    CUDA(cuMemsetD32Async((CUdeviceptr)(W + 9), 0x40000000, 33, stream));
    return true;
}
static bool write_driver_2d(void) {
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = (CUdeviceptr)X,
                          .srcPitch = N * sizeof(float),
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = (CUdeviceptr)W,
                          .dstPitch = N * sizeof(float),
                          .dstY = 40,
                          .WidthInBytes = 32,
                          .Height = 20};
    CUDA(cuMemcpy2DAsync(&copy, stream));
    return true;
}
static bool write_value(void) {
    CUDA(cuStreamWriteValue32(stream, (CUdeviceptr)(W + 77), 0x41200000, 0));
    return true;
}

/* W's bits as integers: 1 << 23 more is twice the number. */
static int doubled = 1 << 23;

static bool write_launch(void) {
    void *arguments[] = {&W, &W, &doubled};
    CUDA(cudaLaunchKernel(&add_on_host, (dim3){N, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    return true;
}
static bool write_launch_inside(void) { /* an address inside of the storage */
    float *from = W + N;
    void *arguments[] = {&from, &from, &doubled};
    CUDA(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    return true;
}
/* With an address in the home that no storage holds: a tensor there may go over them. */
static bool write_launch_behind(void) {
    float *end = other + N * N;
    void *arguments[] = {&Y, &end, &doubled};
    CUDA(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    return true;
}

static bool write_launch_ex(void) {
    void *arguments[] = {&W, &W, &doubled};
    cudaLaunchConfig_t config = {.gridDim = {N, 1, 1}, .blockDim = {N, 1, 1}, .stream = stream};
    CUDA(cudaLaunchKernelExC(&config, &add_on_host, arguments));
    return true;
}
static bool write_driver_launch(void) {
    void *arguments[] = {&W, &W, &doubled};
    CUDA(cuLaunchKernel(add_function, N, 1, 1, N, 1, 1, 0, stream, arguments, NULL));
    return true;
}
static bool write_driver_block(void) {
    struct {
        float *out, *in;
        int number;
    } block = {W, W, 1 << 23};
    size_t bytes = 20;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CUDA(cuLaunchKernel(add_function, N, 1, 1, N, 1, 1, 0, stream, NULL, extra));
    return true;
}
static bool write_driver_launch_ex(void) {
    void *arguments[] = {&W, &W, &doubled};
    CUlaunchConfig config = {.gridDimX = N,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = N,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    CUDA(cuLaunchKernelEx(&config, add_function, arguments, NULL));
    return true;
}
static bool write_graph(void) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    static float *copy;
    CUDA(cudaMalloc((void **)&copy,
                    8)); /* what is captured says nothing of W: its address lies in the graph */
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(copy, 0, 8, stream));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&ready, graph, 0));
    CUDA(cudaGraphLaunch(ready, stream));
    CUDA(cudaGraphExecDestroy(ready));
    CUDA(cudaGraphDestroy(graph));
    return true;
}

static bool write_product(void) {
    CUDA(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_N, N, N, N, &one, X, N, X, N, &zero, W, N));
    return true;
}
static bool write_product_ex(void) {
    CUDA(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, 3, N, &one, X, CUDA_R_32F, N, X, CUDA_R_32F, N,
                      &zero, W + 5 * N, CUDA_R_32F, N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return true;
}
static bool write_product_strided(void) {
    CUDA(cublasSgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, X, 4, 16, X, 4, 16, &zero,
                                   W, 4, 1024, 4));
    return true;
}
static bool write_product_batched(void) {
    float *from[] = {X, X}, *to[] = {W + 64, W + 128};
    float **array;
    CUDA(cudaMalloc((void **)&array, sizeof from + sizeof to));
    CUDA(cudaMemcpy(array, from, sizeof from, cudaMemcpyHostToDevice));
    /* By halves, as if a kernel had stored them: no copy carries an address (writers.c). */
    for (size_t at = 0; at < sizeof to; at += sizeof(int))
        CUDA(cudaMemcpy((char *)(array + 2) + at, (char *)to + at, sizeof(int), cudaMemcpyHostToDevice));
    CUDA(cublasSgemmBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, (const float *const *)array, 4,
                            (const float *const *)array, 4, &zero, array + 2, 4, 2));
    return true;
}
static bool write_vector(void) {
    CUDA(cublasSgemv(blas, CUBLAS_OP_N, N, N, &one, X, N, X, 1, &zero, W + 2, 7));
    return true;
}
static bool write_dot(void) {
    CUDA(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
    CUDA(cublasSdot(blas, N, X, 1, X, 1, W + N * N - 1));
    CUDA(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST));
    return true;
}

static bool light_product(const float *A, float *D, int columns) {
    cublasLtMatmulDesc_t descriptor;
    cublasLtMatrixLayout_t a, b, d;
    CUDA(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUDA(cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, N, N, N));
    CUDA(cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, N, columns, N));
    CUDA(cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, N, columns, N));
    CUDA(cublasLtMatmul(light, descriptor, &one, A, a, X, b, &zero, D, d, D, d, NULL, NULL, 0, stream));
    CUDA(cublasLtMatmulDescDestroy(descriptor));
    CUDA(cublasLtMatrixLayoutDestroy(a));
    CUDA(cublasLtMatrixLayoutDestroy(b));
    CUDA(cublasLtMatrixLayoutDestroy(d));
    return true;
}
static bool write_light(void) {
    castor_homes before = counted();
    if (!light_product(X, W, 2))
        return false;
    CHECK(counted().uses == before.uses); /* C is D: it is no operand */
    return true;
}

static ncclComm_t communicator(void) {
    static ncclComm_t comm;
    int device = 0;
    if (!comm && ncclCommInitAll(&comm, 1, &device))
        return NULL;
    return comm;
}
static bool write_collective(void) {
    CHECK(communicator());
    CUDA(ncclAllReduce(X, W, N * N, ncclFloat32, ncclSum, communicator(), stream));
    return true;
}
/* The group's calls are enqueued at its end: what is noted before would be too early. */
static bool write_collectives_in_groups(void) {
    castor_homes before = counted();
    CUDA(ncclGroupStart());
    CUDA(ncclGroupStart());
    for (int i = 0; i < 40; i++)
        CUDA(ncclBroadcast(X, W + i, 1, ncclFloat32, 0, communicator(), stream));
    CUDA(ncclGroupEnd());
    CHECK(counted().stale == before.stale);
    CUDA(ncclGroupEnd());
    return true;
}

static const struct {
    const char *name;
    bool (*write)(void);
    bool all; /* of any address: the other parameter's slot is stale too */
} writers[] = {
    {"memcpy", write_memcpy, false},
    {"memcpy_async", write_memcpy_async, false},
    {"memset_async", write_memset_async, false},
    {"memcpy_2d", write_memcpy_2d, true}, /* to the end of the home */
    {"memset_2d", write_memset_2d, true},
    {"memcpy_3d", write_memcpy_3d, true},
    {"driver_copy", write_driver_copy, false},
    {"driver_set", write_driver_set, false},
    {"driver_2d", write_driver_2d, true},
    {"write_value", write_value, false},
    {"launch", write_launch, true},
    {"launch_inside", write_launch_inside, true},
    {"launch_behind", write_launch_behind, true},
    {"launch_ex", write_launch_ex, true},
    {"driver_launch", write_driver_launch, true},
    {"driver_block", write_driver_block, true},
    {"driver_launch_ex", write_driver_launch_ex, true},
    {"graph", write_graph, true},
    {"product", write_product, false},
    {"product_ex", write_product_ex, false},
    {"product_strided", write_product_strided, false},
    {"product_batched", write_product_batched, true},
    {"vector", write_vector, false},
    {"dot", write_dot, false},
    {"light", write_light, false},
    {"collective", write_collective, false},
    {"collectives_in_groups", write_collectives_in_groups, true},
};

static bool other_product(void) {
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, other, N, X, N, &zero, Y, N));
    return true;
}

/* ---- a home of which ranks share the pages: read-only ---- */

static bool is_joined(void) {
    int8_t joined = 0;
    uint64_t address = (uint64_t)W;
    homes_joined(&address, 1, &joined);
    return joined;
}

/* *able: false: this driver shares no pages. */
static bool join(bool *able) {
    int32_t descriptor;
    uint64_t address = (uint64_t)W;
    castor_status offered = homes_offer(&address, 1, &descriptor);
    *able = offered != CASTOR_ERR_UNSUPPORTED;
    if (!*able)
        return true;
    CUDA(offered);
    close(descriptor);
    CUDA(homes_join(&address, 1));
    CHECK(is_joined());
    return true;
}

static bool part(void) {
    uint64_t address = (uint64_t)W;
    CUDA(homes_part(&address, 1));
    return true;
}

/* The home has left before the write, which would fault. */
static bool a_writer_of_a_joined_home(size_t number) {
    bool able;
    if (!join(&able) || !able)
        return !able;
    if (!product() || !other_product())
        return false;
    CHECK(is_joined());
    if (!writers[number].write())
        return false;
    CHECK(!is_joined());
    if (!product() || !part())
        return false;
    CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    return true;
}

static bool a_writer(size_t number) {
    for (int round = 0; round < 2; round++) {
        if (!product() || !product_by_slot(false) || !other_product())
            return false;
        castor_homes before = counted();
        if (!writers[number].write())
            return false;
        castor_homes after = counted();
        bool unknown = getenv("UNKNOWN_LAYOUTS") && strstr(writers[number].name, "launch");
        CHECK(after.stale == before.stale + 1 + (writers[number].all || unknown));
        if (!product_by_slot(true))
            return false;
        CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    }
    return a_writer_of_a_joined_home(number);
}

/* ---- readers ---- */

/* What leaves slots as they are. */
static bool nothing_is_written_now(void) {
    static float got[N * N];
    if (!product() || !other_product())
        return false;
    castor_homes before = counted();
    CUDA(cudaMemcpyAsync(got, W, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaMemcpyAsync(Y, W, BYTES, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaMemsetAsync(X + N, 0, 0, stream));
    CUDA(cudaMemcpyAsync(W, X, 0, cudaMemcpyDefault, stream));
    void *arguments[] = {&Y, &Y, &doubled};
    CUDA(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    bool unknown = getenv("UNKNOWN_LAYOUTS") != NULL;
    CHECK(counted().stale == before.stale + 2 * unknown);
    return product_by_slot(unknown);
}

static bool nothing_is_written(void) {
    bool able;
    if (!nothing_is_written_now() || !join(&able))
        return false;
    if (!able)
        return true;
    if (!nothing_is_written_now())
        return false;
    CHECK(is_joined() == !getenv("UNKNOWN_LAYOUTS"));
    return part();
}

#define READS(call)                                                                                          \
    do {                                                                                                     \
        castor_homes before_ = counted();                                                                    \
        CUDA(call);                                                                                          \
        castor_homes after_ = counted();                                                                     \
        CHECK(after_.uses == before_.uses + 1 && after_.home_reads == before_.home_reads &&                  \
              after_.hits == before_.hits + 1);                                                              \
    } while (0)

static bool every_product(void) {
    float result;
    static float got[N * N];
    if (!product())
        return false;
    READS(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, X, N, W, N, &zero, Y, N));
    READS(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_T, 5, N, N, &one, W, N, X, N, &zero, Y, N));
    READS(cublasSgemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, CUDA_R_32F, N, X, CUDA_R_32F, N,
                        &zero, Y, CUDA_R_32F, N));
    READS(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, CUDA_R_32F, N, X, CUDA_R_32F, N,
                       &zero, Y, CUDA_R_32F, N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    READS(cublasSgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, W, 4, 16, X, 4, 16, &zero,
                                    Y, 4, 16, 256));
    READS(cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, CUDA_R_32F, N, 0, X,
                                     CUDA_R_32F, N, 0, &zero, Y, CUDA_R_32F, N, N * N, 2, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT));
    READS(cublasSgemv(blas, CUBLAS_OP_N, N, N, &one, W, N, X, 1, &zero, Y, 1));
    READS(cublasSgemv(blas, CUBLAS_OP_N, N, N, &one, X, N, W, 1, &zero, Y, 1));
    READS(cublasSdot(blas, N * N, W, 1, X, 1, &result));
    READS(cublasDotEx(blas, N, X, CUDA_R_32F, 1, W, CUDA_R_32F, N, &result, CUDA_R_32F, CUDA_R_32F));
    READS(!light_product(W, Y, N));
    CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return right(got);
}

/* Both operands are one matrix; and one of them reaches beyond its storage, so that it is read where it is. */
static bool two_operands(void) {
    if (!product())
        return false;
    castor_homes before = counted();
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, N, N, N, &one, W, N, W, N, &zero, Y, N));
    CHECK(counted().uses == before.uses + 2);
    before = counted();
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W + 1, N, X, N, &zero, Y, N));
    CHECK(counted().uses == before.uses && counted().copies == before.copies);
    return true;
}

/* Another thread, with a stream of its own, and none at all. */
static bool streams(void) {
    CUDA(cublasSetStream(blas, NULL));
    CUDA(cudaMemsetAsync(W, 0, 64, NULL));
    static float got[N * N];
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, N, X, N, &zero, Y, N));
    CUDA(cudaMemcpy(got, Y, BYTES, cudaMemcpyDeviceToHost));
    CUDA(cublasSetStream(blas, stream));
    return right(got);
}

/* While a stream is captured, products read the home, since they run when the graph does. */
static bool captured(void) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    static float got[N * N];
    if (!product())
        return false;
    castor_homes before = counted();
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, N, X, N, &zero, Y, N));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK(counted().home_reads == before.home_reads + 1);
    CUDA(cudaGraphInstantiateWithFlags(&ready, graph, 0));
    CUDA(cudaMemcpy(W, input, BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaGraphLaunch(ready, stream));
    CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return right(got);
}

/* W is written in a stream of its own, which `then` ends or captures, before anybody had to wait for that. The step's end copies W ahead. */
static bool written_in(cudaError_t (*then)(cudaStream_t side, bool begins)) {
    void (*step_end)(void) = dlsym(RTLD_DEFAULT, "castor_device_step_end");
    static float got[N * N];
    cudaStream_t side;
    cudaEvent_t event;
    int number = 1 << 23;
    void *arguments[] = {&W, &X, &number};
    for (int i = 0; i < 3; i++) { /* the sequence of a step is known */
        CHECK(product());
        step_end();
    }
    CHECK(product());
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(side, event, 0));
    CUDA(cuLaunchKernel(add_function, N, 1, 1, N, 1, 1, 0, side, arguments, NULL));
    CUDA(cudaEventRecord(event, side));
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    castor_homes before = counted();
    CUDA(then(side, true));
    step_end();
    CUDA(then(side, false));
    CHECK(counted().copies == before.copies + 1);
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, W, N, X, N, &zero, Y, N));
    CUDA(cudaMemcpyAsync(got, Y, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGetLastError());
    return right(got);
}

static cudaError_t end(cudaStream_t side, bool begins) {
    return begins ? cudaStreamDestroy(side) : cudaSuccess;
}

static cudaError_t capture(cudaStream_t side, bool begins) {
    cudaGraph_t graph;
    return begins ? cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal)
                  : cudaStreamEndCapture(side, &graph);
}

static bool written_in_a_stream_that_ends(void) {
    return written_in(end);
}

static bool written_in_a_stream_that_is_captured(void) {
    return written_in(capture);
}

/* The runtime's last error is the script's. */
static bool errors_of_the_runtime(void) {
    void *arguments[] = {&Y, &Y, &doubled};
    CUDA(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){N, 1, 1}, arguments, 0, stream));
    CUDA(cudaPeekAtLastError());
    CHECK(cudaLaunchKernel(&add_on_host, (dim3){1, 1, 1}, (dim3){1025, 1, 1}, arguments, 0, stream) ==
          cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(void);
} tests[] = {
    {"every_product", every_product},
    {"nothing_is_written", nothing_is_written},
    {"two_operands", two_operands},
    {"streams", streams},
    {"captured", captured},
    {"errors_of_the_runtime", errors_of_the_runtime},
    {"written_in_a_stream_that_ends", written_in_a_stream_that_ends},
    {"written_in_a_stream_that_is_captured", written_in_a_stream_that_is_captured},
};

int main(int count, char **names) {
    int failed = check_run("prepare", prepare);
    for (size_t i = 0; !failed && i < sizeof writers / sizeof *writers; i++)
        if (chosen(count, names, writers[i].name)) {
            bool well = a_writer(i);
            printf(well ? "ok %s\n" : "FAIL %s: %s\n", writers[i].name, check_why);
            failed += !well;
        }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!failed && chosen(count, names, tests[i].name))
            failed += check_run(tests[i].name, tests[i].run);
    return failed != 0;
}
