/* The archive that torch.save writes: a zip file whose records are stored as they are, each record's data aligned. The bytes are
 * those of PyTorch's own writer; the agent compares them before it relies on that.
 *
 * Where records lie is known before their data are. A record's CRC follows its data, so a file is written from front to back. */
#ifndef CASTOR_CHECKPOINT_ARCHIVE_H
#define CASTOR_CHECKPOINT_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct archive_record {
    char *name; /* with the archive's folder */
    uint64_t offset, bytes;
    uint32_t crc;
} archive_record;

typedef struct archive {
    archive_record *records;
    uint32_t count, capacity;
    uint64_t size;      /* of what lies before the next record */
    uint64_t alignment; /* of records' data */
    char *folder;
} archive;

/* Bytes of one record's headers and footer, at most, without its name and padding. */
#define ARCHIVE_HEADER_MAX 128

/* Each returns false without memory. The header goes before the record's data, the footer behind them. */
bool archive_begin(archive *a, const char *folder, uint64_t alignment);
bool archive_record_add(archive *a, const char *name, uint64_t bytes, char **header, size_t *header_bytes);
size_t archive_footer(const archive_record *r, char out[ARCHIVE_HEADER_MAX]);
/* The last record names what the archive holds: a hash of the names (20 digits, PyTorch's), and one of the CRCs. */
#define ARCHIVE_ID_RECORD ".data/serialization_id"
#define ARCHIVE_ID_BYTES  40
void archive_id(const archive *a, const char names[ARCHIVE_ID_BYTES / 2], char out[ARCHIVE_ID_BYTES]);
/* The directory of all records, at the end of the file. */
bool archive_directory(const archive *a, char **out, size_t *bytes);
void archive_free(archive *a);

#endif
