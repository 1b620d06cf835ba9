#include "verify.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file_bytes.h"
#include "checksum.h"

typedef struct reading {
    int fd;
    char *buffer;
    uint64_t size; /* of the file */
} reading;

static int reading_begin(reading *r, const char *path) {
    r->buffer = mmap(NULL, STREAM_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    r->size = 0;
    if (r->fd < 0 || fstat(r->fd, &found) != 0)
        return errno;
    r->size = (uint64_t)found.st_size;
    return r->buffer == MAP_FAILED ? ENOMEM : 0;
}

static bool reading_end(reading *r, int error, const char *path, failure *failed) {
    if (r->fd >= 0)
        close(r->fd);
    if (r->buffer != MAP_FAILED)
        munmap(r->buffer, STREAM_BUFFER_BYTES);
    return !error || failure_set(failed, error, path);
}

bool verify_checksum(const char *path, uint64_t from, const void *text, size_t text_bytes, uint64_t *out,
                     failure *failed) {
    checksum sum;
    reading r;
    checksum_begin(&sum);
    checksum_add(&sum, text, text_bytes);
    int error = reading_begin(&r, path);
    while (!error) {
        ssize_t got = pread(r.fd, r.buffer, STREAM_BUFFER_BYTES, (off_t)from);
        if (got < 0 && errno == EINTR)
            continue;
        error = got < 0 ? errno : 0;
        if (got <= 0)
            break;
        checksum_add(&sum, r.buffer, (size_t)got);
        from += (uint64_t)got;
    }
    *out = checksum_end(&sum);
    return reading_end(&r, error, path, failed);
}

/* Of a local header, without the name and the extra field behind it, whose sizes are its last words. */
#define LOCAL_BYTES 30

static int record_read(reading *r, uint64_t header, uint64_t bytes, uint32_t *crc) {
    unsigned char local[LOCAL_BYTES];
    int error = header > r->size || r->size - header < LOCAL_BYTES
                    ? EBADMSG
                    : file_bytes_read(r->fd, local, LOCAL_BYTES, header);
    if (error || memcmp(local, "PK\3\4", 4) != 0)
        return error ? error : EBADMSG;
    uint64_t at = header + LOCAL_BYTES + (local[26] | local[27] << 8u) + (local[28] | local[29] << 8u);
    if (at > r->size || bytes > r->size - at)
        return EBADMSG;
    for (*crc = 0; bytes > 0 && !error;) {
        size_t piece = bytes < STREAM_BUFFER_BYTES ? bytes : STREAM_BUFFER_BYTES;
        error = file_bytes_read(r->fd, r->buffer, piece, at);
        if (!error)
            *crc = crc32_add(*crc, r->buffer, piece);
        at += piece;
        bytes -= piece;
    }
    return error;
}

bool verify_records(const char *path, const uint64_t *headers, const uint64_t *bytes, uint32_t count,
                    uint32_t *crcs, failure *failed) {
    reading r;
    int error = reading_begin(&r, path);
    for (uint32_t i = 0; i < count && !error; i++)
        error = record_read(&r, headers[i], bytes[i], &crcs[i]);
    return reading_end(&r, error, path, failed);
}
