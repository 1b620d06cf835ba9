#include "checksum.h"

#include <pthread.h>
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

/* ---- CRC-32, of the polynomial 0xedb88320: sixteen bytes at a time, by a table for each */

#define CRC_STEP 16

static uint32_t crc_table[CRC_STEP][256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void crc_table_make(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        crc_table[0][byte] = crc;
    }
    for (int step = 1; step < CRC_STEP; step++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc_table[step][byte] =
                crc_table[step - 1][byte] >> 8 ^ crc_table[0][crc_table[step - 1][byte] & 0xff];
}

uint32_t crc32_add(uint32_t crc, const void *data, size_t bytes) {
    const unsigned char *at = data;
    pthread_once(&crc_once, crc_table_make);
    crc = ~crc;
    for (; bytes >= CRC_STEP; bytes -= CRC_STEP, at += CRC_STEP) {
        uint32_t next = 0;
        for (int i = 0; i < CRC_STEP; i++)
            next ^= crc_table[CRC_STEP - 1 - i][at[i] ^ (i < 4 ? crc >> 8 * i & 0xff : 0)];
        crc = next;
    }
    for (; bytes > 0; bytes--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xff];
    return ~crc;
}
