#include "archive.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/table.h"

#define LOCAL_BYTES     30
#define DIRECTORY_BYTES 46
#define END_BYTES       (56 + 20 + 22)
#define FLAGS           0x0800 /* names are UTF-8 */
#define FLAG_FOOTER     0x0008 /* the CRC follows the data */
#define LIMIT           UINT32_MAX
#define PADDING_SIGN    "FB"
#define PADDING         'Z'
#define ENDS_MADE_BY    0x031e
#define ENDS_NEEDED     0x002d
#define LONG_SIZES      1 /* the id of the extra field for sizes that 32 bits do not hold */
#define LONG_EXTRA_MAX  (4 + 3 * sizeof(uint64_t))
#define DIRECTORY_LIMIT UINT16_MAX
#define ID_MIXER        0x9e3779b9u

static char *put(char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        *at++ = (char)(value >> 8 * i);
    return at;
}

/* A record without data has no footer. */
static int flags_of(const archive_record *r) {
    return r->bytes ? FLAGS | FLAG_FOOTER : FLAGS;
}

static uint64_t limited(uint64_t value) {
    return value < LIMIT ? value : LIMIT;
}

bool archive_begin(archive *a, const char *folder, uint64_t alignment) {
    memset(a, 0, sizeof *a);
    a->alignment = alignment;
    a->folder = strdup(folder);
    return a->folder != NULL;
}

/* The extra field of a record that is large or lies far behind; 0 bytes otherwise. `stored`: its bytes in the file, which PyTorch
 * does not know yet when it writes the header. */
static size_t long_extra(const archive_record *r, uint64_t stored, char out[LONG_EXTRA_MAX]) {
    char *at = out + 4;
    if (r->bytes >= LIMIT)
        at = put(put(at, r->bytes, 8), stored, 8);
    if (r->offset >= LIMIT)
        at = put(at, r->offset, 8);
    size_t bytes = (size_t)(at - out);
    if (bytes == 4)
        return 0;
    put(put(out, LONG_SIZES, 2), bytes - 4, 2);
    return bytes;
}

bool archive_record_add(archive *a, const char *name, uint64_t bytes, char **header, size_t *header_bytes) {
    archive_record *records = table_room(a->records, &a->capacity, a->count, sizeof *records);
    if (!records)
        return false;
    a->records = records;
    archive_record *r = &records[a->count];
    size_t length = strlen(a->folder) + 1 + strlen(name);
    *r = (archive_record){malloc(length + 1), a->size, bytes, 0};
    char extra[LONG_EXTRA_MAX];
    size_t extra_bytes = long_extra(r, 0, extra), before = LOCAL_BYTES + length + extra_bytes + 4;
    size_t padding = (a->alignment - (a->size + before) % a->alignment) % a->alignment;
    *header_bytes = before + padding;
    *header = malloc(*header_bytes);
    if (!r->name || !*header) {
        free(r->name);
        free(*header);
        return false;
    }
    log_format(r->name, length + 1, "%s/%s", a->folder, name);
    char *at = put(*header, 0x04034b50, 4);
    at = put(put(put(at, 0, 2), flags_of(r), 2), 0, 6); /* version, flags, method and time */
    at = put(put(put(at, 0, 4), 0, 4), 0, 4);           /* CRC and sizes */
    at = put(put(at, length, 2), extra_bytes + 4 + padding, 2);
    memcpy(at, r->name, length);
    memcpy(at + length, extra, extra_bytes);
    at += length + extra_bytes;
    memcpy(at, PADDING_SIGN, 2);
    memset(put(at + 2, padding, 2), PADDING, padding);
    char footer[ARCHIVE_HEADER_MAX];
    a->size += *header_bytes + bytes + archive_footer(r, footer);
    a->count++;
    return true;
}

size_t archive_footer(const archive_record *r, char out[ARCHIVE_HEADER_MAX]) {
    if (!r->bytes)
        return 0;
    int width = r->bytes >= LIMIT || r->offset >= LIMIT ? 8 : 4;
    char *at = put(put(out, 0x08074b50, 4), r->crc, 4);
    return (size_t)(put(put(at, r->bytes, width), r->bytes, width) - out);
}

void archive_id(const archive *a, const char names[ARCHIVE_ID_BYTES / 2], char out[ARCHIVE_ID_BYTES]) {
    uint64_t mixed = 0;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->records[i].bytes)
            mixed ^= a->records[i].crc + (uint64_t)ID_MIXER + (mixed << 6) + (mixed >> 2);
    memcpy(out, names, ARCHIVE_ID_BYTES / 2);
    for (int digit = ARCHIVE_ID_BYTES; digit-- > ARCHIVE_ID_BYTES / 2; mixed /= 10)
        out[digit] = (char)('0' + mixed % 10);
}

bool archive_directory(const archive *a, char **out, size_t *bytes) {
    size_t room = END_BYTES;
    for (uint32_t i = 0; i < a->count; i++)
        room += DIRECTORY_BYTES + LONG_EXTRA_MAX + strlen(a->records[i].name);
    char *at = *out = malloc(room);
    if (!at)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        const archive_record *r = &a->records[i];
        char extra[LONG_EXTRA_MAX];
        size_t extra_bytes = long_extra(r, r->bytes, extra), length = strlen(r->name);
        at = put(put(put(put(at, 0x02014b50, 4), 0, 4), flags_of(r), 2), 0, 6);
        at = put(put(put(at, r->crc, 4), limited(r->bytes), 4), limited(r->bytes), 4);
        at = put(put(put(put(at, length, 2), extra_bytes, 2), 0, 2), 0, 2); /* no comment; disk 0 */
        at = put(put(put(at, 0, 2), 0, 4), limited(r->offset), 4);          /* no attributes */
        memcpy(at, r->name, length);
        memcpy(at + length, extra, extra_bytes);
        at += length + extra_bytes;
    }
    uint64_t size = (uint64_t)(at - *out), entries = a->count < DIRECTORY_LIMIT ? a->count : DIRECTORY_LIMIT;
    at = put(put(put(put(at, 0x06064b50, 4), 44, 8), ENDS_MADE_BY, 2), ENDS_NEEDED, 2);
    at = put(put(put(put(put(at, 0, 8), a->count, 8), a->count, 8), size, 8), a->size, 8);
    at = put(put(put(put(at, 0x07064b50, 4), 0, 4), a->size + size, 8), 1, 4);
    at = put(put(put(put(at, 0x06054b50, 4), 0, 4), entries, 2), entries, 2);
    at = put(put(put(at, limited(size), 4), limited(a->size), 4), 0, 2);
    *bytes = (size_t)(at - *out);
    return true;
}

void archive_free(archive *a) {
    for (uint32_t i = 0; i < a->count; i++)
        free(a->records[i].name);
    free(a->records);
    free(a->folder);
    memset(a, 0, sizeof *a);
}
