/* NCCL between two processes: results, and how a wait for a peer ends. Starts itself for each rank:
 * nccl_ranks SCENARIO RANK ID. Runs with SIM_DEVICES=2. */
#include "check.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>

#define COUNT 100000

static const char *program;

struct rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *send, *receive;
};

static bool start(struct rank *me, const char *id_text) {
    ncclUniqueId id;
    float values[COUNT];

    for (size_t i = 0; i < sizeof id; i++) {
        unsigned byte;
        sscanf(id_text + 2 * i, "%2x", &byte);
        id.internal[i] = (char)byte;
    }
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(i + me->rank);
    CHECK(!cudaSetDevice(me->rank));
    CHECK(!cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
    CHECK(!cudaMalloc((void **)&me->send, sizeof values));
    CHECK(!cudaMalloc((void **)&me->receive, sizeof values));
    CHECK(!cudaMemcpy(me->send, values, sizeof values, cudaMemcpyHostToDevice));
    CHECK(!ncclCommInitRank(&me->comm, 2, id, me->rank));
    return true;
}

static bool async_error(struct rank *me, ncclResult_t expected) {
    ncclResult_t found = ncclSuccess;
    double until = seconds() + 5;

    while (!found && seconds() < until) {
        CHECK(!ncclCommGetAsyncError(me->comm, &found));
        usleep(2000);
    }
    CHECK(found == expected);
    CHECK(!cudaStreamSynchronize(me->stream)); /* the stream goes on */
    CHECK(!ncclCommAbort(me->comm));
    return true;
}

static bool rank_sum(struct rank *me) {
    float values[COUNT];

    CHECK(!ncclAllReduce(me->send, me->receive, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
    CHECK(!cudaMemcpyAsync(values, me->receive, sizeof values, cudaMemcpyDeviceToHost, me->stream));
    CHECK(!cudaStreamSynchronize(me->stream));
    CHECK(values[0] == 1 && values[COUNT - 1] == 2 * COUNT - 1);
    /* In place, and two of them in a group. */
    CHECK(!ncclGroupStart());
    CHECK(!ncclAllReduce(me->send, me->send, COUNT, ncclFloat, ncclMax, me->comm, me->stream));
    CHECK(!ncclAllReduce(me->receive, me->receive, COUNT, ncclFloat, ncclAvg, me->comm, me->stream));
    CHECK(!ncclGroupEnd());
    CHECK(!cudaMemcpyAsync(values, me->send, sizeof values, cudaMemcpyDeviceToHost, me->stream));
    CHECK(!cudaStreamSynchronize(me->stream));
    CHECK(values[0] == 1 && values[COUNT - 1] == COUNT);
    CHECK(!ncclCommDestroy(me->comm));
    return true;
}

static bool rank_mismatch(struct rank *me) {
    CHECK(!ncclAllReduce(me->send, me->receive, me->rank ? COUNT : COUNT / 2, ncclFloat, ncclSum, me->comm,
                         me->stream));
    return async_error(me, ncclInvalidUsage);
}

static bool rank_death(struct rank *me) {
    if (me->rank == 1) {
        usleep(100000);
        _exit(0);
    }
    CHECK(!ncclAllReduce(me->send, me->receive, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
    return async_error(me, ncclRemoteError);
}

/* The peer lives and does not come: nothing but an abort ends the wait. */
static bool rank_abort(struct rank *me) {
    if (me->rank == 1) {
        for (;;)
            pause(); /* until it is killed */
    }
    ncclResult_t found;
    CHECK(!ncclAllReduce(me->send, me->receive, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
    usleep(200000);
    CHECK(cudaStreamQuery(me->stream) == cudaErrorNotReady);
    CHECK(!ncclCommGetAsyncError(me->comm, &found) && !found);
    CHECK(!ncclCommAbort(me->comm));
    CHECK(!cudaStreamSynchronize(me->stream));
    return true;
}

static const struct {
    const char *name;
    bool (*run)(struct rank *);
} scenarios[] = {
    {"sum", rank_sum}, {"mismatch", rank_mismatch}, {"death", rank_death}, {"abort", rank_abort}};

static int run_rank(char **argv) {
    struct rank me = {.rank = atoi(argv[2])};

    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(scenarios[i].name, argv[1]) == 0 && start(&me, argv[3]) && scenarios[i].run(&me))
            return 0;
    }
    fprintf(stderr, "rank %d: %s\n", me.rank, check_why);
    return 1;
}

static bool scenario(const char *name) {
    char text[2 * sizeof(ncclUniqueId) + 1];
    ncclUniqueId id;
    pid_t pids[2];
    int status;

    CHECK(!ncclGetUniqueId(&id));
    for (size_t i = 0; i < sizeof id; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)id.internal[i]);
    for (int rank = 0; rank < 2; rank++) {
        char number[2] = {(char)('0' + rank), 0};
        if ((pids[rank] = fork()) == 0) {
            execl(program, program, name, number, text, (char *)NULL);
            _exit(2);
        }
    }
    CHECK(waitpid(pids[0], &status, 0) == pids[0] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (strcmp(name, "abort") == 0)
        kill(pids[1], SIGKILL);
    CHECK(waitpid(pids[1], &status, 0) == pids[1]);
    CHECK(strcmp(name, "abort") == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return true;
}

static bool sums_between_processes(void) {
    return scenario("sum");
}
static bool different_collectives(void) {
    return scenario("mismatch");
}
static bool death_of_a_peer(void) {
    return scenario("death");
}
static bool abort_of_a_wait(void) {
    return scenario("abort");
}

int main(int argc, char **argv) {
    int failed = 0;

    program = argv[0];
    if (argc == 4)
        return run_rank(argv);
    failed += RUN(sums_between_processes);
    failed += RUN(different_collectives);
    failed += RUN(death_of_a_peer);
    failed += RUN(abort_of_a_wait);
    return failed != 0;
}
