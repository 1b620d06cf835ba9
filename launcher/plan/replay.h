/* Replays the moments of a training step (placement/moments.h) through the chunk manager, on a backend without memory: time goes on
 * by the recorded work and by waits for moves, which take as long as their bandwidth says. */
#ifndef CASTOR_LAUNCHER_PLAN_REPLAY_H
#define CASTOR_LAUNCHER_PLAN_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"
#include "placement/chunk.h"
#include "placement/chunk_statistics.h"
#include "placement/moments.h"

enum { REPLAY_WARM_STEPS = 2, REPLAY_CHUNKS_MAX = 65536 };

typedef struct replay_use {
    uint32_t chunk;
    bool write;
} replay_use;

typedef struct replay_step {
    uint64_t *bytes; /* by chunk */
    chunk_kind *kinds;
    moment *moments; /* first_use: into uses */
    replay_use *uses;
    uint32_t chunks, moments_count, uses_count;
    uint64_t step_ns;
} replay_step;

typedef struct replay_machine {
    uint64_t budget_bytes, read_bytes_per_second, write_bytes_per_second;
    bool half; /* reads and writes take turns on the disk */
} replay_machine;

typedef struct replay_result {
    chunk_statistics before, after; /* the steps that count */
    uint64_t calls, calls_ns;       /* of the manager in these, by this machine's clock */
} replay_result;

/* The end of the uses of a moment. */
uint32_t replay_uses_end(const replay_step *step, uint32_t moment);
/* `steps` steps; the warm ones, before them, do not count. All chunks are on the disk at first. CASTOR_ERR_MEMORY: the budget is
 * too small for the step, or memory is out. */
castor_status replay_run(const replay_step *step, const replay_machine *machine, uint32_t steps,
                         replay_result *out);

#endif
