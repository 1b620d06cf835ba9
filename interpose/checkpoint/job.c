#include "job.h"
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/thread.h"
#include "hold.h"

/* The archive that torch.save writes: a zip file whose records are stored as they are, each record's data aligned. The bytes are
 * those of PyTorch's own writer; the agent compares them before it relies on that.
 *
 * Where records lie is known before their data are. A record's CRC follows its data, so a file is written from front to back. */
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

/* The last record names what the archive holds: a hash of the names (20 digits, PyTorch's), and one of the CRCs. */
#define ARCHIVE_ID_RECORD ".data/serialization_id"
#define ARCHIVE_ID_BYTES  40

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

static bool archive_begin(archive *a, const char *folder, uint64_t alignment) {
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

static size_t archive_footer(const archive_record *r, char out[ARCHIVE_HEADER_MAX]) {
    if (!r->bytes)
        return 0;
    int width = r->bytes >= LIMIT || r->offset >= LIMIT ? 8 : 4;
    char *at = put(put(out, 0x08074b50, 4), r->crc, 4);
    return (size_t)(put(put(at, r->bytes, width), r->bytes, width) - out);
}

/* Each returns false without memory. The header goes before the record's data, the footer behind them. */
static bool archive_record_add(archive *a, const char *name, uint64_t bytes, char **header,
                               size_t *header_bytes) {
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

static void archive_id(const archive *a, const char names[ARCHIVE_ID_BYTES / 2], char out[ARCHIVE_ID_BYTES]) {
    uint64_t mixed = 0;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->records[i].bytes)
            mixed ^= a->records[i].crc + (uint64_t)ID_MIXER + (mixed << 6) + (mixed >> 2);
    memcpy(out, names, ARCHIVE_ID_BYTES / 2);
    for (int digit = ARCHIVE_ID_BYTES; digit-- > ARCHIVE_ID_BYTES / 2; mixed /= 10)
        out[digit] = (char)('0' + mixed % 10);
}

static bool archive_directory(const archive *a, char **out, size_t *bytes) {
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

/* The directory of all records, at the end of the file. */
static void archive_free(archive *a) {
    for (uint32_t i = 0; i < a->count; i++)
        free(a->records[i].name);
    free(a->records);
    free(a->folder);
    memset(a, 0, sizeof *a);
}

#define DIGITS 16

typedef enum piece_kind {
    PIECE_BYTES,
    PIECE_MEMORY,
    PIECE_DIGITS,    /* of file `number` */
    PIECE_SUM,       /* the text with which the file's checksum begins; bytes of the job's */
    PIECE_FOOTER,    /* of the archive's record `number`; its CRC is that of the bytes since its header */
    PIECE_HEADER,    /* a record's; bytes of the job's */
    PIECE_ID,        /* the archive's id */
    PIECE_DIRECTORY, /* the archive's */
} piece_kind;

typedef struct piece {
    piece_kind kind;
    uint32_t number;
    const char *data;
    size_t bytes;
    hold *held; /* of memory; NULL: it does not change */
} piece;

typedef struct job_file {
    char *place;
    bool is_index;
    piece *pieces;
    uint32_t count, capacity;
    archive archive;
    char names_hash[ARCHIVE_ID_BYTES / 2];
    stream stream;
    bool open, has_sum;
    uint64_t sum_at;   /* where its own checksum stands in it, with has_sum */
    bool named;        /* its checksum stands in another file */
    uint64_t checksum; /* with has_sum or named */
} job_file;

struct job {
    job_file **files;
    uint32_t count, capacity;
    char **removed;
    uint32_t removed_count, removed_capacity;
};

_Static_assert(sizeof(failure) <= THREAD_ROOM_BYTES, "of each thread");

static failure *last(void) {
    return thread_room(THREAD_ROOM_FAILURE);
}

const failure *job_failure(void) {
    return last();
}

castor_status job_error(const failure *failed, const char *doing) {
    *last() = *failed;
    if (failed->error == EFAULT)
        return error_set(CASTOR_ERR_SYSTEM,
                         "cannot %s %s: the memory of a tensor was unmapped or replaced, or there was no "
                         "memory for a copy "
                         "of it, before it was written",
                         doing, failed->path);
    return error_set(failed->error == ENOMEM ? CASTOR_ERR_MEMORY : CASTOR_ERR_SYSTEM,
                     "cannot %s %s (errno %d)", doing, failed->path, failed->error);
}

static castor_status no_memory(void) {
    *last() = (failure){.error = ENOMEM};
    return error_set(CASTOR_ERR_MEMORY, "no memory for the list of what a checkpoint holds");
}

castor_status job_new(job **out) {
    *out = calloc(1, sizeof **out);
    return *out ? CASTOR_OK : no_memory();
}

static job_file *file_last(job *j) {
    return j->count ? j->files[j->count - 1] : NULL;
}

castor_status job_file_add(job *j, const char *path, uint32_t *number) {
    char place[PATH_MAX];
    failure failed;
    if (!stream_find(path, place, &failed))
        return job_error(&failed, "write");
    for (uint32_t i = 0; i < j->count; i++)
        if (strcmp(j->files[i]->place, place) == 0) {
            *last() = (failure){0};
            return error_set(CASTOR_ERR_ARGUMENT, "two files of one checkpoint have the name %s", place);
        }
    job_file **files = table_room(j->files, &j->capacity, j->count, sizeof *files);
    if (!files)
        return no_memory();
    j->files = files;
    job_file *f = calloc(1, sizeof *f);
    if (!f || !(f->place = strdup(place))) {
        free(f);
        return no_memory();
    }
    *number = j->count;
    files[j->count++] = f;
    return CASTOR_OK;
}

static castor_status piece_add(job *j, piece p) {
    job_file *f = file_last(j);
    if (!f)
        return error_set(CASTOR_ERR_ARGUMENT, "no file was added to which this belongs");
    piece *pieces = table_room(f->pieces, &f->capacity, f->count, sizeof *pieces);
    if (!pieces)
        return no_memory();
    f->pieces = pieces;
    pieces[f->count++] = p;
    return CASTOR_OK;
}

static castor_status owned_add(job *j, piece_kind kind, char *data, size_t bytes) {
    castor_status status = piece_add(j, (piece){kind, 0, data, bytes, NULL});
    if (status)
        free(data);
    return status;
}

castor_status job_bytes_add(job *j, const void *data, size_t bytes) {
    char *copy = malloc(bytes + 1);
    if (!copy)
        return no_memory();
    memcpy(copy, data, bytes);
    return owned_add(j, PIECE_BYTES, copy, bytes); /* NOLINT(clang-analyzer-unix.Malloc): the job has it */
}

castor_status job_memory_add(job *j, const void *data, size_t bytes) {
    return bytes ? piece_add(j, (piece){PIECE_MEMORY, 0, data, bytes, NULL}) : CASTOR_OK;
}

castor_status job_sum_add(job *j, const void *text, size_t bytes, uint64_t at) {
    job_file *f = file_last(j);
    if (!f || f->has_sum)
        return error_set(CASTOR_ERR_ARGUMENT, "a file has one checksum of its own");
    char *copy = malloc(bytes + 1);
    if (!copy)
        return no_memory();
    memcpy(copy, text, bytes);
    f->has_sum = true;
    f->sum_at = at;
    return owned_add(j, PIECE_SUM, copy, bytes); /* NOLINT(clang-analyzer-unix.Malloc): the job has it */
}

castor_status job_digits_add(job *j, uint32_t number) {
    if (number + 1 >= j->count || j->files[number]->has_sum)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a checksum of file %u is only known to the files behind it, "
                         "and not known of a file with one of its own",
                         number);
    file_last(j)->is_index = true;
    j->files[number]->named = true;
    return piece_add(j, (piece){.kind = PIECE_DIGITS, .number = number});
}

castor_status job_archive_begin(job *j, const char *folder, uint64_t alignment) {
    job_file *f = file_last(j);
    if (!f || f->count || !alignment)
        return error_set(CASTOR_ERR_ARGUMENT, "an archive begins at the beginning of a file");
    return archive_begin(&f->archive, folder, alignment) ? CASTOR_OK : no_memory();
}

static castor_status header_add(job *j, const char *name, uint64_t bytes) {
    char *header;
    size_t header_bytes;
    if (!archive_record_add(&file_last(j)->archive, name, bytes, &header, &header_bytes))
        return no_memory();
    return owned_add(j, PIECE_HEADER, header, header_bytes);
}

static castor_status footer_add(job *j) {
    return piece_add(j, (piece){.kind = PIECE_FOOTER, .number = file_last(j)->archive.count - 1});
}

castor_status job_record_add(job *j, const char *name, const void *data, uint64_t bytes, bool copied) {
    if (!file_last(j) || !file_last(j)->archive.folder)
        return error_set(CASTOR_ERR_ARGUMENT, "no archive was begun to which a record belongs");
    castor_status status = header_add(j, name, bytes);
    if (status == CASTOR_OK)
        status = copied ? job_bytes_add(j, data, bytes) : job_memory_add(j, data, bytes);
    return status == CASTOR_OK ? footer_add(j) : status;
}

castor_status job_archive_end(job *j, const char *names_hash) {
    job_file *f = file_last(j);
    if (!f || !f->archive.folder || strlen(names_hash) != sizeof f->names_hash)
        return error_set(CASTOR_ERR_ARGUMENT, "no archive was begun, or the hash of its names is no hash");
    memcpy(f->names_hash, names_hash, sizeof f->names_hash);
    castor_status status = header_add(j, ARCHIVE_ID_RECORD, ARCHIVE_ID_BYTES);
    if (status == CASTOR_OK)
        status = piece_add(j, (piece){.kind = PIECE_ID});
    if (status == CASTOR_OK)
        status = footer_add(j);
    return status == CASTOR_OK ? piece_add(j, (piece){.kind = PIECE_DIRECTORY}) : status;
}

castor_status job_remove_add(job *j, const char *path) {
    char place[PATH_MAX];
    failure failed;
    if (!stream_find(path, place, &failed))
        return job_error(&failed, "remove");
    char **removed = table_room(j->removed, &j->removed_capacity, j->removed_count, sizeof *removed);
    if (!removed)
        return no_memory();
    j->removed = removed;
    removed[j->removed_count] = strdup(place);
    return removed[j->removed_count] ? (j->removed_count++, CASTOR_OK) : no_memory();
}

/* ---- writing */

static bool directory_put(job_file *f, failure *failed) {
    char *directory;
    size_t bytes;
    if (!archive_directory(&f->archive, &directory, &bytes))
        return failure_set(failed, ENOMEM, f->place);
    bool good = stream_put(&f->stream, directory, bytes, failed);
    free(directory);
    return good;
}

static bool memory_put(job_file *f, const piece *p, uint32_t *crc, failure *failed) {
    for (size_t done = 0; done < p->bytes;) {
        size_t room, left = p->bytes - done;
        char *to = stream_room(&f->stream, &room);
        if (room > left)
            room = left;
        if (!p->held)
            memcpy(to, p->data + done, room);
        else if (!hold_read(p->held, to, room))
            return failure_set(failed, EFAULT, f->place);
        if (f->archive.folder)
            *crc = crc32_add(*crc, to, room);
        if (!stream_advance(&f->stream, room, failed))
            return false;
        done += room;
    }
    return true;
}

static void digits_of(uint64_t value, char out[DIGITS]) {
    for (int digit = DIGITS; digit-- > 0; value >>= 4)
        out[digit] = "0123456789abcdef"[value & 15];
}

/* `crc`: of the record that is being written. */
static bool piece_put(job *j, job_file *f, const piece *p, uint32_t *crc, failure *failed) {
    char made[ARCHIVE_HEADER_MAX];
    size_t bytes = 0;
    switch (p->kind) {
    case PIECE_HEADER:
        *crc = 0;
        return stream_put(&f->stream, p->data, p->bytes, failed);
    case PIECE_MEMORY:
        return memory_put(f, p, crc, failed);
    case PIECE_BYTES:
        if (f->archive.folder)
            *crc = crc32_add(*crc, p->data, p->bytes);
        return stream_put(&f->stream, p->data, p->bytes, failed);
    case PIECE_DIGITS:
        digits_of(j->files[p->number]->checksum, made);
        bytes = DIGITS;
        break;
    case PIECE_SUM:
        stream_sum_begin(&f->stream, p->data, p->bytes);
        return true;
    case PIECE_ID:
        f->archive.count--; /* of all records but this one */
        archive_id(&f->archive, f->names_hash, made);
        f->archive.count++;
        *crc = crc32_add(0, made, bytes = ARCHIVE_ID_BYTES);
        break;
    case PIECE_FOOTER:
        f->archive.records[p->number].crc = *crc;
        bytes = archive_footer(&f->archive.records[p->number], made);
        break;
    case PIECE_DIRECTORY:
        return directory_put(f, failed);
    }
    return stream_put(&f->stream, made, bytes, failed);
}

static bool file_open(job_file *f, failure *failed) {
    bool before = f->open;
    f->open = true;
    return before || stream_open(&f->stream, f->place, failed);
}

static bool file_write(job *j, job_file *f, failure *failed) {
    uint32_t crc = 0;
    if (!file_open(f, failed))
        return false;
    f->stream.summed = f->named;
    for (uint32_t i = 0; i < f->count; i++)
        if (!piece_put(j, f, &f->pieces[i], &crc, failed))
            return false;
    if (!stream_end(&f->stream, failed))
        return false;
    f->checksum = checksum_end(&f->stream.sum);
    char digits[DIGITS];
    digits_of(f->checksum, digits);
    if (f->has_sum && !stream_fill_in(&f->stream, digits, DIGITS, f->sum_at, failed))
        return false;
    return stream_finish(&f->stream, failed);
}

static bool same_folder(const char *a, const char *b) {
    size_t length = (size_t)(strrchr(a, '/') - a);
    return length == (size_t)(strrchr(b, '/') - b) && memcmp(a, b, length) == 0;
}

/* Gives the files their names: those that are an index, or the others. */
static bool files_show(job *j, bool indexes, failure *failed) {
    for (uint32_t i = 0; i < j->count; i++)
        if (j->files[i]->is_index == indexes && !stream_show(&j->files[i]->stream, failed))
            return false;
    for (uint32_t i = 0; i < j->count; i++) {
        bool synced = false;
        for (uint32_t k = 0; k < i; k++)
            synced = synced || (j->files[k]->is_index == indexes &&
                                same_folder(j->files[k]->place, j->files[i]->place));
        if (j->files[i]->is_index == indexes && !synced && !stream_folder_sync(&j->files[i]->stream, failed))
            return false;
    }
    return true;
}

static bool files_remove(job *j, failure *failed) {
    for (uint32_t i = 0; i < j->removed_count; i++)
        if (unlink(j->removed[i]) != 0 && errno != ENOENT)
            return failure_set(failed, errno, j->removed[i]);
    return true;
}

/* Names that were given before something failed go again; unless a file has replaced another one, which then may name them. */
static void shown_undo(job *j) {
    for (uint32_t i = 0; i < j->count; i++)
        if (j->files[i]->open && j->files[i]->stream.shown && j->files[i]->stream.existed)
            return;
    for (uint32_t i = 0; i < j->count; i++)
        if (j->files[i]->open)
            stream_hide(&j->files[i]->stream);
}

static bool all_write(job *j, failure *failed) {
    for (uint32_t i = 0; i < j->count; i++)
        stream_leftovers_remove(j->files[i]->place);
    for (uint32_t i = 0; i < j->count; i++)
        if (!file_write(j, j->files[i], failed))
            return false;
    return files_show(j, false, failed) && files_show(j, true, failed);
}

bool job_write(job *j, failure *failed, const char **doing) {
    *doing = "write";
    if (!all_write(j, failed)) {
        shown_undo(j);
        return false;
    }
    *doing = "remove";
    return files_remove(j, failed);
}

/* Begins the file that appears last. */
static bool last_open(job *j, job_partial *partial, failure *failed) {
    job_file *last_shown = file_last(j);
    struct stat found;
    for (uint32_t i = 0; i < j->count; i++)
        if (j->files[i]->is_index)
            last_shown = j->files[i];
    if (!file_open(last_shown, failed))
        return false;
    stream *s = &last_shown->stream;
    if (fstat(s->fd, &found) != 0)
        return failure_set(failed, errno, s->path);
    partial->inode = found.st_ino;
    size_t folder = (size_t)(s->name - s->path);
    if (folder + sizeof s->temporary > sizeof partial->path)
        return failure_set(failed, ENAMETOOLONG, s->path);
    memcpy(partial->place, s->path, sizeof partial->place);
    memcpy(partial->path, s->path, folder);
    memcpy(partial->path + folder, s->temporary, sizeof s->temporary);
    return true;
}

castor_status job_hold(job *j, job_partial *partial) {
    failure failed;
    castor_status status = CASTOR_OK;
    if (j->count && !last_open(j, partial, &failed))
        return job_error(&failed, "write");
    hold_maps *maps = hold_maps_read();
    for (uint32_t i = 0; i < j->count && status == CASTOR_OK; i++)
        for (uint32_t k = 0; k < j->files[i]->count && status == CASTOR_OK; k++) {
            piece *p = &j->files[i]->pieces[k];
            if (p->kind == PIECE_MEMORY && !(p->held = hold_take(maps, p->data, p->bytes)))
                status = no_memory();
        }
    hold_maps_free(maps);
    return status;
}

void job_fork_child(job *j) {
    for (uint32_t i = 0; i < j->count; i++)
        if (j->files[i]->open && j->files[i]->stream.fd >= 0) { /* with the last descriptor its lock ends */
            close(j->files[i]->stream.fd);
            close(j->files[i]->stream.folder);
        }
}

const char *job_place(const job *j, uint32_t number) {
    return number < j->count ? j->files[number]->place : NULL;
}

static void file_free(job_file *f) {
    if (f->open)
        stream_drop(&f->stream);
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->pieces[i].kind == PIECE_BYTES || f->pieces[i].kind == PIECE_HEADER ||
            f->pieces[i].kind == PIECE_SUM)
            free((char *)f->pieces[i].data);
        if (f->pieces[i].held)
            hold_drop(f->pieces[i].held);
    }
    archive_free(&f->archive);
    free(f->pieces);
    free(f->place);
    free(f);
}

void job_drop(job *j) {
    for (uint32_t i = 0; i < j->count; i++)
        file_free(j->files[i]);
    for (uint32_t i = 0; i < j->removed_count; i++)
        free(j->removed[i]);
    free(j->files);
    free(j->removed);
    free(j);
}
