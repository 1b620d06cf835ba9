/* Streams: queues of operations, each with a thread from the first operation that takes time.
 *
 * The legacy stream of a context orders itself against all blocking streams by wait operations, given their places
 * under the context's lock; the order of submission is total, so no two streams can wait for each other. */
#include "sim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAM_MAGIC 0x5354524du

const char *const sim_op_names[] = {"launch", "launch", "copy", "set",  "host", "blas",
                                    "nccl",   "event",  "wait", "free", "graph"};

struct wait_arguments {
    CUstream stream;
    uint64_t sequence;
};

static _Thread_local struct { CUstream streams[SIM_DEVICES_MAX]; } per_thread;

int64_t sim_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sim_op_delay(enum sim_op_kind kind) {
    if (atomic_load_explicit(&sim_faults_active, memory_order_relaxed))
        sim_fault_look(sim_op_names[kind]);
}

static void execute(CUstream stream, struct sim_op *op) {
    sim_op_delay(op->kind);
    if (atomic_load_explicit(&sim_faults_active, memory_order_relaxed))
        sim_hang_look(sim_op_names[op->kind], stream->ctx->device);
    CUresult result = op->run(op->arguments);
    if (result)
        sim_ctx_fail(stream->ctx, result);
}

static void *stream_thread(void *argument) {
    CUstream stream = argument;

    pthread_mutex_lock(&stream->wait.lock);
    for (;;) {
        while (!stream->head && !stream->destroyed)
            pthread_cond_wait(&stream->wait.changed, &stream->wait.lock);
        struct sim_op *op = stream->head;
        if (!op)
            break;
        stream->running = true;
        pthread_mutex_unlock(&stream->wait.lock);
        execute(stream, op);
        pthread_mutex_lock(&stream->wait.lock);
        stream->running = false;
        stream->head = op->next;
        if (!stream->head)
            stream->tail = NULL;
        stream->completed = op->sequence;
        if (stream->waiting)
            pthread_cond_broadcast(&stream->wait.changed);
        free(op);
    }
    pthread_mutex_unlock(&stream->wait.lock);
    return NULL;
}

static CUresult start_thread(CUstream stream) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;

    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &detached, stream_thread, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (failed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_setname_np(thread, "sim-stream");
    stream->thread_started = true;
    return CUDA_SUCCESS;
}

static CUstream stream_make(CUcontext ctx, unsigned flags, int priority) {
    CUstream stream = calloc(1, sizeof *stream);

    if (!stream)
        return NULL;
    stream->magic = STREAM_MAGIC;
    stream->ctx = ctx;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = sim_next_id();
    pthread_mutex_init(&stream->wait.lock, NULL);
    pthread_cond_init(&stream->wait.changed, NULL);
    stream->next_in_context = ctx->streams;
    ctx->streams = stream;
    return stream;
}

CUresult sim_stream_create(unsigned flags, int priority, CUstream *stream) {
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);

    if (result)
        return result;
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    pthread_mutex_lock(&ctx->order);
    *stream = stream_make(ctx, flags, priority);
    pthread_mutex_unlock(&ctx->order);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool is_legacy(CUstream stream) {
    return !stream || stream == CU_STREAM_LEGACY;
}

CUresult sim_stream_resolve(CUstream *stream) {
    CUcontext ctx;

    if (!is_legacy(*stream) && *stream != CU_STREAM_PER_THREAD)
        return (*stream)->magic == STREAM_MAGIC && !(*stream)->destroyed ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = sim_ctx_current(&ctx, true);
    if (result)
        return result;
    CUstream *place = is_legacy(*stream) ? &ctx->legacy : &per_thread.streams[ctx->device];
    pthread_mutex_lock(&ctx->order);
    if (!*place || (*place)->ctx != ctx)
        *place = stream_make(ctx, CU_STREAM_DEFAULT, 0);
    *stream = *place;
    pthread_mutex_unlock(&ctx->order);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A destroyed stream finishes what it has; its structure stays for those that wait for its operations. */
CUresult sim_stream_destroy(CUstream stream) {
    if (is_legacy(stream) || stream == CU_STREAM_PER_THREAD || stream->magic != STREAM_MAGIC ||
        stream->destroyed)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&stream->wait.lock);
    stream->destroyed = true;
    pthread_cond_broadcast(&stream->wait.changed);
    pthread_mutex_unlock(&stream->wait.lock);
    return CUDA_SUCCESS;
}

void sim_stream_await(CUstream stream, uint64_t sequence) {
    pthread_mutex_lock(&stream->wait.lock);
    stream->waiting++;
    while (stream->completed < sequence)
        pthread_cond_wait(&stream->wait.changed, &stream->wait.lock);
    stream->waiting--;
    pthread_mutex_unlock(&stream->wait.lock);
}

static CUresult run_wait(void *arguments) {
    struct wait_arguments *wait = arguments;

    sim_stream_await(wait->stream, wait->sequence);
    return CUDA_SUCCESS;
}

static uint64_t pending(CUstream stream) {
    pthread_mutex_lock(&stream->wait.lock);
    uint64_t last = stream->completed < stream->submitted ? stream->submitted : 0;
    pthread_mutex_unlock(&stream->wait.lock);
    return last;
}

/* An event on an idle stream, or a launch there, takes no time: it is done where it is submitted. */
static bool instant(CUstream stream, enum sim_op_kind kind) {
    return !stream->head && (kind == SIM_EVENT || kind == SIM_LAUNCH) &&
           !atomic_load_explicit(&sim_faults_active, memory_order_relaxed);
}

/* The context's order is held. */
static CUresult append(CUstream stream, enum sim_op_kind kind, sim_run *run, const void *arguments,
                       size_t size) {
    CUresult result = CUDA_SUCCESS;
    struct sim_op *op = malloc(sizeof *op + size);

    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->next = NULL;
    op->run = run;
    op->kind = kind;
    if (size)
        memcpy(op->arguments, arguments, size);
    pthread_mutex_lock(&stream->wait.lock);
    if (!stream->thread_started && !instant(stream, kind))
        result = start_thread(stream);
    if (result) {
        pthread_mutex_unlock(&stream->wait.lock);
        free(op);
        return result;
    }
    op->sequence = ++stream->submitted;
    if (instant(stream, kind)) {
        /* Nobody else submits meanwhile, and the thread has nothing to run. */
        pthread_mutex_unlock(&stream->wait.lock);
        execute(stream, op);
        pthread_mutex_lock(&stream->wait.lock);
        stream->completed = op->sequence;
        if (stream->waiting)
            pthread_cond_broadcast(&stream->wait.changed);
        free(op);
    } else {
        if (stream->tail)
            stream->tail->next = op;
        else
            stream->head = op;
        stream->tail = op;
        pthread_cond_broadcast(&stream->wait.changed);
    }
    pthread_mutex_unlock(&stream->wait.lock);
    return CUDA_SUCCESS;
}

static CUresult append_wait(CUstream stream, CUstream other) {
    struct wait_arguments wait = {other, pending(other)};

    return wait.sequence ? append(stream, SIM_WAIT, run_wait, &wait, sizeof wait) : CUDA_SUCCESS;
}

CUresult sim_stream_submit(CUstream stream, enum sim_op_kind kind, sim_run *run, const void *arguments,
                           size_t size) {
    CUresult result = sim_stream_resolve(&stream);

    if (result)
        return result;
    CUcontext ctx = stream->ctx;
    if ((result = (CUresult)atomic_load(&ctx->sticky)))
        return result;
    if (sim_capture_takes(stream))
        return sim_capture_add(stream, kind, run, arguments, size);
    if ((result = sim_capture_implicit(stream)))
        return result;
    pthread_mutex_lock(&ctx->order);
    if (stream == ctx->legacy) {
        for (CUstream other = ctx->streams; other && !result; other = other->next_in_context) {
            if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING))
                result = append_wait(stream, other);
        }
    } else if (ctx->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING)) {
        result = append_wait(stream, ctx->legacy);
    }
    if (!result)
        result = append(stream, kind, run, arguments, size);
    pthread_mutex_unlock(&ctx->order);
    return result;
}

/* The legacy stream is also behind what the blocking streams were given. */
static CUresult nothing(void *arguments) {
    (void)arguments;
    return CUDA_SUCCESS;
}

CUresult sim_stream_synchronize(CUstream stream) {
    CUresult result = sim_stream_resolve(&stream);

    if (!result && sim_capture_takes(stream))
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        result = sim_capture_forbid();
    if (!result && stream == stream->ctx->legacy)
        result = sim_stream_submit(stream, SIM_EVENT, nothing, NULL, 0);
    if (result)
        return result;
    pthread_mutex_lock(&stream->wait.lock);
    uint64_t last = stream->submitted;
    pthread_mutex_unlock(&stream->wait.lock);
    sim_stream_await(stream, last);
    return (CUresult)atomic_load(&stream->ctx->sticky);
}

CUresult sim_stream_query(CUstream stream) {
    CUresult result = sim_stream_resolve(&stream);

    if (!result && sim_capture_takes(stream))
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        result = (CUresult)atomic_load(&stream->ctx->sticky);
    if (result)
        return result;
    if (stream != stream->ctx->legacy)
        return pending(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_lock(&stream->ctx->order);
    for (CUstream other = stream->ctx->streams; other && !result; other = other->next_in_context) {
        if (!(other->flags & CU_STREAM_NON_BLOCKING) && pending(other))
            result = CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&stream->ctx->order);
    return result;
}
