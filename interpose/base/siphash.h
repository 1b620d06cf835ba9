/* SipHash-2-4 (Aumasson and Bernstein, 2012): a hash that reveals nothing of its key, however many hashes are known. */
#ifndef CASTOR_BASE_SIPHASH_H
#define CASTOR_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t siphash_rotate(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

static inline void siphash_rounds(uint64_t v[4], int count) {
    while (count-- > 0) {
        v[0] += v[1], v[2] += v[3];
        v[1] = siphash_rotate(v[1], 13) ^ v[0], v[3] = siphash_rotate(v[3], 16) ^ v[2];
        v[0] = siphash_rotate(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = siphash_rotate(v[1], 17) ^ v[2], v[3] = siphash_rotate(v[3], 21) ^ v[0];
        v[2] = siphash_rotate(v[2], 32);
    }
}

static inline uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    uint64_t word;
    for (size_t left = bytes; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        v[3] ^= word;
        siphash_rounds(v, 2);
        v[0] ^= word;
    }
    word = (uint64_t)bytes << 56;
    for (size_t i = 0; i < bytes % sizeof word; i++)
        word |= (uint64_t)at[i] << 8 * i;
    v[3] ^= word;
    siphash_rounds(v, 2);
    v[0] ^= word;
    v[2] ^= 0xff;
    siphash_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
