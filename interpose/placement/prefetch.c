#include "prefetch.h"

#define NEW_WEIGHT 4 /* a new measurement counts one in so many */
/* Moves are planned to take this much longer than measured, in eighths: bandwidth varies. */
#define MARGIN_EIGHTHS 10

void bandwidth_add(bandwidth *b, uint64_t bytes, uint64_t begin_ns, uint64_t end_ns) {
    uint64_t begin = begin_ns > b->last_end_ns ? begin_ns : b->last_end_ns;
    b->last_end_ns = end_ns > b->last_end_ns ? end_ns : b->last_end_ns;
    if (bytes == 0 || end_ns <= begin)
        return; /* ended together with another one: that one's time is both's */
    uint64_t measured = (uint64_t)((double)(end_ns - begin) * 1000 / (double)bytes);
    if (measured == 0)
        measured = 1;
    if (b->picoseconds_per_byte == 0)
        b->picoseconds_per_byte = measured;
    else if (measured > b->picoseconds_per_byte)
        b->picoseconds_per_byte += (measured - b->picoseconds_per_byte) / NEW_WEIGHT;
    else
        b->picoseconds_per_byte -= (b->picoseconds_per_byte - measured) / NEW_WEIGHT;
}

uint64_t bandwidth_time_ns(const bandwidth *b, uint64_t bytes) {
    return (uint64_t)((double)bytes * (double)b->picoseconds_per_byte / 1000);
}

void prefetch_schedule(prefetch_item *items, uint32_t count, const bandwidth *b) {
    uint64_t end = UINT64_MAX;
    for (uint32_t i = count; i-- > 0;) {
        uint64_t takes = bandwidth_time_ns(b, items[i].bytes) / 8 * MARGIN_EIGHTHS;
        end = items[i].need_ns < end ? items[i].need_ns : end;
        if (b->picoseconds_per_byte == 0)
            takes = end; /* unknown: at once */
        end = end > takes ? end - takes : 0;
        items[i].begin_ns = end;
    }
}
