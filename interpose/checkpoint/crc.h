/* The CRC-32 that archives have of each record: of the polynomial 0xedb88320, lowest bit first. */
#ifndef CASTOR_CHECKPOINT_CRC_H
#define CASTOR_CHECKPOINT_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of 0 bytes: 0. */
uint32_t crc32_add(uint32_t crc, const void *data, size_t bytes);
/* The same without the processor's carry-less multiplication. */
uint32_t crc32_add_portable(uint32_t crc, const void *data, size_t bytes);

#endif
