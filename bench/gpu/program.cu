/* A program of nvcc, linked with the shared or with the static runtime:
 *
 *     program calls [unchecked]   memory, copies, launches and a graph, and the sums that must come of them; prints what
 *                                 it called, a line each: function, count, bytes
 *     program launches STEPS      steps of 2000 launches of an empty kernel: the host's time of a launch in ns, a line
 *                                 per step
 *
 * `unchecked`: on simulated devices, where kernels do nothing. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

static const int COUNT = 1 << 18, LAUNCHES = 100, STEP = 2000;

__global__ void nothing() {}

__global__ void add(float *values, float step, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] += step;
}

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t error = (call);                                                                          \
        if (error != cudaSuccess) {                                                                          \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                              \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (0)

static int calls(bool checked) {
    const size_t bytes = COUNT * sizeof(float);
    std::vector<float> host(COUNT, -1.0f);
    float *values;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&values, bytes));
    CHECK(cudaMemsetAsync(values, 0, bytes, stream));
    for (int i = 0; i < LAUNCHES; i++)
        add<<<COUNT / 256, 256, 0, stream>>>(values, 1.0f, COUNT);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    add<<<COUNT / 256, 256, 0, stream>>>(values, 0.5f, COUNT);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < 2; i++)
        CHECK(cudaGraphLaunch(replay, stream));
    CHECK(cudaMemcpyAsync(host.data(), values, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; checked && i < COUNT; i++) {
        if (host[i] == LAUNCHES + 1.0f)
            continue;
        std::fprintf(stderr, "element %d is %g, not %g\n", i, host[i], LAUNCHES + 1.0);
        return 1;
    }
    CHECK(cudaGraphExecDestroy(replay));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(values));
    CHECK(cudaStreamDestroy(stream));
    std::printf("launches %d 0\ngraphs 2 0\nallocations 1 %zu\ncopies 1 %zu\nsets 1 %zu\n", LAUNCHES + 1, bytes,
                bytes, bytes);
    return 0;
}

static double now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int launches(int steps) {
    for (int step = 0; step < steps; step++) {
        double begin = now_ns();
        for (int i = 0; i < STEP; i++)
            nothing<<<1, 32>>>();
        std::printf("%.1f\n", (now_ns() - begin) / STEP);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && std::strcmp(argv[1], "launches") == 0)
        return launches(std::atoi(argv[2]));
    return calls(!(argc > 2 && std::strcmp(argv[2], "unchecked") == 0));
}
