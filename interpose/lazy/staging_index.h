/* The memory of the staging area: pieces of parameters under construction. All processes of a job on a node that have equal
 * pieces share one copy.
 *
 * Vocabulary
 *   area     two memory files, the index and the bytes; the first process that needs it makes it
 *   slot     room for one piece in the bytes, at slot * STAGING_PIECE_BYTES
 *   piece    up to STAGING_PIECE_BYTES of a parameter's block; looked up by its contents alone
 *   holder   a process that maps a slot; it counts once for each mapping
 *
 * Invariants
 *   - the bytes of a slot never change from the moment that another process can find it until its last holder has
 *     released it. Where a holder has forked, they never change: the child's views show them too
 *   - two pieces are one only after all their bytes were compared
 */
#ifndef CASTOR_LAZY_STAGING_INDEX_H
#define CASTOR_LAZY_STAGING_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAGING_PIECE_BYTES (2ul << 20)
#define STAGING_NO_SLOT     UINT32_MAX

struct staging_shared;
typedef struct staging_index {
    struct staging_shared *shared; /* NULL: there is none */
    int index_fd, bytes_fd;
    uint32_t member; /* this process, among those that have the staging area */
    uint64_t
        gave_up_at; /* bytes that others had found when the last wait for them failed; UINT64_MAX: none did */
} staging_index;

/* Makes the two files. Any process that gets them can open the area. */
bool staging_index_make(int fds[2]);
bool staging_index_open(const int fds[2], staging_index *out);

uint32_t staging_index_members(const staging_index *index);

/* This process becomes a holder of the slot with these contents, an existing or a new one. STAGING_NO_SLOT: there is no memory,
 * or another process takes too long to write the same contents. */
uint32_t staging_index_acquire(const staging_index *index, const void *contents, size_t bytes);
/* The contents of a slot that this process holds. */
bool staging_index_read(const staging_index *index, uint32_t slot, void *out, size_t bytes);
void staging_index_release(const staging_index *index, uint32_t slot);
/* Its bytes stay until the end of the job. */
void staging_index_pin(const staging_index *index, uint32_t slot);

/* Waits while the other processes have yet to find many of the pieces that this process was the first to add: until then they
 * keep their own copies. Ends when the others make no progress; then it does not wait again before they have found some. */
void staging_index_await_others(staging_index *index);

typedef struct staging_figures {
    uint64_t held_bytes;  /* of slots that have a holder, once each */
    uint64_t found_bytes; /* of pieces that were there already, since the beginning */
    uint64_t made_bytes;  /* of pieces that were new */
} staging_figures;
void staging_index_figures(const staging_index *index, staging_figures *out);

#endif
