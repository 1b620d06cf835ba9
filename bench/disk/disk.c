/* How fast ranges of mapped files go to disk and come back through the disk queue, beside what O_DIRECT reaches.
 *
 *   build/bin/bench-disk FOLDER MIB ROUNDS
 *
 * Every round runs each contender once, on one file of so many MiB, and prints a line of JSON for each: its name, the
 * bytes it moved, seconds, the CPU seconds of all threads of the process. bench/disk/run.py
 * makes the result of it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "disk/queue.h"

#define MIB         (1ul << 20)
#define CHUNK_BYTES (32 * MIB)
#define AHEAD       2ul /* chunks that are brought ahead of the step */
#define DIRECT_MAX  4   /* threads */
#define PATIENCE    60  /* seconds */

static const char *folder;
static size_t bytes;
static int file, direct_file;
static char *alias;
static float *parameters, *gradients; /* of a chunk's half */
static char *direct_buffers[DIRECT_MAX];
static disk_queue *queue;
static int turn;

static _Noreturn void give_up(const char *what) {
    fprintf(stderr, "bench-disk: %s: %s; %s\n", what, strerror(errno), error_text());
    exit(1);
}

/* --- samples ---------------------------------------------------------------------------------------------------- */

typedef struct sample {
    double begin, cpu_begin, end, cpu_end;
} sample;

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static sample sample_begin(void) {
    return (sample){.begin = clock_seconds(), .cpu_begin = cpu_seconds()};
}

static void sample_end(sample *s) {
    s->end = clock_seconds();
    s->cpu_end = cpu_seconds();
}

static void sample_print(const sample *s, const char *name, size_t moved, double stall_seconds) {
    printf("{\"name\":\"%s\",\"round\":%d,\"bytes\":%zu,\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"stall_"
           "seconds\":%.6f}\n",
           name, turn, moved, s->end - s->begin, s->cpu_end - s->cpu_begin, stall_seconds);
    fflush(stdout);
}

/* --- O_DIRECT --------------------------------------------------------------------------------------------------- */

typedef struct direct_part {
    size_t begin, end, request;
    bool write;
    char *buffer;
    pthread_t thread;
} direct_part;

static void *direct_move(void *context) {
    direct_part *part = context;
    for (size_t at = part->begin; at < part->end; at += part->request) {
        ssize_t moved = part->write ? pwrite(direct_file, part->buffer, part->request, (off_t)at)
                                    : pread(direct_file, part->buffer, part->request, (off_t)at);
        if (moved != (ssize_t)part->request)
            give_up("O_DIRECT");
    }
    return NULL;
}

/* Each thread has a part of the file; the first `writers` write theirs, the others read. */
static void direct(const char *name, size_t request, int threads, int writers) {
    direct_part parts[DIRECT_MAX];
    sample s = sample_begin();
    for (int i = 0; i < threads; i++) {
        size_t share = bytes / (size_t)threads;
        parts[i] = (direct_part){.begin = (size_t)i * share,
                                 .end = (size_t)(i + 1) * share,
                                 .request = request,
                                 .write = i < writers,
                                 .buffer = direct_buffers[i]};
        if (pthread_create(&parts[i].thread, NULL, direct_move, &parts[i]))
            give_up("thread");
    }
    for (int i = 0; i < threads; i++)
        pthread_join(parts[i].thread, NULL);
    sample_end(&s);
    sample_print(&s, name, bytes, 0);
}

/* --- the queue -------------------------------------------------------------------------------------------------- */

static disk_operation operation(disk_action action, size_t chunk, disk_map map) {
    return (disk_operation){.action = action,
                            .fd = file,
                            .offset = chunk * CHUNK_BYTES,
                            .bytes = CHUNK_BYTES,
                            .alias = alias + chunk * CHUNK_BYTES,
                            .map = map};
}

static void submit(disk_queue *q, disk_operation *o) {
    if (disk_queue_submit(q, o) != CASTOR_OK)
        give_up("submit");
}

static void wait_for(disk_queue *q, disk_operation *o) {
    if (disk_queue_wait(q, o, PATIENCE) != CASTOR_OK)
        give_up("wait");
}

static void move_all(const char *name, disk_queue *q, disk_action action, disk_map map) {
    size_t chunks = bytes / CHUNK_BYTES;
    disk_operation *operations = calloc(chunks, sizeof *operations);
    sample s = sample_begin();
    for (size_t i = 0; i < chunks; i++) {
        operations[i] = operation(action, i, map);
        submit(q, &operations[i]);
    }
    uint64_t left = 0;
    for (size_t i = 0; i < chunks; i++) {
        wait_for(q, &operations[i]);
        left += operations[i].left_bytes;
    }
    sample_end(&s);
    if (name)
        sample_print(&s, name, bytes, 0);
    if (left)
        fprintf(stderr, "bench-disk: %llu bytes stayed in memory\n", (unsigned long long)left);
    free(operations);
}

/* Also touches as much free memory as a contender takes: a virtual machine that gives free memory back to its host, as some
 * do after two seconds, pays for each page that it takes again, several times what reading it from disk costs. */
static void evict_all(void) {
    move_all(NULL, queue, DISK_EVICT, DISK_MAP_NONE);
    size_t length = bytes + bytes / 4;
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        give_up("memory");
    madvise(memory, length, MADV_HUGEPAGE);
    for (size_t at = 0; at < length; at += 4096)
        memory[at] = 1;
    munmap(memory, length);
}

/* --- a step, whose memory traffic is Adam's ------------------------------------------------------------------------ */

static void step_chunk(size_t chunk) {
    size_t count = CHUNK_BYTES / 2 / sizeof(float);
    float *restrict mean = (float *)(alias + chunk * CHUNK_BYTES), *restrict square = mean + count;
    float *restrict value = parameters;
    const float *restrict gradient = gradients;
    for (size_t i = 0; i < count; i++) {
        mean[i] = 0.9f * mean[i] + 0.1f * gradient[i];
        square[i] = 0.999f * square[i] + 0.001f * gradient[i] * gradient[i];
        value[i] -= 1e-3f * mean[i] / (square[i] + 1e-4f);
    }
}

/* `q` NULL: nothing is brought ahead and nothing evicted, page faults load what is not there. */
static void step_all(const char *name, disk_queue *q, disk_map map) {
    size_t chunks = bytes / CHUNK_BYTES;
    disk_operation *loads = calloc(chunks, sizeof *loads), *evicts = calloc(chunks, sizeof *evicts);
    double stall = 0;
    sample s = sample_begin();
    for (size_t i = 0; q && i < chunks && i < AHEAD; i++) {
        loads[i] = operation(DISK_LOAD, i, map);
        submit(q, &loads[i]);
    }
    for (size_t i = 0; i < chunks; i++) {
        if (q) {
            double since = clock_seconds();
            wait_for(q, &loads[i]);
            stall += clock_seconds() - since;
            if (i + AHEAD < chunks) {
                loads[i + AHEAD] = operation(DISK_LOAD, i + AHEAD, map);
                submit(q, &loads[i + AHEAD]);
            }
        }
        step_chunk(i);
        if (q) {
            evicts[i] = operation(DISK_EVICT, i, DISK_MAP_NONE);
            submit(q, &evicts[i]);
            double since = clock_seconds();
            if (i >= AHEAD) /* so memory is bounded */
                wait_for(q, &evicts[i - AHEAD]);
            stall += clock_seconds() - since;
        }
    }
    double since = clock_seconds();
    for (size_t i = chunks - AHEAD; q && i < chunks; i++)
        wait_for(q, &evicts[i]);
    stall += clock_seconds() - since;
    sample_end(&s);
    sample_print(&s, name, q ? 2 * bytes : bytes, q ? stall : 0);
    free(loads);
    free(evicts);
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static int open_file(size_t length) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || (errno = posix_fallocate(fd, 0, (off_t)length)))
        give_up(folder);
    return fd;
}

/* Extents that were never written are converted when their first bytes are on disk. */
static void evict_fresh(void) {
    int old = file;
    char *old_alias = alias;
    file = open_file(bytes);
    alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (alias == MAP_FAILED)
        give_up("mmap");
    memset(alias, turn + 1, bytes);
    move_all("threads evict fresh", queue, DISK_EVICT, DISK_MAP_NONE);
    munmap(alias, bytes);
    close(file);
    file = old;
    alias = old_alias;
}

static void *plain_memory(size_t length) {
    void *memory =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        give_up("memory");
    return memory;
}

static void run_round(void) {
    evict_all();
    direct("direct write 1x1", MIB, 1, 1);
    direct("direct write 4x4", 4 * MIB, 4, 4);
    direct("direct write 2x16", 16 * MIB, 2, 2);
    memset(alias, turn + 1, bytes);
    move_all("threads evict", queue, DISK_EVICT, DISK_MAP_NONE);
    evict_all();
    move_all("threads load", queue, DISK_LOAD, DISK_MAP_NONE);
    evict_all();
    move_all("threads load mapped", queue, DISK_LOAD, DISK_MAP_READ);
    evict_all();
    direct("direct read 1x1", MIB, 1, 0);
    direct("direct read 4x4", 4 * MIB, 4, 0);
    direct("direct read 2x16", 16 * MIB, 2, 0);
    direct("direct both 4x4", 4 * MIB, 4, 2);
    evict_fresh();
    evict_all();
    step_all("threads stream", queue, DISK_MAP_NONE);
    evict_all();
    step_all("threads stream mapped", queue, DISK_MAP_WRITE);
    evict_all();
    step_all("step by page faults", NULL, DISK_MAP_NONE);
    step_all("step in memory", NULL, DISK_MAP_NONE);
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: bench-disk FOLDER MIB ROUNDS\n");
        return 2;
    }
    folder = arguments[1];
    bytes = strtoul(arguments[2], NULL, 10) * MIB / CHUNK_BYTES * CHUNK_BYTES;
    int rounds = atoi(arguments[3]);
    if (bytes < 2 * AHEAD * CHUNK_BYTES || rounds < 1) {
        fprintf(stderr, "bench-disk: at least %lu MiB and a round\n", 2 * AHEAD * CHUNK_BYTES / MIB);
        return 2;
    }
    file = open_file(bytes);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    direct_file = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (direct_file < 0 || alias == MAP_FAILED)
        give_up("file");
    for (int i = 0; i < DIRECT_MAX; i++)
        direct_buffers[i] = plain_memory(16 * MIB);
    parameters = plain_memory(CHUNK_BYTES / 2);
    gradients = plain_memory(CHUNK_BYTES / 2);
    if (disk_queue_start(&(disk_settings){0}, &queue) != CASTOR_OK)
        give_up("queue");
    memset(alias, 0, bytes);
    for (turn = 0; turn < rounds; turn++)
        run_round();
    if (disk_queue_stop(queue, PATIENCE) != CASTOR_OK)
        give_up("stop");
    return 0;
}
