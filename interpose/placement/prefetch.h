/* When a move must begin to be done in time: measured bandwidths, and a schedule from them.
 *
 * Moves in one direction go one after another as far as time is concerned, however many are under way: a schedule is
 * made from the last use back to the first. */
#ifndef CASTOR_PLACEMENT_PREFETCH_H
#define CASTOR_PLACEMENT_PREFETCH_H

#include <stdint.h>

/* Of one direction. Moves overlap, so what counts for each is the time since the one before it ended. */
typedef struct bandwidth {
    uint64_t picoseconds_per_byte; /* 0: nothing was measured */
    uint64_t last_end_ns;
} bandwidth;

/* A move that ended well. */
void bandwidth_add(bandwidth *b, uint64_t bytes, uint64_t begin_ns, uint64_t end_ns);
/* 0 until something was measured: a move then begins as early as possible, and is measured. */
uint64_t bandwidth_time_ns(const bandwidth *b, uint64_t bytes);

typedef struct prefetch_item {
    uint64_t bytes;
    uint64_t need_ns;  /* when it must be there */
    uint64_t begin_ns; /* found: when its move must begin at the latest; 0: at once, or too late already */
} prefetch_item;

/* Items in the order of their needs. */
void prefetch_schedule(prefetch_item *items, uint32_t count, const bandwidth *b);

#endif
