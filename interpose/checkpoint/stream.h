/* One file that is written atomically: under a temporary name in its own directory, made durable, then renamed.
 *
 * Invariants
 *   - the file's own name shows the old file until stream_show, and all of the new one after it
 *   - a temporary file is locked (flock) by the process that writes it. The lock ends with the process, so a temporary file that
 *     can be locked is a leftover: the next save in that directory removes it
 *   - what is written goes past the page cache (O_DIRECT) where the file system can do that */
#ifndef CASTOR_CHECKPOINT_STREAM_H
#define CASTOR_CHECKPOINT_STREAM_H

#include <limits.h>
#include <stdbool.h>
#include "checksum.h"

#define STREAM_BUFFER_BYTES (4ul << 20)
/* What is put into the buffer at once: it is summed while it lies in the processor's own cache. */
#define STREAM_PIECE_BYTES (256ul << 10)

/* What failed: its errno and the file's path. */
typedef struct failure {
    int error; /* 0: nothing */
    char path[PATH_MAX];
} failure;

typedef struct stream {
    char path[PATH_MAX]; /* absolute, no symbolic link */
    const char *name;    /* in it */
    char temporary[NAME_MAX + 1];
    int folder, fd; /* the directory is the same if it gets another name */
    bool direct, existed, shown;
    char *buffer;
    size_t filled;
    uint64_t bytes; /* of the file so far, without what is in the buffer */
    bool summed;    /* what is put from now on */
    checksum sum;
} stream;

/* Finds the file's place: the directory as it is now, and what a symbolic link of the name leads to. False: *failed says why. */
bool stream_find(const char *path, char place[PATH_MAX], failure *failed);

/* Each returns false after a failure; stream_drop must follow then. */
bool stream_open(stream *s, const char *place, failure *failed);
/* The next bytes may be written here, at most *room of them, of which stream_advance then tells the number. */
static inline char *stream_room(stream *s, size_t *room) {
    size_t left = STREAM_BUFFER_BYTES - s->filled;
    *room = left < STREAM_PIECE_BYTES ? left : STREAM_PIECE_BYTES;
    return s->buffer + s->filled;
}
bool stream_advance(stream *s, size_t bytes, failure *failed);
bool stream_put(stream *s, const void *data, size_t bytes, failure *failed);
/* The checksum is that of this text and of what follows in the file. */
void stream_sum_begin(stream *s, const void *text, size_t bytes);
/* All of it is written. The buffer is freed. */
bool stream_end(stream *s, failure *failed);
/* After that: other bytes in the place of some. */
bool stream_fill_in(stream *s, const void *data, size_t bytes, uint64_t at, failure *failed);
/* All of it is on disk. */
bool stream_finish(stream *s, failure *failed);
bool stream_show(stream *s, failure *failed);
/* A name that was new goes again. */
void stream_hide(stream *s);
/* The names in its directory are on disk. */
bool stream_folder_sync(const stream *s, failure *failed);
/* Closes it; removes the temporary file, unless it is shown. */
void stream_drop(stream *s);

/* Removes the leftovers of dead processes beside `place`. */
void stream_leftovers_remove(const char *place);

static inline bool failure_set(failure *f, int error, const char *path) {
    f->error = error;
    size_t i = 0;
    for (; i + 1 < sizeof f->path && path[i]; i++)
        f->path[i] = path[i];
    f->path[i] = 0;
    return false;
}

#endif
