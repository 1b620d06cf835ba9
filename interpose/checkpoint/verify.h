/* What a file's bytes add up to, for the comparison with what was written. */
#ifndef CASTOR_CHECKPOINT_VERIFY_H
#define CASTOR_CHECKPOINT_VERIFY_H

#include "stream.h"

/* The checksum of the text and then of the file's bytes from `from` on. */
bool verify_checksum(const char *path, uint64_t from, const void *text, size_t text_bytes, uint64_t *out,
                     failure *failed);
/* The CRC-32 of each of an archive's records, which are stored as they are: `headers` has the positions of their local headers.
 * EBADMSG: there is none, or the file ends before the record does. */
bool verify_records(const char *path, const uint64_t *headers, const uint64_t *bytes, uint32_t count,
                    uint32_t *crcs, failure *failed);

#endif
