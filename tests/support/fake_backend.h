/* A backend for the chunk manager without memory or time: a clock that stands still until it is told to advance or a move is
 * waited for, moves that take as long as their bandwidth says, one after another in each direction, and failures where a
 * test wants them. It checks what the seam promises (backend.h). Safe from any thread. */
#ifndef CASTOR_TESTS_SUPPORT_FAKE_BACKEND_H
#define CASTOR_TESTS_SUPPORT_FAKE_BACKEND_H

#include <pthread.h>
#include "placement/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_CHUNKS 65536

typedef struct fake_move {
    chunk_move move;
    uint64_t begin_ns, end_ns;
    int running, fails;
} fake_move;

typedef struct fake_backend {
    pthread_mutex_t lock;
    uint64_t now_ns, latency_ns;
    uint64_t bytes_per_second[TIERS_MAX][TIERS_MAX]; /* 0: at once */
    uint64_t free_ns[TIERS_MAX][TIERS_MAX];          /* when the direction has done all its moves */
    int one_at_a_time; /* directions share a disk: a move begins when those in any direction are done */
    uint64_t capacity[TIERS_MAX], room[TIERS_MAX];
    uint64_t non_model, non_model_peak;
    uint32_t *tier;   /* by chunk, FAKE_CHUNKS of them: where it really is */
    fake_move *moves; /* by chunk: handles are chunks */
    uint32_t chunks;  /* those that ever moved have lower numbers */
    int stuck;        /* moves never end */
    int can_cancel;

    uint64_t calls, fail_at; /* of those that may fail; 0: none does. fail_more: all after it fail too */
    int fail_more;
    uint64_t started, failed, cancelled, allocated, live_allocations;
    uint64_t *begun_ns; /* by chunk: of the last move */
    const char *broken; /* the first promise that was not kept */
} fake_backend;

/* Two tiers, host and disk, or three; everything on tier 0 until fake_place. */
void fake_init(fake_backend *f, uint32_t tiers, chunk_backend *backend);
void fake_free(fake_backend *f);
void fake_place(fake_backend *f, uint32_t chunk, uint32_t tier, uint64_t bytes);
void fake_advance(fake_backend *f, uint64_t ns);
/* When the next move that is under way ends; UINT64_MAX: none is. */
uint64_t fake_next_end(fake_backend *f);
void fake_non_model(fake_backend *f, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
