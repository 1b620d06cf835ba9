/* Chunks: fixed-size ranges of the store's files, each holding tensors of one kind and one owner.
 *
 * A tensor is appended to its owner's current chunk, or a new chunk is begun; one larger than a chunk gets a chunk
 * of its own. Every rank makes the same calls in the same order for parameters and gradients, so the layout is the
 * same without a message; optimizer states are laid out by their owner alone, each in its own section of the file.
 * The alias of a chunk is mapped when it is first needed. */
#ifndef CASTOR_PLACEMENT_CHUNK_H
#define CASTOR_PLACEMENT_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef enum chunk_kind { CHUNK_PARAM, CHUNK_GRAD, CHUNK_OPTIM, CHUNK_KIND_COUNT } chunk_kind;
extern const char *const chunk_kind_names[CHUNK_KIND_COUNT];

typedef struct chunk {
    uint64_t offset, bytes, used; /* in the kind's file */
    int owner;
    bool small;  /* of small states, which every rank reads in every step: stays in memory */
    char *alias; /* NULL until it is mapped */
} chunk;

typedef struct chunk_list {
    int fd;
    chunk *chunks; /* in order of making */
    uint32_t count;
    uint64_t next_offset[128]; /* by section: 0 for parameters and gradients, the owner for states */
    int32_t current[128];      /* the chunk being filled, by owner; -1: none */
    int32_t small[128];        /* the one of small states */
} chunk_list;

typedef struct chunk_table {
    uint64_t chunk_bytes; /* 0: not chosen yet (chunk_search_set) */
    uint64_t
        searched_bytes; /* what the search found, which may be more than it could choose; 0: it was not asked */
    uint64_t wasted_bytes; /* of parameter chunks that no parameter fills, as the search counts them */
    uint64_t section_bytes;
    uint64_t
        unit_bytes; /* chunks begin and end at multiples of it in their file: a power of two, a page at least */
    chunk_list list[CHUNK_KIND_COUNT];
} chunk_table;

void chunk_table_init(chunk_table *t, uint64_t chunk_bytes, uint64_t section_bytes);
/* Of a table whose ranges were reserved alone. */
void chunk_table_drop(chunk_table *t);

/* Up to where the chunk of so many bytes ends. Units are no larger than chunks, so that small chunks stay small. */
uint64_t chunk_unit_round(const chunk_table *t, uint64_t bytes);
/* For a mapping of chunks: a fault reads the unit that it is in and nothing else. By default the kernel would read as far around
 * it as the disk's read-ahead goes: often megabytes, of chunks that were evicted. */
void chunk_units_map(const chunk_table *t, void *mapped, size_t bytes);
/* A range of `bytes`, aligned to `alignment` (a power of two up to a page), with memory: a lack of it is an error here and not
 * a signal later. */
castor_status chunk_allocate(chunk_table *t, chunk_kind kind, int owner, size_t bytes, size_t alignment,
                             uint64_t *offset);
/* The same in two steps: the range has no memory before it is filled. */
castor_status chunk_reserve(chunk_table *t, chunk_kind kind, int owner, size_t bytes, size_t alignment,
                            uint64_t *offset);
castor_status chunk_fill(const chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes);
/* The alias of a range that was allocated by this rank, or by another (states): mapped on first use. */
castor_status chunk_alias(chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes, char **out);
/* The number of the chunk that holds an offset; -1: none does. */
int32_t chunk_index(const chunk_table *t, chunk_kind kind, uint64_t offset);
/* Writes to a range whose memory was given back, which allocates it again; CASTOR_ERR_MEMORY when there is none. Aliases show what
 * was written. */
castor_status chunk_write(const chunk_table *t, chunk_kind kind, uint64_t offset, const void *data,
                          size_t bytes);
/* Nothing is added to the chunks of a kind any more: the next tensor begins one. */
void chunk_close(chunk_table *t, chunk_kind kind);
/* Gives the memory of a range back; its bytes read as zero afterwards. Whole pages inside the range only. */
void chunk_punch(chunk_table *t, chunk_kind kind, uint64_t offset, size_t bytes);

#endif
