/* Makes a log directory as a job leaves it, of any size, with the library's own recorder: for tests and measurements of
 * `castor report`. What is recorded is invented, and the same for the same arguments but for the host and the time.
 *
 *   make-trace DIR [--ranks N] [--records N] [--groups] [--devices] [--budget] [--pause] [--pipeline] [--die] [--slower PERCENT] [--plugin NAME] [--name TEXT]
 *
 * --records  of each rank, at least so many; the last step is finished
 * --groups   ranks also meet in pairs, and every pair is its ranks' second group
 * --devices  model data is in homes on a device each, and the third step's allocations move some of it to the host
 * --budget   the node has a budget of 800 MiB, and states are on disk between the steps
 * --pause    nothing happens for ten seconds after each 8th step
 * --pipeline each step is a batch of 8 microbatches on as many stages as there are ranks, all forwards first
 * --die      the last rank is killed instead of leaving in order
 * --slower   every time is longer by so much
 * --name     the name of one intercepted function (a test of what readers do with it) */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "device/copies.h"
#include "trace/counters.h"
#include "trace/pass.h"
#include "trace/phases.h"
#include "trace/trace.h"

#define MIB   UINT64_C(1048576)
#define US    UINT64_C(1000)
#define RANKS 512

enum { CALL_LAUNCH = 1, CALL_COPY, CALL_ALLOCATE, CALL_NAMED, CALL_ALLREDUCE, CALL_ALLGATHER, CALL_BARRIER };

typedef struct job {
    const char *directory, *plugin, *name;
    unsigned ranks;
    uint64_t records, percent, begin_ns;
    bool groups, devices, budget, pause, pipeline, die;
} job;

struct rank_state;

typedef struct worker {
    pthread_t thread;
    sem_t go, done;
    const char *name;
    void (*body)(struct rank_state *rank);
    struct rank_state *rank;
    bool end;
} worker;

typedef struct rank_state {
    const job *job;
    unsigned rank;
    uint64_t random, now_ns, records;
    uint64_t step_begin_ns, backward_begin_ns, backward_end_ns;
    uint64_t step;
    worker collectives, memory;
} rank_state;

static uint64_t draw(rank_state *rank, uint64_t below) {
    rank->random = rank->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (rank->random >> 33) % below;
}

static uint64_t longer(const rank_state *rank, uint64_t ns) {
    return ns * rank->job->percent / 100;
}

static void record(rank_state *rank, trace_record_kind kind, uint32_t id, uint64_t begin_ns, uint64_t ns,
                   uint64_t bytes, uint64_t a, uint64_t b) {
    trace_record_write(kind, id, begin_ns, begin_ns + ns, bytes, a, b, bytes / 4);
    rank->records++;
}

static void call(rank_state *rank, uint32_t id, uint64_t ns, uint64_t bytes) {
    record(rank, TRACE_CALL, id, rank->now_ns, longer(rank, ns), bytes, 0, 0);
    rank->now_ns += longer(rank, ns) + US;
}

/* ---- three threads record, as in a job ---- */

static void record_collectives(rank_state *rank) {
    uint64_t length_ns = rank->backward_end_ns - rank->backward_begin_ns;
    for (uint64_t bucket = 0; bucket < 4; bucket++) {
        /* Every rank ends when the last one has begun and the data has moved. */
        uint64_t ready_ns = rank->backward_begin_ns + length_ns * (bucket + 1) / 5;
        uint64_t late_ns = 40 * US * rank->rank, last_ns = 40 * US * (rank->job->ranks - 1);
        uint64_t bytes = bucket == 0 ? 2 * MIB : 25 * MIB;
        record(rank, TRACE_COLLECTIVE, CALL_ALLREDUCE, ready_ns + late_ns,
               last_ns - late_ns + longer(rank, bytes / 4), bytes, 6, 0);
    }
    uint64_t after_ns = rank->backward_end_ns + 3000 * US;
    record(rank, TRACE_COLLECTIVE, CALL_ALLGATHER, after_ns, 80 * US, 4096, 6, 0);
    if (rank->job->groups)
        record(rank, TRACE_COLLECTIVE, CALL_ALLREDUCE, after_ns + 200 * US + 5000 * US * (rank->rank / 2),
               900 * US, MIB, 6, 1);
    if (rank->step % 16 == 0)
        record(rank, TRACE_COLLECTIVE, CALL_BARRIER, after_ns + 60000 * US, 50 * US, 0, 0, 0);
}

static void sample(rank_state *rank, trace_gauge gauge, uint64_t at_ns, uint64_t bytes) {
    trace_gauge_set(gauge, bytes);
    record(rank, TRACE_MEMORY, gauge, at_ns, 0, bytes, 0, 0);
}

static void record_memory(rank_state *rank) {
    uint64_t scale = MIB / rank->job->ranks, optim = rank->step == 0 ? 0 : 480;
    sample(rank, GAUGE_PARAM_BYTES, rank->step_begin_ns, 240 * scale);
    sample(rank, GAUGE_OPTIM_BYTES, rank->step_begin_ns, optim * scale);
    sample(rank, GAUGE_OTHER_BYTES, rank->step_begin_ns, 20 * MIB);
    sample(rank, GAUGE_GRAD_BYTES, rank->backward_end_ns, 240 * scale);
    sample(rank, GAUGE_OTHER_BYTES, rank->backward_begin_ns, (310 + 10 * draw(rank, 10)) * MIB);
    sample(rank, GAUGE_OTHER_BYTES, rank->backward_end_ns, 30 * MIB);
    sample(rank, GAUGE_PSS_BYTES, rank->backward_end_ns, (900 + draw(rank, 40)) * MIB);
}

/* Of 960 MiB of model data the states are on disk, but for a quarter at the end of a backward pass. */
static void record_budget(rank_state *rank) {
    uint64_t scale = MIB / rank->job->ranks;
    record_memory(rank);
    sample(rank, GAUGE_DISK_OPTIM_BYTES, rank->step_begin_ns, (rank->step == 0 ? 0 : 480) * scale);
    sample(rank, GAUGE_IN_MEMORY_BYTES, rank->step_begin_ns, 240 * scale + 20 * MIB);
    sample(rank, GAUGE_DISK_OPTIM_BYTES, rank->backward_end_ns, (rank->step == 0 ? 0 : 360) * scale);
    sample(rank, GAUGE_IN_MEMORY_BYTES, rank->backward_end_ns,
           (rank->step == 0 ? 480 : 600) * scale + 30 * MIB);
    trace_gauge_set(GAUGE_MEMORY_BUDGET_BYTES, 800 * MIB);
}

/* 960 MiB of model data in homes; half of the states, and then the gradients, leave the device. */
static void record_devices(rank_state *rank) {
    uint64_t at_ns = rank->step_begin_ns, step = rank->step;
    uint64_t grad = step < 2 ? 240 : 0, optim = step == 0 ? 0 : step < 2 ? 480 : 240;
    sample(rank, GAUGE_PARAM_BYTES, at_ns, 240 * MIB);
    sample(rank, GAUGE_GRAD_BYTES, at_ns, 240 * MIB);
    sample(rank, GAUGE_OPTIM_BYTES, at_ns, step == 0 ? 0 : 480 * MIB);
    sample(rank, GAUGE_DEVICE_PARAM_BYTES, at_ns, step < 3 ? 240 * MIB : 180 * MIB);
    sample(rank, GAUGE_DEVICE_GRAD_BYTES, at_ns, grad * MIB);
    sample(rank, GAUGE_DEVICE_OPTIM_BYTES, at_ns, optim * MIB);
    sample(rank, GAUGE_DEVICE_SLOTS_BYTES, at_ns, step < 3 ? 0 : 48 * MIB);
    sample(rank, GAUGE_DEVICE_OTHER_BYTES, at_ns, 60 * MIB);
    sample(rank, GAUGE_DEVICE_OTHER_BYTES, rank->backward_begin_ns, (400 + 10 * draw(rank, 10)) * MIB);
    sample(rank, GAUGE_DEVICE_OTHER_BYTES, rank->backward_end_ns, 80 * MIB);
    sample(rank, GAUGE_LINK_TO_DEVICE_BYTES, at_ns, step < 3 ? 0 : (step - 2) * 540 * MIB);
    sample(rank, GAUGE_LINK_TO_HOST_BYTES, at_ns, step < 2 ? 0 : 480 * MIB + (step - 2) * 300 * MIB);
    sample(rank, GAUGE_OTHER_BYTES, at_ns, 20 * MIB);
    for (uint32_t kind = COPY_SLOT; kind < COPY_KIND_COUNT; kind++)
        for (uint64_t i = 0; i < 4; i++) {
            uint64_t copy_ns = at_ns + i * 500 * US;
            record(rank, TRACE_COPY, kind, copy_ns, 400 * US, 5 * MIB, 0, copy_ns - 100 * US);
        }
    sample(rank, GAUGE_PSS_BYTES, rank->backward_end_ns, (900 + draw(rank, 40)) * MIB);
}

/* Each pass takes 900 us of a millisecond. */
static void record_pipeline(rank_state *rank) {
    uint32_t stages = rank->job->ranks, microbatches = 8;
    trace_pass pass = {.microbatches = microbatches,
                       .virtual_stage = rank->rank,
                       .virtual_stages = stages,
                       .stages = stages,
                       .batch = (uint32_t)rank->step};
    for (uint32_t i = 0; i < 2 * microbatches; i++) {
        pass.id = i < microbatches ? TRACE_PASS_FORWARD : TRACE_PASS_BACKWARD;
        pass.microbatch = i % microbatches;
        uint64_t turn = pass.id == TRACE_PASS_FORWARD ? i + rank->rank : i + 2 * (stages - 1) - rank->rank;
        uint64_t begin_ns = rank->step_begin_ns + turn * 1000 * US, a, b, c;
        trace_pass_pack(&pass, &a, &b, &c);
        trace_record_write(TRACE_PASS, pass.id, begin_ns, begin_ns + 900 * US, 0, a, b, c);
        rank->records++;
    }
}

static void *worker_main(void *context) {
    worker *worker = context;
    pthread_setname_np(pthread_self(), worker->name);
    while (sem_wait(&worker->go) == 0 && !worker->end) {
        worker->body(worker->rank);
        sem_post(&worker->done);
    }
    return NULL;
}

static void worker_start(worker *worker, rank_state *rank, const char *name, void (*body)(rank_state *)) {
    *worker = (struct worker){.name = name, .body = body, .rank = rank};
    sem_init(&worker->go, 0, 0);
    sem_init(&worker->done, 0, 0);
    if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0)
        _exit(1);
}

static void worker_run(worker *worker) {
    sem_post(&worker->go);
    sem_wait(&worker->done);
}

static void worker_end(worker *worker) {
    worker->end = true;
    sem_post(&worker->go);
    pthread_join(worker->thread, NULL);
}

static void record_step(rank_state *rank, uint64_t calls) {
    rank->step_begin_ns = rank->now_ns;
    for (uint64_t i = 0; i < calls; i++) {
        if (i == calls / 3)
            rank->backward_begin_ns = rank->now_ns;
        uint64_t kind = draw(rank, 100);
        if (kind < 80)
            call(rank, CALL_LAUNCH, 4 * US + draw(rank, 3000), 0);
        else if (kind < 90)
            call(rank, CALL_ALLOCATE, 900 + draw(rank, 500), 4096 << draw(rank, 12));
        else if (kind < 98)
            call(rank, CALL_COPY, 20 * US + draw(rank, 400 * US), 1 << draw(rank, 22));
        else
            call(rank, CALL_NAMED, 7 * US, 0);
    }
    rank->now_ns += longer(rank, 12000 * US);
    rank->backward_end_ns = rank->now_ns;
    record(rank, TRACE_BACKWARD, 0, rank->backward_begin_ns, rank->backward_end_ns - rank->backward_begin_ns,
           0, 1, 0);
    worker_run(&rank->collectives);
    rank->now_ns += 30000 * US;
    record(rank, TRACE_WAIT, 2, rank->now_ns, longer(rank, (400 + draw(rank, 900)) * US), 0, 0, 0);
    rank->now_ns += longer(rank, 1500 * US);
    record(rank, TRACE_STEP, 0, rank->now_ns, longer(rank, 9000 * US), 0, 0, 0);
    rank->now_ns += longer(rank, 9500 * US);
    worker_run(&rank->memory);
    record(rank, TRACE_CHUNK, rank->step % 2, rank->now_ns, 300 * US, 32 * MIB, 1, rank->step % 8);
    rank->now_ns += 350 * US;
    if (rank->job->pipeline)
        record_pipeline(rank);
    rank->step++;
}

static void name_everything(const job *job) {
    trace_plugin_set(job->plugin);
    trace_name_set(TRACE_CALL, CALL_LAUNCH, "cudaLaunchKernelExC");
    trace_name_set(TRACE_CALL, CALL_COPY, "cudaMemcpyAsync");
    trace_name_set(TRACE_COPY, COPY_SLOT, "copy into a slot");
    trace_name_set(TRACE_COPY, COPY_PART_IN, "part of a step, to the device");
    trace_name_set(TRACE_COPY, COPY_PART_OUT, "part of a step, to the host");
    trace_name_set(TRACE_CALL, CALL_ALLOCATE, "posix_memalign");
    trace_name_set(TRACE_CALL, CALL_NAMED, job->name);
    trace_name_set(TRACE_CALL, CALL_ALLREDUCE, "c10d::ProcessGroupGloo::allreduce");
    trace_name_set(TRACE_CALL, CALL_ALLGATHER, "c10d::ProcessGroupGloo::_allgather_base");
    trace_name_set(TRACE_CALL, CALL_BARRIER, "c10d::ProcessGroupGloo::barrier");
    trace_name_set(TRACE_COLLECTIVE, CALL_ALLREDUCE, "allreduce");
    trace_name_set(TRACE_COLLECTIVE, CALL_ALLGATHER, "_allgather_base");
    trace_name_set(TRACE_COLLECTIVE, CALL_BARRIER, "barrier");
    trace_name_set(TRACE_WAIT, 2, "the step of the others");
    trace_name_set(TRACE_CHUNK, 0, "to host");
    trace_name_set(TRACE_CHUNK, 1, "to device");
}

static void set_gauges(const rank_state *rank) {
    trace_gauge_set(GAUGE_STEPS, rank->step);
    trace_gauge_set(GAUGE_MICRO_STEPS, rank->step);
    trace_gauge_set(GAUGE_STORE_PARAM_BYTES, 240 * MIB);
    trace_gauge_set(GAUGE_STORE_GRAD_BYTES, 240 * MIB);
    trace_gauge_set(GAUGE_STORE_OPTIM_BYTES, 480 * MIB);
    trace_gauge_set(GAUGE_PRIVATE_BYTES, 3 * MIB);
    trace_gauge_set(GAUGE_MODEL_NUMEL, 60 * MIB);
    trace_gauge_set(GAUGE_CHUNK_SIZE, 32 * MIB);
    trace_gauge_set(GAUGE_CHUNK_COUNT, 30);
    trace_gauge_set(GAUGE_CHUNK_MOVES, rank->step);
    trace_gauge_set(GAUGE_CHUNK_BYTES_MOVED, rank->step * 32 * MIB);
    trace_gauge_set(GAUGE_WAIT_NS, rank->step * 850 * US);
    trace_gauge_set(GAUGE_HOOKS_FOUND, 61);
    trace_gauge_set(GAUGE_HOOKS_MISSED, 2);
}

/* 3 s of import, 0.1 s a step of backward, and so on; evaluation is what the rank was in last, and still is. */
static void set_phases(const rank_state *rank) {
    static const uint64_t once_ms[TRACE_PHASE_COUNT] =
        {[TRACE_PHASE_IMPORT] = 3000, [TRACE_PHASE_START_UP] = 500},
                          step_ms[TRACE_PHASE_COUNT] = {[TRACE_PHASE_DATA] = 5,
                                                        [TRACE_PHASE_FORWARD] = 60,
                                                        [TRACE_PHASE_BACKWARD] = 100,
                                                        [TRACE_PHASE_OPTIMIZER] = 9,
                                                        [TRACE_PHASE_REST] = 12};
    trace_counters *counters = counters_get();
    for (int phase = 0; phase < TRACE_PHASE_COUNT && counters; phase++)
        counters->counters[trace_slot(TRACE_PHASE, phase)].ns =
            (once_ms[phase] + step_ms[phase] * rank->step) * 1000 * US;
    trace_gauge_set(GAUGE_PHASE, TRACE_PHASE_EVALUATION);
    trace_gauge_set(GAUGE_PHASE_BEGAN_NS, rank->now_ns - 260000 * US);
}

static void set_device_gauges(const rank_state *rank) {
    uint64_t steps = rank->step > 3 ? rank->step - 3 : 0;
    trace_gauge_set(GAUGE_DEVICE_BUDGET_BYTES, 1024 * MIB);
    trace_gauge_set(GAUGE_DEVICE_OUTSIDE_BYTES, 12 * MIB);
    trace_gauge_set(GAUGE_FLIPS_TO_HOST, 15);
    trace_gauge_set(GAUGE_FLIPPED_TO_HOST_BYTES, 480 * MIB);
    trace_gauge_set(GAUGE_FLIP_NS, 61000 * US);
    trace_gauge_set(GAUGE_RESCUES, 2);
    trace_gauge_set(GAUGE_OVERFLOW_BYTES, 60 * MIB);
    trace_gauge_set(GAUGE_OVERFLOW_BYTES, 40 * MIB);
    trace_gauge_set(GAUGE_OVERFLOW_SEGMENTS, 2);
    trace_gauge_set(GAUGE_SLOT_USES, steps * 24);
    trace_gauge_set(GAUGE_SLOT_HITS, steps * 23);
    trace_gauge_set(GAUGE_SLOT_PREFETCHED, steps * 12);
    trace_gauge_set(GAUGE_SLOT_IN_TIME, steps * 21);
    trace_gauge_set(GAUGE_SLOT_HOME_READS, steps);
    trace_gauge_set(GAUGE_SLOT_COPIES, steps * 12);
    trace_gauge_set(GAUGE_SLOT_COPIED_BYTES, steps * 60 * MIB);
    trace_gauge_set(GAUGE_SLOT_STALE, steps * 12);
}

static int run_rank(const job *job, unsigned number) {
    trace_start(job->directory, UINT64_C(1) << 40, (int)number);
    name_everything(job);
    rank_state rank = {.job = job,
                       .rank = number, /* Ranks draw the same: they go through their steps together. */
                       .random = 1,
                       .now_ns = job->begin_ns};
    uint64_t calls = job->records < 20000 ? 60 : 600;
    worker_start(&rank.collectives, &rank, "pt_gloo_runloop", record_collectives);
    worker_start(&rank.memory, &rank, "castor-sample",
                 job->devices  ? record_devices
                 : job->budget ? record_budget
                               : record_memory);
    while (rank.records < job->records) {
        record_step(&rank, calls);
        if (job->pause && rank.step % 8 == 0)
            rank.now_ns += UINT64_C(10000000000);
    }
    set_gauges(&rank);
    set_phases(&rank);
    if (job->devices)
        set_device_gauges(&rank);
    if (job->die && number + 1 == job->ranks)
        kill(getpid(), SIGKILL);
    worker_end(&rank.collectives);
    worker_end(&rank.memory);
    trace_flush();
    return 0;
}

static bool parse(int argc, char **argv, job *job) {
    *job =
        (struct job){.plugin = "gemini", .name = "cublasGemmEx", .ranks = 2, .records = 5000, .percent = 100};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool took = true;
        if (strcmp(argv[i], "--ranks") == 0)
            job->ranks = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--records") == 0)
            job->records = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--slower") == 0)
            job->percent = 100 + strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--plugin") == 0)
            job->plugin = value;
        else if (strcmp(argv[i], "--name") == 0)
            job->name = value;
        else
            took = false;
        i += took;
        if (took)
            continue;
        job->groups |= strcmp(argv[i], "--groups") == 0;
        job->devices |= strcmp(argv[i], "--devices") == 0;
        job->budget |= strcmp(argv[i], "--budget") == 0;
        job->pause |= strcmp(argv[i], "--pause") == 0;
        job->pipeline |= strcmp(argv[i], "--pipeline") == 0;
        job->die |= strcmp(argv[i], "--die") == 0;
        if (argv[i][0] != '-')
            job->directory = argv[i];
    }
    return job->directory != NULL && job->ranks > 0 && job->ranks <= RANKS;
}

int main(int argc, char **argv) {
    job job;
    if (!parse(argc, argv, &job)) {
        fputs("usage: make-trace DIR [--ranks N] [--records N] [--groups] [--devices] [--budget] [--pause] "
              "[--pipeline] [--die] "
              "[--slower PERCENT] "
              "[--plugin NAME] "
              "[--name TEXT]\n",
              stderr);
        return 2;
    }
    if (mkdir(job.directory, 0700) != 0 && errno != EEXIST) {
        perror(job.directory);
        return 1;
    }
    /* Records are older than their files; a job's are not. Times therefore begin a little after now. */
    job.begin_ns = trace_now_ns() + 50000 * US;
    for (unsigned rank = 0; rank < job.ranks; rank++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0)
            _exit(run_rank(&job, rank));
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return failed > job.die;
}
