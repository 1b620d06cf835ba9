/* Groups: calls are gathered per thread and submitted when the outermost group ends. */
#include "nccl_sim.h"

#include <stdlib.h>
#include <string.h>

#define JOBS_MAX 256

struct job {
    ncclResult_t (*run)(void *);
    void *argument;
    ncclResult_t result;
    int device;
    pthread_t thread;
};

static _Thread_local struct {
    int depth;
    struct task *tasks;
    size_t count, capacity;
    struct job jobs[JOBS_MAX];
    size_t job_count;
    ncclResult_t error;
} group;

struct
    batch { /* what one operation of a stream does: a collective, or sends and receives that run side by side */
    struct ncclComm *comm;
    uint64_t turn;
    bool repeated; /* in a graph: it runs again, when its turn has no number */
    size_t count;
    struct task tasks[];
};

static void begin_turn(const struct batch *batch) {
    struct ncclComm *comm = batch->comm;

    pthread_mutex_lock(&comm->lock);
    while (!batch->repeated && comm->turn != batch->turn)
        pthread_cond_wait(&comm->turned, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void end_turn(const struct batch *batch) {
    pthread_mutex_lock(&batch->comm->lock);
    batch->comm->turn += !batch->repeated;
    pthread_cond_broadcast(&batch->comm->turned);
    pthread_mutex_unlock(&batch->comm->lock);
}

static CUresult run_batch(void *arguments) {
    struct batch *batch = *(struct batch **)arguments;
    int result = 0;

    begin_turn(batch);
    if (!comm_lost(batch->comm)) {
        if (batch->tasks->kind == TASK_SEND || batch->tasks->kind == TASK_RECEIVE)
            result = tasks_exchange(batch->comm, batch->tasks, batch->count);
        else
            result = task_run(batch->tasks);
    }
    end_turn(batch);
    if (!batch->repeated)
        free(batch);
    return (CUresult)result;
}

static ncclResult_t submit(const struct task *tasks, size_t count) {
    struct batch *batch = malloc(sizeof *batch + count * sizeof *tasks);
    cudaStream_t stream = tasks->stream;

    if (!batch)
        return nccl_error(ncclSystemError, "out of memory");
    batch->comm = tasks->comm;
    batch->count = count;
    memcpy(batch->tasks, tasks, count * sizeof *tasks);
    pthread_mutex_lock(&batch->comm->lock);
    batch->repeated = sim_capture_takes(stream);
    batch->turn = batch->comm->submitted;
    batch->comm->submitted += !batch->repeated;
    CUresult result = sim_stream_submit(stream, SIM_NCCL, run_batch, &batch, sizeof(struct batch *));
    if (result && !batch->repeated)
        batch->comm->submitted--;
    pthread_mutex_unlock(&batch->comm->lock);
    if (!result)
        return ncclSuccess;
    free(batch);
    return nccl_error(ncclUnhandledCudaError, "the stream refused the operation: error %d", (int)result);
}

static bool is_transfer(const struct task *task) {
    return task->kind == TASK_SEND || task->kind == TASK_RECEIVE;
}

/* Collectives in their order, then the transfers, gathered by communicator and stream. */
static ncclResult_t submit_all(struct task *tasks, size_t count) {
    ncclResult_t result = ncclSuccess;
    struct task *transfers = malloc((count + 1) * sizeof *tasks);

    if (!transfers)
        return nccl_error(ncclSystemError, "out of memory");
    for (size_t i = 0; i < count && !result; i++) {
        if (!is_transfer(&tasks[i]))
            result = submit(&tasks[i], 1);
    }
    for (size_t first = 0; first < count && !result; first++) {
        size_t gathered = 0;
        if (!is_transfer(&tasks[first]) || !tasks[first].comm)
            continue;
        struct ncclComm *comm = tasks[first].comm;
        cudaStream_t stream = tasks[first].stream;
        for (size_t i = first; i < count; i++) {
            if (is_transfer(&tasks[i]) && tasks[i].comm == comm && tasks[i].stream == stream) {
                transfers[gathered++] = tasks[i];
                tasks[i].comm = NULL;
            }
        }
        result = submit(transfers, gathered);
    }
    free(transfers);
    return result;
}

ncclResult_t group_add(const struct task *task) {
    struct task one = *task;

    if (!group.depth)
        return submit_all(&one, 1);
    if (group.count == group.capacity) {
        size_t capacity = group.capacity ? group.capacity * 2 : 64;
        struct task *tasks = realloc(group.tasks, capacity * sizeof *tasks);
        if (!tasks)
            return group.error = nccl_error(ncclSystemError, "out of memory");
        group.tasks = tasks;
        group.capacity = capacity;
    }
    group.tasks[group.count++] = *task;
    return ncclSuccess;
}

static void *job_thread(void *argument) {
    struct job *job = argument;

    sim_device_set(job->device);
    job->result = job->run(job->argument);
    return NULL;
}

ncclResult_t group_job(ncclResult_t (*run)(void *), void *argument) {
    if (!group.depth)
        return run(argument);
    if (group.job_count == JOBS_MAX)
        return nccl_error(ncclInvalidUsage, "more than %d communicators in a group", JOBS_MAX);
    group.jobs[group.job_count++] = (struct job){.run = run, .argument = argument, .device = sim_device()};
    return ncclSuccess;
}

/* The jobs wait for each other: each gets a thread. */
static ncclResult_t run_jobs(void) {
    ncclResult_t result = ncclSuccess;
    size_t started = 0;

    for (; started < group.job_count; started++) {
        struct job *job = &group.jobs[started];
        if (pthread_create(&job->thread, NULL, job_thread, job))
            result = nccl_error(ncclSystemError, "no thread for a communicator");
        if (result)
            break;
    }
    for (size_t i = 0; i < started; i++) {
        pthread_join(group.jobs[i].thread, NULL);
        if (group.jobs[i].result)
            result = group.jobs[i].result;
    }
    group.job_count = 0;
    return result;
}

BOTH(GroupStart, (void)) {
    ENTER();
    group.depth++;
    return ncclSuccess;
}

BOTH(GroupEnd, (void)) {
    ENTER();
    if (!group.depth)
        return nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth)
        return ncclSuccess;
    ncclResult_t result = group.error;
    group.error = ncclSuccess;
    if (!result)
        result = run_jobs();
    if (!result)
        result = submit_all(group.tasks, group.count);
    group.count = 0;
    return result;
}

BOTH(GroupSimulateEnd, (ncclSimInfo_t * simInfo)) {
    ENTER();
    group.depth = 0;
    group.count = 0;
    if (simInfo)
        simInfo->estimatedTime = 0;
    return ncclSuccess;
}
