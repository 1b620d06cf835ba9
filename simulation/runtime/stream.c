/* Streams, events and graphs: what has one form only (see ordered.c). */
#include "runtime.h"

#include <stdio.h>

cudaError_t cudaStreamCreate(cudaStream_t *pStream) {
    ENTER();
    return runtime_result(sim_stream_create(0, 0, pStream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags) {
    ENTER();
    return runtime_result(sim_stream_create(flags, 0, pStream));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority) {
    ENTER();
    return runtime_result(sim_stream_create(flags, priority, pStream));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER();
    return runtime_result(sim_stream_destroy(stream));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    ENTER();
    return runtime_result(sim_event_create(0, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    ENTER();
    return runtime_result(sim_event_create(flags, event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER();
    return runtime_result(sim_event_destroy(event));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    return runtime_result(sim_event_query(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    return runtime_result(sim_event_synchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER();
    return runtime_result(sim_event_elapsed(ms, start, end));
}

static cudaError_t copy_peer(void *dst, const void *src, size_t count, cudaStream_t stream, bool wait) {
    struct sim_copy what = {dst, src, count, 1, count, count};

    return runtime_result(sim_copy_submit(stream, &what, wait));
}

cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count) {
    (void)dstDevice, (void)srcDevice;
    ENTER();
    return copy_peer(dst, src, count, NULL, true);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                cudaStream_t stream) {
    (void)dstDevice, (void)srcDevice;
    ENTER();
    return copy_peer(dst, src, count, stream, false);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    ENTER();
    *mode = (enum cudaStreamCaptureMode)sim_capture_exchange_mode((int)*mode);
    return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *pGraph, unsigned int flags) {
    ENTER();
    return runtime_result(flags ? CUDA_ERROR_INVALID_VALUE : sim_graph_create(pGraph));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER();
    return runtime_result(sim_graph_destroy(graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    ENTER();
    return runtime_result(sim_graph_instantiate(graph, pGraphExec));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags) {
    (void)flags;
    ENTER();
    return runtime_result(sim_graph_instantiate(graph, pGraphExec));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
    ENTER();
    return runtime_result(sim_graph_exec_destroy(graphExec));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes) {
    ENTER();
    return runtime_result(sim_graph_nodes(graph, nodes, numNodes));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *pType) {
    ENTER();
    *pType = (enum cudaGraphNodeType)node->type;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *pDependencies,
                                         cudaGraphEdgeData *edgeData, size_t *pNumDependencies) {
    ENTER();
    for (size_t i = 0; edgeData && pDependencies && i < *pNumDependencies; i++)
        edgeData[i] = (cudaGraphEdgeData){0};
    return runtime_result(sim_node_dependencies(node, pDependencies, pNumDependencies));
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned int flags) {
    FILE *file;

    (void)flags;
    ENTER();
    if (!(file = fopen(path, "we")))
        return runtime_result(cudaErrorOperatingSystem);
    fprintf(file, "digraph simulated {\n");
    for (size_t i = 0; i < graph->count; i++) {
        fprintf(file, "  n%p [label=\"%d\"];\n", (void *)graph->nodes[i], (int)graph->nodes[i]->type);
        for (size_t d = 0; d < graph->nodes[i]->dependency_count; d++)
            fprintf(file, "  n%p -> n%p;\n", (void *)graph->nodes[i]->dependencies[d],
                    (void *)graph->nodes[i]);
    }
    fprintf(file, "}\n");
    fclose(file);
    return cudaSuccess;
}
