/* Graphs: operations with their dependencies, made by capturing streams, and run as one operation of a stream, node
 * after node in the order of their creation, which is a topological one.
 *
 * One lock guards captures and graphs; it is taken before any other. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x47524148u

struct sim_capture {
    unsigned long long id;
    int mode;
    CUgraph graph;
    CUstream origin;
    CUstream *members;
    size_t member_count;
    pthread_t thread;
    bool invalid, over;
    struct sim_capture *next;
};

struct CUgraphExec_st {
    unsigned magic;
    atomic_int references;
    CUgraph graph;
};

static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_capture *captures; /* never freed: events may name one that is over */
static atomic_int active;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool sim_capture_takes(CUstream stream) {
    return atomic_load_explicit(&active, memory_order_relaxed) && stream->capture != NULL;
}

/* ---- graphs ---- */

CUresult sim_graph_create(CUgraph *graph) {
    if (!(*graph = calloc(1, sizeof **graph)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*graph)->magic = GRAPH_MAGIC;
    return CUDA_SUCCESS;
}

CUresult sim_graph_destroy(CUgraph graph) {
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->arguments);
        free(graph->nodes[i]->dependencies);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
    return CUDA_SUCCESS;
}

static void *copied(const void *data, size_t bytes) {
    void *copy = malloc(bytes ? bytes : 1);

    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

CUresult sim_graph_add(CUgraph graph, const CUgraphNode *dependencies, size_t count, int type,
                       enum sim_op_kind kind, sim_run *run, const void *arguments, size_t size,
                       CUgraphNode *made) {
    CUgraphNode node = calloc(1, sizeof *node);

    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? graph->capacity * 2 : 64;
        CUgraphNode *nodes = realloc(graph->nodes, capacity * sizeof(CUgraphNode));
        if (!nodes) {
            free(node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        graph->nodes = nodes;
        graph->capacity = capacity;
    }
    node->graph = graph;
    node->type = (enum CUgraphNodeType_enum)type;
    node->kind = kind;
    node->run = run;
    node->size = size;
    node->arguments = copied(arguments, size);
    node->dependencies = copied(dependencies, count * sizeof(CUgraphNode));
    node->dependency_count = count;
    graph->nodes[graph->count++] = node;
    *made = node;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraphNode *const *from, size_t have, CUgraphNode *nodes, size_t *count) {
    if (nodes) {
        for (size_t i = 0; i < *count; i++)
            nodes[i] = i < have ? (*from)[i] : NULL;
        have = have < *count ? have : *count;
    }
    *count = have;
    return CUDA_SUCCESS;
}

CUresult sim_graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    return list_nodes(&graph->nodes, graph->count, nodes, count);
}

CUresult sim_node_dependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    return list_nodes(&node->dependencies, node->dependency_count, nodes, count);
}

CUresult sim_graph_instantiate(CUgraph graph, CUgraphExec *exec) {
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(*exec = calloc(1, sizeof **exec)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*exec)->magic = GRAPH_MAGIC;
    (*exec)->references = 1;
    CUresult result = sim_graph_create(&(*exec)->graph);
    for (size_t i = 0; !result && i < graph->count; i++) {
        const struct CUgraphNode_st *node = graph->nodes[i];
        CUgraphNode copy;
        result = sim_graph_add((*exec)->graph, NULL, 0, node->type, node->kind, node->run, node->arguments,
                               node->size, &copy);
    }
    return result;
}

static void exec_drop(CUgraphExec exec) {
    if (atomic_fetch_sub(&exec->references, 1) > 1)
        return;
    sim_graph_destroy(exec->graph);
    exec->magic = 0;
    free(exec);
}

CUresult sim_graph_exec_destroy(CUgraphExec exec) {
    if (!exec || exec->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    exec_drop(exec);
    return CUDA_SUCCESS;
}

static CUresult run_graph(void *arguments) {
    CUgraphExec exec = *(CUgraphExec *)arguments;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; !result && i < exec->graph->count; i++) {
        const struct CUgraphNode_st *node = exec->graph->nodes[i];
        sim_op_delay(node->kind);
        result = node->run ? node->run(node->arguments) : CUDA_SUCCESS;
    }
    exec_drop(exec);
    return result;
}

CUresult sim_graph_launch(CUgraphExec exec, CUstream stream) {
    CUresult result = sim_stream_resolve(&stream);

    if (result || !exec || exec->magic != GRAPH_MAGIC)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (sim_capture_takes(stream))
        return CUDA_ERROR_NOT_SUPPORTED; /* a graph inside a graph */
    atomic_fetch_add(&exec->references, 1);
    result = sim_stream_submit(stream, SIM_GRAPH, run_graph, &exec, sizeof exec);
    if (result)
        exec_drop(exec);
    return result;
}

/* ---- captures ---- */

static CUresult set_tips(CUgraphNode **tips, size_t *count, const CUgraphNode *nodes, size_t node_count) {
    CUgraphNode *copy = copied(nodes, node_count * sizeof *nodes);

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    free(*tips);
    *tips = copy;
    *count = node_count;
    return CUDA_SUCCESS;
}

/* The graph lock is held. */
static CUresult join(struct sim_capture *capture, CUstream stream) {
    CUstream *members = realloc(capture->members, (capture->member_count + 1) * sizeof *members);

    if (!members)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->members = members;
    members[capture->member_count++] = stream;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

CUresult sim_capture_add(CUstream stream, enum sim_op_kind kind, sim_run *run, const void *arguments,
                         size_t size) {
    static const enum CUgraphNodeType_enum types[] = {
        [SIM_LAUNCH] = CU_GRAPH_NODE_TYPE_KERNEL,   [SIM_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [SIM_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,     [SIM_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [SIM_HOST] = CU_GRAPH_NODE_TYPE_HOST,       [SIM_BLAS] = CU_GRAPH_NODE_TYPE_KERNEL,
        [SIM_NCCL] = CU_GRAPH_NODE_TYPE_KERNEL,     [SIM_EVENT] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [SIM_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT, [SIM_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
        [SIM_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
    };
    CUgraphNode node;
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

    pthread_mutex_lock(&graph_lock);
    if (stream->capture && !stream->capture->invalid) {
        result = sim_graph_add(stream->capture->graph, stream->tips, stream->tip_count, types[kind], kind,
                               run, arguments, size, &node);
        if (!result)
            result = set_tips(&stream->tips, &stream->tip_count, &node, 1);
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult sim_capture_begin(CUstream stream, int mode) {
    CUresult result = sim_stream_resolve(&stream);
    struct sim_capture *capture;

    if (result)
        return result;
    if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->ctx->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!(capture = calloc(1, sizeof *capture)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((result = sim_graph_create(&capture->graph))) {
        free(capture);
        return result;
    }
    capture->id = sim_next_id();
    capture->mode = mode;
    capture->origin = stream;
    capture->thread = pthread_self();
    pthread_mutex_lock(&graph_lock);
    result = join(capture, stream);
    if (!result) {
        capture->next = captures;
        captures = capture;
        atomic_fetch_add(&active, 1);
        result = set_tips(&stream->tips, &stream->tip_count, NULL, 0);
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

static bool has_dependent(const struct CUgraph_st *graph, CUgraphNode node) {
    for (size_t i = 0; i < graph->count; i++) {
        for (size_t d = 0; d < graph->nodes[i]->dependency_count; d++) {
            if (graph->nodes[i]->dependencies[d] == node)
                return true;
        }
    }
    return false;
}

static bool among(CUgraphNode node, const CUgraphNode *nodes, size_t count) {
    while (count && nodes[count - 1] != node)
        count--;
    return count > 0;
}

CUresult sim_capture_end(CUstream stream, CUgraph *graph) {
    CUresult result = sim_stream_resolve(&stream);

    if (result)
        return result;
    pthread_mutex_lock(&graph_lock);
    struct sim_capture *capture = stream->capture;
    if (!capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->origin != stream) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
               !pthread_equal(capture->thread, pthread_self())) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        if (capture->invalid)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        for (size_t m = 0; m < capture->member_count; m++) {
            CUstream member = capture->members[m];
            for (size_t t = 0; member != stream && t < member->tip_count && !result; t++) {
                if (!has_dependent(capture->graph, member->tips[t]) &&
                    !among(member->tips[t], stream->tips, stream->tip_count))
                    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
            }
        }
        for (size_t m = 0; m < capture->member_count; m++)
            capture->members[m]->capture = NULL;
        capture->over = true;
        atomic_fetch_sub(&active, 1);
        if (!result)
            *graph = capture->graph;
        else
            sim_graph_destroy(capture->graph);
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult sim_capture_forbid(void) {
    CUresult result = CUDA_SUCCESS;

    if (!atomic_load_explicit(&active, memory_order_relaxed) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    pthread_mutex_lock(&graph_lock);
    for (struct sim_capture *capture = captures; capture; capture = capture->next) {
        if (capture->over || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        bool own = pthread_equal(capture->thread, pthread_self());
        bool global =
            capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || global) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

int sim_capture_exchange_mode(int mode) {
    int before = thread_mode;

    thread_mode = mode;
    return before;
}

CUresult sim_capture_record(CUstream stream, CUevent event) {
    pthread_mutex_lock(&graph_lock);
    event->capture = stream->capture;
    CUresult result = set_tips(&event->tips, &event->tip_count, stream->tips, stream->tip_count);
    pthread_mutex_unlock(&graph_lock);
    return result;
}

/* False when the wait has nothing to do with a capture. */
bool sim_capture_wait(CUstream stream, CUevent event, CUresult *result) {
    if (!atomic_load_explicit(&active, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&graph_lock);
    struct sim_capture *from = event->capture && !event->capture->over ? event->capture : NULL;
    bool taken = from || stream->capture;
    *result = CUDA_SUCCESS;
    if (from && !stream->capture) {
        if (stream == stream->ctx->legacy)
            *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        else if (!(*result = join(from, stream)))
            *result = set_tips(&stream->tips, &stream->tip_count, event->tips, event->tip_count);
    } else if (from && from == stream->capture) {
        CUgraphNode *both = malloc((stream->tip_count + event->tip_count + 1) * sizeof *both);
        size_t count = stream->tip_count;
        if (both) {
            memcpy(both, stream->tips, count * sizeof *both);
            for (size_t i = 0; i < event->tip_count; i++) {
                if (!among(event->tips[i], both, count))
                    both[count++] = event->tips[i];
            }
            *result = set_tips(&stream->tips, &stream->tip_count, both, count);
            free(both);
        }
    } else if (from) {
        *result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    } else if (stream->capture) {
        stream->capture->invalid = true;
        *result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    pthread_mutex_unlock(&graph_lock);
    return taken;
}

/* What happens on the legacy stream waits for the blocking streams, and of these none can wait while it captures. */
CUresult sim_capture_implicit(CUstream stream) {
    CUresult result = CUDA_SUCCESS;

    if (!atomic_load_explicit(&active, memory_order_relaxed) || stream != stream->ctx->legacy)
        return result;
    pthread_mutex_lock(&graph_lock);
    for (struct sim_capture *capture = captures; capture; capture = capture->next) {
        for (size_t m = 0; !capture->over && m < capture->member_count; m++) {
            if (!(capture->members[m]->flags & CU_STREAM_NON_BLOCKING) &&
                capture->members[m]->ctx == stream->ctx)
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult sim_capture_info(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                          const CUgraphNode **tips, size_t *count) {
    CUresult result = sim_stream_resolve(&stream);

    if (!result)
        result = sim_capture_implicit(stream);
    if (result)
        return result;
    pthread_mutex_lock(&graph_lock);
    struct sim_capture *capture = stream->capture;
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture) {
        if (id)
            *id = capture->id;
        if (graph)
            *graph = capture->graph;
        if (tips)
            *tips = stream->tips;
        if (count)
            *count = stream->tip_count;
    }
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

CUresult sim_capture_update(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags) {
    CUresult result = sim_stream_resolve(&stream);

    if (result)
        return result;
    pthread_mutex_lock(&graph_lock);
    if (!stream->capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (flags & CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        result = set_tips(&stream->tips, &stream->tip_count, nodes, count);
    } else {
        CUgraphNode *both = malloc((stream->tip_count + count + 1) * sizeof *both);
        if (both) {
            memcpy(both, stream->tips, stream->tip_count * sizeof *both);
            memcpy(both + stream->tip_count, nodes, count * sizeof *both);
            result = set_tips(&stream->tips, &stream->tip_count, both, stream->tip_count + count);
            free(both);
        }
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}
