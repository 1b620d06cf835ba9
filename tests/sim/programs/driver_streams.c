/* The driver's streams, events, graphs, kernels and entry points. Runs with SIM_DEVICES=1, and with SIM_KERNELS naming
 * the library of bodies.c. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cubin.h"

static atomic_int order_next;
static int order[64];

static void note(void *data) {
    order[atomic_fetch_add(&order_next, 1)] = (int)(intptr_t)data;
}

static sem_t gate;

static void gated_note(void *data) {
    gate_wait(&gate);
    note(data);
}

static bool one_after_another(void) {
    CUstream stream;

    atomic_store(&order_next, 0);
    WORKS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    WORKS(cuLaunchHostFunc(stream, gated_note, (void *)1));
    WORKS(cuLaunchHostFunc(stream, note, (void *)2)); /* the calls do not wait */
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK(order_next == 0);
    sem_post(&gate);
    WORKS(cuStreamSynchronize(stream));
    WORKS(cuStreamQuery(stream));
    CHECK(order_next == 2 && order[0] == 1 && order[1] == 2);
    WORKS(cuStreamDestroy(stream));
    return true;
}

static bool legacy_stream(void) {
    CUstream blocking, free_one;

    atomic_store(&order_next, 0);
    WORKS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    WORKS(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
    WORKS(cuLaunchHostFunc(blocking, gated_note, (void *)1));
    WORKS(cuLaunchHostFunc(0, note, (void *)2));        /* behind the blocking stream */
    WORKS(cuLaunchHostFunc(blocking, note, (void *)3)); /* behind the legacy stream */
    WORKS(cuLaunchHostFunc(free_one, note, (void *)4)); /* behind nobody */
    WORKS(cuStreamSynchronize(free_one));
    CHECK(order_next == 1);
    sem_post(&gate);
    WORKS(cuCtxSynchronize());
    CHECK(order_next == 4 && order[0] == 4 && order[1] == 1 && order[2] == 2 && order[3] == 3);
    WORKS(cuStreamDestroy(blocking));
    WORKS(cuStreamDestroy(free_one));
    return true;
}

static void *on_own_stream(void *gated) {
    cuLaunchHostFunc(CU_STREAM_PER_THREAD, gated ? gated_note : note, (void *)(gated ? 1L : 2L));
    cuStreamSynchronize(CU_STREAM_PER_THREAD);
    return NULL;
}

static bool per_thread_streams(void) {
    pthread_t gated, quick;

    atomic_store(&order_next, 0);
    CHECK(!pthread_create(&gated, NULL, on_own_stream, &gate));
    CHECK(!pthread_create(&quick, NULL, on_own_stream, NULL));
    pthread_join(quick, NULL); /* neither waits for the other */
    CHECK(order_next == 1 && order[0] == 2);
    sem_post(&gate);
    pthread_join(gated, NULL);
    CHECK(order_next == 2 && order[1] == 1);
    return true;
}

static bool events(void) {
    CUstream first, second;
    CUevent start, end, plain;
    float elapsed;

    atomic_store(&order_next, 0);
    WORKS(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    WORKS(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    WORKS(cuEventCreate(&start, CU_EVENT_DEFAULT));
    WORKS(cuEventCreate(&end, CU_EVENT_DEFAULT));
    WORKS(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    WORKS(cuEventQuery(start)); /* never recorded */
    WORKS(cuEventRecord(start, first));
    WORKS(cuLaunchHostFunc(first, gated_note, (void *)1));
    WORKS(cuEventRecord(end, first));
    GIVES(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    WORKS(cuStreamWaitEvent(second, end, 0));
    WORKS(cuLaunchHostFunc(second, note, (void *)2));
    usleep(20000);
    GIVES(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    sem_post(&gate);
    WORKS(cuStreamSynchronize(second));
    CHECK(order_next == 2 && order[0] == 1 && order[1] == 2);
    WORKS(cuEventSynchronize(end));
    WORKS(cuEventElapsedTime(&elapsed, start, end));
    CHECK(elapsed >= 20);
    WORKS(cuEventRecord(plain, first));
    GIVES(cuEventElapsedTime(&elapsed, start, plain), CUDA_ERROR_INVALID_HANDLE);
    WORKS(cuEventDestroy(start));
    WORKS(cuEventDestroy(end));
    WORKS(cuEventDestroy(plain));
    WORKS(cuStreamDestroy(first));
    WORKS(cuStreamDestroy(second));
    GIVES(cuStreamSynchronize(first), CUDA_ERROR_INVALID_HANDLE);
    return true;
}

static bool graphs(void) {
    CUstream origin, branch;
    CUevent forked, joined;
    CUgraphExec exec;
    CUgraph graph;
    size_t count;
    CUdeviceptr block;

    WORKS(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    WORKS(cuStreamCreate(&branch, CU_STREAM_NON_BLOCKING));
    WORKS(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    WORKS(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    WORKS(cuMemAlloc(&block, 4096));
    atomic_store(&order_next, 0);
    WORKS(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    WORKS(cuMemsetD8Async(block, 3, 4096, origin));
    WORKS(cuEventRecord(forked, origin));
    WORKS(cuStreamWaitEvent(branch, forked, 0));
    WORKS(cuLaunchHostFunc(branch, note, (void *)1));
    WORKS(cuEventRecord(joined, branch));
    WORKS(cuStreamWaitEvent(origin, joined, 0));
    WORKS(cuLaunchHostFunc(origin, note, (void *)2));
    WORKS(cuStreamEndCapture(origin, &graph));
    CHECK(order_next == 0); /* a capture runs nothing */
    WORKS(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 3);
    WORKS(cuGraphInstantiate(&exec, graph, 0));
    WORKS(cuGraphDestroy(graph));
    WORKS(cuGraphLaunch(exec, origin));
    WORKS(cuGraphLaunch(exec, origin));
    WORKS(cuStreamSynchronize(origin));
    CHECK(order_next == 4 && order[0] == 1 && order[1] == 2 && order[3] == 2);
    CHECK(((char *)block)[4095] == 3);
    WORKS(cuGraphExecDestroy(exec));

    /* What ends a capture. */
    WORKS(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUdeviceptr more;
    GIVES(cuMemAlloc(&more, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GIVES(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    WORKS(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    WORKS(cuEventRecord(forked, origin));
    WORKS(cuStreamWaitEvent(branch, forked, 0));
    WORKS(cuLaunchHostFunc(branch, note, (void *)1));
    GIVES(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    WORKS(cuMemFree(block));
    return true;
}

static bool entry_points(void) {
    CUdriverProcAddressQueryResult status;
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
    CUdeviceptr block;
    void *plain, *per_thread;

    WORKS(cuGetProcAddress("cuMemAlloc", (void **)&allocate, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && allocate == cuMemAlloc);
    WORKS(allocate(&block, 100));
    WORKS(cuMemFree(block));
    WORKS(cuGetProcAddress("cuMemcpyAsync", &plain, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
    WORKS(cuGetProcAddress("cuMemcpyAsync", &per_thread, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                           &status));
    CHECK(plain == (void *)cuMemcpyAsync && per_thread && per_thread != plain);
    GIVES(cuGetProcAddress("cuNoSuchThing", &plain, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && !plain);
    return true;
}

/* sim_kernel_add of bodies.c: out[i] = in[i] + number */
static bool kernels(void) {
    int numbers[256], number = 100;
    size_t offset, size;
    CUdeviceptr in, out;
    CUlibrary library;
    CUkernel kernel;
    CUstream stream;

    WORKS(cuMemAlloc(&in, sizeof numbers));
    WORKS(cuMemAlloc(&out, sizeof numbers));
    for (int i = 0; i < 256; i++)
        numbers[i] = i;
    WORKS(cuMemcpyHtoD(in, numbers, sizeof numbers));
    WORKS(cuLibraryLoadData(&library, cubin_make("add"), NULL, NULL, 0, NULL, NULL, 0));
    GIVES(cuLibraryGetKernel(&kernel, library, "subtract"), CUDA_ERROR_NOT_FOUND);
    WORKS(cuLibraryGetKernel(&kernel, library, "add"));
    WORKS(cuKernelGetParamInfo(kernel, 2, &offset, &size));
    CHECK(offset == 16 && size == 4);
    GIVES(cuKernelGetParamInfo(kernel, 3, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    WORKS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *arguments[] = {&out, &in, &number};
    WORKS(cuLaunchKernel((CUfunction)kernel, 2, 1, 1, 128, 1, 1, 0, stream, arguments, NULL));
    number = 0; /* the arguments were taken at the call */
    WORKS(cuMemcpyDtoHAsync(numbers, out, sizeof numbers, stream));
    WORKS(cuStreamSynchronize(stream));
    CHECK(numbers[0] == 100 && numbers[255] == 355);

    struct {
        CUdeviceptr out, in;
        int number;
    } buffer = {out, in, 7};
    size_t bytes = 20;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    WORKS(cuLaunchKernel((CUfunction)kernel, 2, 1, 1, 128, 1, 1, 0, stream, NULL, extra));
    WORKS(cuMemcpyDtoHAsync(numbers, out, sizeof numbers, stream));
    WORKS(cuStreamSynchronize(stream));
    CHECK(numbers[0] == 7 && numbers[255] == 262);
    GIVES(cuLaunchKernel((CUfunction)kernel, 0, 1, 1, 128, 1, 1, 0, stream, arguments, NULL),
          CUDA_ERROR_INVALID_VALUE);
    GIVES(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 2048, 1, 1, 0, stream, arguments, NULL),
          CUDA_ERROR_INVALID_VALUE);
    WORKS(cuMemFree(in));
    WORKS(cuMemFree(out));
    return true;
}

#define NEVER_GIVEN 0x2169afd46a36ull /* within the range of addresses from which the simulation takes */

static bool dangling_pointers(void) {
    unsigned long (*count)(void) = (unsigned long (*)(void))dlsym(RTLD_DEFAULT, "sim_launch_dangling");
    unsigned long before;
    CUdeviceptr in, out;
    CUlibrary library;
    CUkernel kernel;
    int number = 1;

    CHECK(count);
    before = count();
    WORKS(cuLibraryLoadData(&library, cubin_make("idle"), NULL, NULL, 0, NULL, NULL, 0));
    WORKS(cuLibraryGetKernel(&kernel, library, "idle"));
    WORKS(cuMemAlloc(&in, 4096));
    WORKS(cuMemAlloc(&out, 4096));
    void *arguments[] = {&out, &in, &number};
    WORKS(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, NULL));
    WORKS(cuCtxSynchronize());
    CHECK(count() == before);
    WORKS(cuMemFree(in));
    WORKS(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, NULL));
    WORKS(cuCtxSynchronize());
    CHECK(count() == before + 1);
    in = NEVER_GIVEN; /* a number, as what a struct's unused entries hold */
    WORKS(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, NULL));
    WORKS(cuCtxSynchronize());
    CHECK(count() == before + 1);
    WORKS(cuMemFree(out));
    return true;
}

/* The last test: it ends its context. An unmap does not wait for the copy that is on its way. */
static bool unmapped_under_a_copy(void) {
    const size_t granule = 2u << 20;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range, block;
    CUstream stream;

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    WORKS(cuMemAddressReserve(&range, granule, 0, 0, 0));
    WORKS(cuMemCreate(&handle, granule, &prop, 0));
    WORKS(cuMemMap(range, granule, 0, handle, 0));
    WORKS(cuMemSetAccess(range, granule, &access, 1));
    WORKS(cuMemAlloc(&block, granule));
    WORKS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    atomic_store(&order_next, 0);
    WORKS(cuLaunchHostFunc(stream, gated_note, NULL));
    WORKS(cuMemcpyAsync(block, range, granule, stream));
    WORKS(cuMemUnmap(range, granule));
    sem_post(&gate);
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuMemAlloc(&block, 100), CUDA_ERROR_ILLEGAL_ADDRESS); /* the context is at its end */
    return true;
}

int main(void) {
    int failed = 0;

    if (!check_context() || sem_init(&gate, 0, 0))
        return 1;
    failed += RUN(one_after_another);
    failed += RUN(legacy_stream);
    failed += RUN(per_thread_streams);
    failed += RUN(events);
    failed += RUN(graphs);
    failed += RUN(entry_points);
    failed += RUN(kernels);
    failed += RUN(dangling_pointers);
    failed += RUN(unmapped_under_a_copy);
    return failed != 0;
}
