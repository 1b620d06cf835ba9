/* What a record of a pipeline's pass holds (record.def: PASS), for who writes it and who reads it.
 *
 *   id  TRACE_PASS_FORWARD, TRACE_PASS_BACKWARD, TRACE_PASS_FORWARD_ONLY: a forward that no backward follows, or TRACE_PASS_WEIGHT: the
 *       second half of a backward, where the first one is of the input alone
 *   a   microbatch (lower half), microbatches of a batch (upper half)
 *   b   virtual stage of the model (lower half), virtual stages (upper half): number p is on stage p mod S (parallel/pipeline.h)
 *   c   batch, counted from 0 by each process (lower half), stages (upper half); the highest bit: it enqueues work on a device,
 *       so begin and end are not the work's; the one below: the batch's backwards have two halves */
#ifndef CASTOR_TRACE_PASS_H
#define CASTOR_TRACE_PASS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_PASS_FORWARD, TRACE_PASS_BACKWARD, TRACE_PASS_FORWARD_ONLY, TRACE_PASS_WEIGHT };

#define TRACE_PASS_ON_DEVICE (UINT64_C(1) << 63)
#define TRACE_PASS_SPLIT     (UINT64_C(1) << 62)

typedef struct trace_pass {
    uint32_t id;
    uint32_t microbatch, microbatches, virtual_stage, virtual_stages, batch, stages;
    bool on_device, split;
} trace_pass;

static inline void trace_pass_pack(const trace_pass *pass, uint64_t *a, uint64_t *b, uint64_t *c) {
    *a = (uint64_t)pass->microbatches << 32 | pass->microbatch;
    *b = (uint64_t)pass->virtual_stages << 32 | pass->virtual_stage;
    *c = (uint64_t)pass->stages << 32 | pass->batch | (pass->on_device ? TRACE_PASS_ON_DEVICE : 0) |
         (pass->split ? TRACE_PASS_SPLIT : 0);
}

/* False: no schedule writes this; the record is damaged. */
static inline bool trace_pass_unpack(uint32_t id, uint64_t a, uint64_t b, uint64_t c, trace_pass *pass) {
    enum { VIRTUAL_STAGES_MOST = 1 << 16, MICROBATCHES_MOST = 1 << 20 };
    *pass = (trace_pass){.id = id,
                         .microbatch = (uint32_t)a,
                         .microbatches = (uint32_t)(a >> 32),
                         .virtual_stage = (uint32_t)b,
                         .virtual_stages = (uint32_t)(b >> 32),
                         .batch = (uint32_t)c,
                         .stages = (uint32_t)((c & ~(TRACE_PASS_ON_DEVICE | TRACE_PASS_SPLIT)) >> 32),
                         .on_device = (c & TRACE_PASS_ON_DEVICE) != 0,
                         .split = (c & TRACE_PASS_SPLIT) != 0};
    return id <= TRACE_PASS_WEIGHT && (id != TRACE_PASS_WEIGHT || pass->split) &&
           pass->microbatch < pass->microbatches && pass->microbatches <= MICROBATCHES_MOST &&
           pass->virtual_stage < pass->virtual_stages && pass->virtual_stages <= VIRTUAL_STAGES_MOST &&
           pass->stages > 0 && pass->virtual_stages % pass->stages == 0;
}

#endif
