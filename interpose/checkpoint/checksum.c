#include "checksum.h"

#include <string.h>

#define MULTIPLIER UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t mix(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * MULTIPLIER;
    return lane ^ lane >> 32;
}

void checksum_begin(checksum *c) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < CHECKSUM_LANES; i++)
        c->lane[i] = (uint64_t)(i + 1) * UINT64_C(0xd1b54a32d192ed03);
}

static void blocks_add(uint64_t lane[CHECKSUM_LANES], const unsigned char *at, size_t count) {
    uint64_t now[CHECKSUM_LANES], word[CHECKSUM_LANES];
    memcpy(now, lane, sizeof now);
    for (; count > 0; count--, at += CHECKSUM_BLOCK) {
        memcpy(word, at, sizeof word);
        for (int i = 0; i < CHECKSUM_LANES; i++)
            now[i] = mix(now[i], word[i]);
    }
    memcpy(lane, now, sizeof now);
}

void checksum_add(checksum *c, const void *data, size_t bytes) {
    const unsigned char *at = data;
    size_t held = c->bytes % CHECKSUM_BLOCK;
    c->bytes += bytes;
    if (held) {
        size_t taken = bytes < CHECKSUM_BLOCK - held ? bytes : CHECKSUM_BLOCK - held;
        memcpy(c->rest + held, at, taken);
        if (held + taken < CHECKSUM_BLOCK)
            return;
        blocks_add(c->lane, c->rest, 1);
        at += taken;
        bytes -= taken;
    }
    blocks_add(c->lane, at, bytes / CHECKSUM_BLOCK);
    memcpy(c->rest, at + bytes / CHECKSUM_BLOCK * CHECKSUM_BLOCK, bytes % CHECKSUM_BLOCK);
}

uint64_t checksum_end(const checksum *c) {
    uint64_t lane[CHECKSUM_LANES], sum = c->bytes;
    unsigned char last[CHECKSUM_BLOCK] = {0};
    memcpy(lane, c->lane, sizeof lane);
    memcpy(last, c->rest, c->bytes % CHECKSUM_BLOCK);
    blocks_add(lane, last, 1);
    for (int i = 0; i < CHECKSUM_LANES; i++)
        sum = mix(sum, lane[i]);
    return sum ^ sum >> 29;
}
