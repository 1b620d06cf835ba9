/* The pool's memory: pieces of parameters under construction, once for all processes of a job on this node that hold them.
 *
 * Vocabulary
 *   pool     two memory files: the index (this header's) and the bytes; whoever first asks for it makes it
 *   slot     room for one piece in the bytes, at slot * POOL_PIECE_BYTES
 *   piece    the contents of up to POOL_PIECE_BYTES of a parameter's block; found by its contents alone
 *   holder   a process that maps a slot, as often as it does
 *
 * Invariants
 *   - the bytes of a slot never change from the moment that another process may find it until its last holder has left,
 *     and until the end of the job where a holder has forked: the child's views show them too
 *   - two pieces are one only after all their bytes were compared
 */
#ifndef CASTOR_LAZY_POOL_INDEX_H
#define CASTOR_LAZY_POOL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_PIECE_BYTES (2ul << 20)
#define POOL_NO_SLOT     UINT32_MAX

struct pool_shared;
typedef struct pool_index {
    struct pool_shared *shared; /* NULL: there is none */
    int index_fd, bytes_fd;
    uint32_t member; /* this process, among those that have the pool */
    uint64_t
        vainly_at; /* bytes that others had found when it was waited for them in vain; UINT64_MAX: never */
} pool_index;

/* Makes the two files, of which the pool can be opened in any process. */
bool pool_index_make(int fds[2]);
bool pool_index_open(const int fds[2], pool_index *out);

uint32_t pool_index_members(const pool_index *index);

/* This process becomes a holder of the slot that has these contents: of one that is there, or of a new one. POOL_NO_SLOT:
 * there is no memory, or another process is just writing them and does not come to an end. */
uint32_t pool_index_hold(const pool_index *index, const void *contents, size_t bytes);
/* The contents of a slot that this process holds. */
bool pool_index_read(const pool_index *index, uint32_t slot, void *out, size_t bytes);
void pool_index_leave(const pool_index *index, uint32_t slot);
/* Its bytes stay until the end of the job. */
void pool_index_pin(const pool_index *index, uint32_t slot);

/* Waits while many of the pieces that this process has brought were found by no other one yet: what they replaced is still
 * held by the others. Ends when these make no progress; then it does not wait again before they have found some. */
void pool_index_await_others(pool_index *index);

typedef struct pool_figures {
    uint64_t held_bytes;  /* of slots that somebody holds, once each */
    uint64_t found_bytes; /* pieces that a process found there, since the beginning */
    uint64_t made_bytes;  /* pieces that a process was the first to bring */
} pool_figures;
void pool_index_figures(const pool_index *index, pool_figures *out);

#endif
