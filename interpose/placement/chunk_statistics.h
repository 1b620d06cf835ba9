/* What a chunk manager has done: plain sums, under its lock. */
#ifndef CASTOR_PLACEMENT_CHUNK_STATISTICS_H
#define CASTOR_PLACEMENT_CHUNK_STATISTICS_H

#include <stdint.h>
#include "backend.h"
#include "chunk.h"
#include "moments.h"

typedef struct chunk_statistics {
    /* A chunk that moves counts on both tiers. */
    uint64_t bytes[CHUNK_KIND_COUNT][TIERS_MAX], peak_bytes[CHUNK_KIND_COUNT][TIERS_MAX];
    uint64_t tier_bytes[TIERS_MAX], tier_peak_bytes[TIERS_MAX];
    uint64_t moves[TIERS_MAX][TIERS_MAX], moved_bytes[TIERS_MAX][TIERS_MAX]; /* from, to; done, and copied */
    uint64_t dropped_bytes; /* left a tier without a copy: a slower one had the same bytes */
    uint64_t failed_moves, cancelled_moves;

    uint64_t accesses;
    uint64_t hits;      /* prefetched, and there in time */
    uint64_t late;      /* prefetched, and still on their way */
    uint64_t misses;    /* loaded by the access itself */
    uint64_t unnoticed; /* found on tier 0, or used without an access */
    uint64_t wasted;    /* prefetched, and evicted before they were used */
    uint64_t stall_ns;  /* accesses waited for moves, all threads together */
    uint64_t
        over_limit; /* times that the policy's limit was passed, within the capacity, because all chunks were in use */

    uint64_t steps, warmups, deviations;
    uint64_t non_model_peak_bytes;

    /* By the event that began the moment: the most on tier 0 meanwhile, of each for itself. */
    moment_event event;
    uint64_t moment_bytes[MOMENT_EVENT_COUNT], moment_non_model_bytes[MOMENT_EVENT_COUNT];
} chunk_statistics;

/* A moment begins. */
void chunk_statistics_moment(chunk_statistics *s, moment_event event);
void chunk_statistics_non_model(chunk_statistics *s, uint64_t bytes);
/* `sign` 1: bytes come to a tier; -1: they leave it. */
void chunk_statistics_count(chunk_statistics *s, chunk_kind kind, uint32_t tier, uint64_t bytes, int sign);
void chunk_statistics_move(chunk_statistics *s, const chunk_move *move);

#endif
