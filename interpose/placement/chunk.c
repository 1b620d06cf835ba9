#include "chunk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/file_bytes.h"

/* Of a kind. The table is reserved as a whole, and takes memory as it fills: other threads read it while it grows. */
#define CHUNKS_MAX (1 << 20)

const char *const chunk_kind_names[CHUNK_KIND_COUNT] = {"parameter", "gradient", "optimizer state"};

void chunk_table_init(chunk_table *t, uint64_t chunk_bytes, uint64_t section_bytes) {
    memset(t, 0, sizeof *t);
    t->chunk_bytes = pages_round(chunk_bytes);
    t->section_bytes = section_bytes;
    t->unit_bytes = PAGE_BYTES;
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        chunk_list *list = &t->list[kind];
        list->fd = -1;
        for (int section = 0; section < 128; section++) {
            list->next_offset[section] = kind == CHUNK_OPTIM ? (uint64_t)section * section_bytes : 0;
            list->current[section] = list->small[section] = -1;
        }
    }
}

void chunk_table_drop(chunk_table *t) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        if (t->list[kind].chunks)
            munmap(t->list[kind].chunks, CHUNKS_MAX * sizeof(chunk));
        t->list[kind].chunks = NULL;
    }
}

uint64_t chunk_unit_round(const chunk_table *t, uint64_t bytes) {
    uint64_t unit = t->unit_bytes;
    while (unit > PAGE_BYTES && unit > t->chunk_bytes)
        unit /= 2;
    return (bytes + unit - 1) & ~(unit - 1);
}

void chunk_units_map(const chunk_table *t, void *mapped, size_t bytes) {
    if (t->unit_bytes == PAGE_BYTES)
        return;
    /* Both together mean one huge page at a time, also where the file system has none and the pages are single ones. The second
     * alone, for smaller chunks, means a page. */
    if (t->chunk_bytes < t->unit_bytes || madvise(mapped, bytes, MADV_HUGEPAGE) == 0)
        madvise(mapped, bytes, MADV_RANDOM);
}

static castor_status chunk_begin(chunk_table *t, chunk_kind kind, int owner, uint64_t bytes, int32_t *index) {
    chunk_list *list = &t->list[kind];
    int section = kind == CHUNK_OPTIM ? owner : 0;
    bytes = chunk_unit_round(t, bytes);
    if (list->next_offset[section] + bytes > (uint64_t)(section + 1) * t->section_bytes)
        return error_set(CASTOR_ERR_MEMORY, "the file of the %s chunks is full", chunk_kind_names[kind]);
    if (!list->chunks) {
        void *reserved = mmap(NULL, CHUNKS_MAX * sizeof(chunk), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED)
            return error_set(CASTOR_ERR_MEMORY, "no memory for the table of chunks");
        list->chunks = reserved;
    }
    if (list->count == CHUNKS_MAX)
        return error_set(
            CASTOR_ERR_MEMORY,
            "there are %d %s chunks already, the most that are supported: set a larger CASTOR_CHUNK_SIZE",
            CHUNKS_MAX, chunk_kind_names[kind]);
    *index = (int32_t)list->count++;
    list->chunks[*index] = (chunk){.offset = list->next_offset[section], .bytes = bytes, .owner = owner};
    list->next_offset[section] += bytes;
    return CASTOR_OK;
}

static castor_status no_room(chunk_kind kind, size_t bytes, int error) {
    if (error != ENOSPC && error != EDQUOT && error != ENOMEM && error != EFBIG)
        return error_set(CASTOR_ERR_SYSTEM,
                         "cannot allocate %B of %s chunks (errno %d): see the kernel's log (dmesg), or set "
                         "CASTOR_OFFLOAD_DIR to a folder on another disk",
                         (uint64_t)bytes, chunk_kind_names[kind], error);
    return error_set(CASTOR_ERR_MEMORY,
                     "no room for %B of %s chunks: give the job more memory, more disk under "
                     "CASTOR_OFFLOAD_DIR, or a smaller model",
                     (uint64_t)bytes, chunk_kind_names[kind]);
}

castor_status chunk_fill(const chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes) {
    int failed = EINTR; /* signals may come often; they do not come for ever */
    for (int tries = 0; failed == EINTR && tries < 1000; tries++)
        failed = posix_fallocate(t->list[kind].fd, (off_t)offset, (off_t)bytes);
    return failed ? no_room(kind, bytes, failed) : CASTOR_OK;
}

castor_status chunk_reserve(chunk_table *t, chunk_kind kind, int owner, size_t bytes, size_t alignment,
                            uint64_t *offset) {
    chunk_list *list = &t->list[kind];
    bool small = kind == CHUNK_OPTIM && alignment < PAGE_BYTES;
    int32_t *current = small ? &list->small[owner] : &list->current[owner], index = *current;
    uint64_t at = 0;
    if (index >= 0)
        at = (list->chunks[index].used + alignment - 1) & ~(uint64_t)(alignment - 1);
    if (index < 0 || at + bytes > list->chunks[index].bytes) {
        bool own = bytes > t->chunk_bytes;
        castor_status status = chunk_begin(t, kind, owner, own ? pages_round(bytes) : t->chunk_bytes, &index);
        if (status)
            return status;
        if (!own) /* a chunk of its own does not end the one being filled */
            *current = index;
        list->chunks[index].small = small;
        at = 0;
    }
    chunk *c = &list->chunks[index];
    c->used = at + bytes;
    *offset = c->offset + at;
    return CASTOR_OK;
}

castor_status chunk_allocate(chunk_table *t, chunk_kind kind, int owner, size_t bytes, size_t alignment,
                             uint64_t *offset) {
    castor_status status = chunk_reserve(t, kind, owner, bytes, alignment, offset);
    if (status || (status = chunk_fill(t, kind, *offset, bytes)) == CASTOR_OK)
        return status;
    chunk *c = &t->list[kind].chunks[chunk_index(t, kind, *offset)];
    c->used = *offset - c->offset; /* another one may fit there */
    return status;
}

castor_status chunk_alias(chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes, char **out) {
    chunk_list *list = &t->list[kind];
    int32_t index = chunk_index(t, kind, offset);
    chunk *c = index < 0 ? NULL : &list->chunks[index];
    if (!c || offset + bytes > c->offset + c->bytes)
        return error_set(CASTOR_ERR_ARGUMENT, "no %s chunk holds offset %lu", chunk_kind_names[kind],
                         (unsigned long)offset);
    if (!c->alias) {
        castor_status status = pages_map_alias(list->fd, c->offset, c->bytes, NULL, &c->alias);
        if (status)
            return status;
        chunk_units_map(t, c->alias, c->bytes);
        /* A forked child has its own snapshot; it must never write here. */
        madvise(c->alias, c->bytes, MADV_DONTFORK);
    }
    *out = c->alias + (offset - c->offset);
    return CASTOR_OK;
}

int32_t chunk_index(const chunk_table *t, chunk_kind kind, uint64_t offset) {
    const chunk_list *list = &t->list[kind];
    for (uint32_t i = 0; i < list->count; i++)
        if (offset >= list->chunks[i].offset && offset - list->chunks[i].offset < list->chunks[i].bytes)
            return (int32_t)i;
    return -1;
}

castor_status chunk_write(const chunk_table *t, chunk_kind kind, uint64_t offset, const void *data,
                          size_t bytes) {
    int failed = file_bytes_write(t->list[kind].fd, data, bytes, offset);
    return failed ? no_room(kind, bytes, failed) : CASTOR_OK;
}

void chunk_punch(chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes) {
    uint64_t from = pages_round(offset), to = (offset + bytes) & ~(PAGE_BYTES - 1);
    if (to > from)
        fallocate(t->list[kind].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                  (off_t)(to - from));
}

void chunk_close(chunk_table *t, chunk_kind kind) {
    for (int owner = 0; owner < 128; owner++)
        t->list[kind].current[owner] = -1;
}
