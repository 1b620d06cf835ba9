/* The checksum of a file, 64 bits.
 *
 * The checksum finds damage; it is no defence against somebody who wants another file to have the same. Eight lanes take the
 * words of 64 bytes each, so that a processor multiplies them at the same time. A lane is one-to-one in each word, so a file in which one word is
 * different has another checksum for certain. */
#ifndef CASTOR_CHECKPOINT_CHECKSUM_H
#define CASTOR_CHECKPOINT_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_LANES 8
#define CHECKSUM_BLOCK (CHECKSUM_LANES * sizeof(uint64_t))

typedef struct checksum {
    uint64_t lane[CHECKSUM_LANES];
    uint64_t bytes;
    unsigned char rest[CHECKSUM_BLOCK]; /* the last bytes % CHECKSUM_BLOCK bytes */
} checksum;

void checksum_begin(checksum *c);
/* In any division into pieces the result is the same. */
void checksum_add(checksum *c, const void *data, size_t bytes);
uint64_t checksum_end(const checksum *c);

/* The CRC-32 that archives have of each record: of the polynomial 0xedb88320, lowest bit first. */

/* Of 0 bytes: 0. */
uint32_t crc32_add(uint32_t crc, const void *data, size_t bytes);
/* The same without the processor's carry-less multiplication. */
uint32_t crc32_add_portable(uint32_t crc, const void *data, size_t bytes);

#endif
