/* A hash of 64 bits, the same in every process; ranks recognize each other's groups by it. */
#ifndef CASTOR_BASE_HASH_H
#define CASTOR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Never 0. FNV-1a with a final mix, since group names differ in their last byte only. */
static inline uint64_t hash_bytes(uint64_t seed, const void *bytes, size_t count) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (size_t i = 0; i < count; i++)
        /* The analyser does not see the bytes of a word that was set as a whole. */
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    hash = (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
    return hash != 0 ? hash : 1;
}

#endif
