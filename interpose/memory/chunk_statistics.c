#include "chunk_statistics.h"

void chunk_statistics_place(chunk_statistics *s, chunk_kind kind, uint32_t tier, uint64_t bytes, int sign) {
    uint64_t *now = &s->bytes[kind][tier], *all = &s->tier_bytes[tier];
    if (sign < 0) {
        *now -= bytes;
        *all -= bytes;
        return;
    }
    *now += bytes;
    *all += bytes;
    if (*now > s->peak_bytes[kind][tier])
        s->peak_bytes[kind][tier] = *now;
    if (*all > s->tier_peak_bytes[tier])
        s->tier_peak_bytes[tier] = *all;
}

void chunk_statistics_move(chunk_statistics *s, const chunk_move *move) {
    s->moves[move->from][move->to]++;
    if (move->to > move->from && !move->dirty)
        s->dropped_bytes += move->bytes;
    else
        s->moved_bytes[move->from][move->to] += move->bytes;
}

double chunk_statistics_hit_rate(const chunk_statistics *s) {
    uint64_t needed = s->hits + s->late + s->misses;
    return needed ? (double)s->hits / (double)needed : 1.0;
}
