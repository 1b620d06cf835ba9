#include "checksum.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- sixteen bytes at a time, by a table for each */

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

/* `crc` with all its bits the other way round, as they are between two pieces. */
static uint32_t table_add(uint32_t crc, const unsigned char *at, size_t bytes) {
    for (; bytes >= CRC_STEP; bytes -= CRC_STEP, at += CRC_STEP) {
        uint32_t next = 0;
#pragma GCC unroll 16
        for (int i = 0; i < CRC_STEP; i++)
            next ^= crc_table[CRC_STEP - 1 - i][at[i] ^ (i < 4 ? crc >> 8 * i & 0xff : 0)];
        crc = next;
    }
    for (; bytes > 0; bytes--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xff];
    return crc;
}

uint32_t crc32_add_portable(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&crc_once, crc_table_make);
    return ~table_add(~crc, data, bytes);
}

#if defined(__x86_64__)

/* ---- by carry-less multiplication
 *
 * Bytes are a polynomial over GF(2), and a CRC is its rest after division. 16 bytes that stand n bits before others may be
 * replaced by a polynomial of the same rest that is added to those: their halves times x^(n+32) and x^(n-32), each of the two
 * modulo the CRC's polynomial. So four lanes of 16 bytes go over the data, then become one, whose bytes the table divides. */

#define LANES      4
#define FOLD_BYTES (LANES * sizeof(__m128i))
#define TARGET     __attribute__((target("pclmul,sse2")))

/* x^(n+32) and x^(n-32), lowest bit first, a place further up, since a product of two such numbers lies a place too low. */
#define BY_512_BITS _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
#define BY_128_BITS _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)

TARGET static inline __m128i fold(__m128i lane, __m128i by, __m128i onto) {
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)), onto);
}

/* `bytes`: a multiple of FOLD_BYTES, and not 0. */
TARGET static uint32_t folded_add(uint32_t crc, const unsigned char *at, size_t bytes) {
    const __m128i *from = (const __m128i *)at;
    __m128i lane[LANES];
    unsigned char rest[sizeof(__m128i)];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i++)
        lane[i] = _mm_loadu_si128(from++);
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)crc));
    for (bytes -= FOLD_BYTES; bytes > 0; bytes -= FOLD_BYTES) {
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i++)
            lane[i] = fold(lane[i], BY_512_BITS, _mm_loadu_si128(from++));
    }
#pragma GCC unroll 4
    for (int i = 1; i < LANES; i++)
        lane[i] = fold(lane[i - 1], BY_128_BITS, lane[i]);
    _mm_storeu_si128((__m128i *)rest, lane[LANES - 1]);
    return table_add(0, rest, sizeof rest);
}

uint32_t crc32_add(uint32_t crc, const void *data, size_t bytes) {
    size_t whole = bytes / FOLD_BYTES * FOLD_BYTES;
    if (!whole || !__builtin_cpu_supports("pclmul"))
        return crc32_add_portable(crc, data, bytes);
    pthread_once(&crc_once, crc_table_make);
    crc = folded_add(~crc, data, whole);
    return ~table_add(crc, (const unsigned char *)data + whole, bytes - whole);
}

#else

uint32_t crc32_add(uint32_t crc, const void *data, size_t bytes) {
    return crc32_add_portable(crc, data, bytes);
}

#endif

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
