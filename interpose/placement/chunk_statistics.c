#include "chunk_statistics.h"

static void raise_to(uint64_t *most, uint64_t bytes) {
    *most = bytes > *most ? bytes : *most;
}

void chunk_statistics_moment(chunk_statistics *s, moment_event event) {
    s->event = event;
    raise_to(&s->moment_bytes[event], s->tier_bytes[0]);
}

void chunk_statistics_non_model(chunk_statistics *s, uint64_t bytes) {
    raise_to(&s->non_model_peak_bytes, bytes);
    raise_to(&s->moment_non_model_bytes[s->event], bytes);
}

void chunk_statistics_count(chunk_statistics *s, chunk_kind kind, uint32_t tier, uint64_t bytes, int sign) {
    uint64_t *now = &s->bytes[kind][tier], *all = &s->tier_bytes[tier];
    if (sign < 0) {
        *now -= bytes;
        *all -= bytes;
        return;
    }
    *now += bytes;
    *all += bytes;
    raise_to(&s->peak_bytes[kind][tier], *now);
    raise_to(&s->tier_peak_bytes[tier], *all);
    raise_to(&s->moment_bytes[s->event], s->tier_bytes[0]);
}

void chunk_statistics_move(chunk_statistics *s, const chunk_move *move) {
    s->moves[move->from][move->to]++;
    if (move->to > move->from && !move->dirty)
        s->dropped_bytes += move->bytes;
    else
        s->moved_bytes[move->from][move->to] += move->bytes;
}
