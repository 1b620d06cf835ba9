#include "recording.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/file_bytes.h"
#include "base/log.h"

#define PATH_BYTES   4160 /* an option of 4095 bytes, and the name */
#define BUFFER_BYTES 16384

/* Lines are short; they are written through a buffer. */
typedef struct writer {
    int fd, error; /* 0, or the errno of the first write that failed */
    uint64_t offset, used;
    char buffer[BUFFER_BYTES];
} writer;

static void buffer_write(writer *w) {
    if (!w->error)
        w->error = file_bytes_write(w->fd, w->buffer, w->used, w->offset);
    w->offset += w->used;
    w->used = 0;
}

static void line_add(void *context, const char *text, uint64_t length) {
    writer *w = context;
    if (w->used + length > sizeof w->buffer)
        buffer_write(w);
    memcpy(w->buffer + w->used, text, length);
    w->used += length;
}

void recording_keep(chunk_manager *m, const char *directory, int rank) {
    char path[PATH_BYTES];
    log_format(path, sizeof path, "%s/moments.%d", directory, rank);
    writer w = {.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (w.fd < 0) {
        LOG_W("cannot write %s (errno %d): CASTOR_MOMENTS_DIR needs a directory that can be written to", path,
              errno);
        return;
    }
    bool known = chunk_manager_write_recording(m, line_add, &w);
    buffer_write(&w);
    close(w.fd);
    if (!known)
        unlink(path);
    if (w.error)
        LOG_W("cannot write %s (errno %d): the recording is incomplete", path, w.error);
    else if (!known)
        LOG_W("no training step was recorded for CASTOR_MOMENTS_DIR: the first one makes states, and what "
              "follows is recorded");
}
