/* The chunk manager: which chunks are on tier 0 when, within a budget.
 *
 * A process has one manager for the chunks that it places. The manager knows chunks by number, in the order of registration, and
 * sees the world through its backend alone (backend.h). It learns of accesses and of the events between them (moments.h), and
 * moves chunks: ahead of an access that it foresees, else in the access.
 *
 * Invariants (chunk_manager_check)
 *   - an access is correct without the manager: late, wrong or missing information costs only time
 *   - a chunk that is in use or pinned never begins to leave tier 0
 *   - one move of a chunk at a time, however many threads want it
 *   - the bytes of a tier are the sum of its chunks, those that move included
 *   - a failed move changes nothing: the chunk is where it was, and is not chosen again as a victim in this step
 *
 * All functions are safe from any thread. One lock, which nobody holds while he waits for a move; a wait lasts
 * `timeout_ns` at most. Tables grow at registration; nothing else allocates. After a fork, the child's copy must
 * not be used. */
#ifndef CASTOR_PLACEMENT_CHUNK_MANAGER_H
#define CASTOR_PLACEMENT_CHUNK_MANAGER_H

#include "backend.h"
#include "chunk.h"
#include "chunk_statistics.h"
#include "moments.h"
#include "placement.h"

typedef struct chunk_manager chunk_manager;

typedef struct chunk_manager_settings {
    placement_settings placement;
    moments_settings moments;
    uint64_t timeout_ns;      /* of a wait, by the system's clock */
    uint32_t moves_at_a_time; /* in each direction, of those that nobody waits for; at most 32 */
} chunk_manager_settings;

chunk_manager_settings chunk_manager_defaults(placement_policy policy);

/* The backend's operations are copied, its context is not. */
castor_status chunk_manager_create(chunk_manager **out, const chunk_backend *backend,
                                   const chunk_manager_settings *settings);
/* Waits for the moves that are under way. No other thread may be inside. */
void chunk_manager_destroy(chunk_manager *m);

/* A chunk that lies on `tier`, where its room counts as taken. Any time. */
castor_status chunk_manager_add_chunk(chunk_manager *m, chunk_kind kind, uint64_t bytes, uint32_t tier,
                                      uint32_t *chunk);
/* A chunk that nobody uses becomes another one, of `bytes`, on the tier where it is: what is not needed any more gives its number
 * to what comes. None of its uses is foreseen. CASTOR_ERR_ARGUMENT: it is in use, pinned, or on its way. */
castor_status chunk_manager_reuse_chunk(chunk_manager *m, uint32_t chunk, uint64_t bytes);
/* The static policy decides anew where chunks belong; the others go there in time. */
void chunk_manager_place(chunk_manager *m);
/* A moment of the step begins: the manager predicts what comes next and starts the moves for it. */
void chunk_manager_event(chunk_manager *m, moment_event event, uint32_t identity);
void chunk_manager_step_end(chunk_manager *m);
/* Notes moves that have ended and starts what is due. Whoever learns that a move has ended calls it. */
void chunk_manager_advance(chunk_manager *m);

/* The chunk is on tier 0 when this returns, and stays there until as many releases. On an error it is where it was; it may
 * be used all the same, and there is nothing to release. CASTOR_ERR_MEMORY names what the capacity lacks. */
castor_status chunk_manager_access(chunk_manager *m, uint32_t chunk, bool write);
castor_status chunk_manager_release(chunk_manager *m, uint32_t chunk);
/* It was used without an access, and so is on tier 0 by now. */
void chunk_manager_touch(chunk_manager *m, uint32_t chunk, bool write);
/* Takes over from the backend where the next `count` idle chunks are; each call goes on where the last one ended. */
void chunk_manager_resync(chunk_manager *m, uint32_t count);
/* The chunk left tier 0 and parts of it are still there: they are evicted too, unless it is in use by now. */
void chunk_manager_leave_again(chunk_manager *m, uint32_t chunk);

/* Moves and waits for it. An error: the chunk is in use, or there is no room. */
castor_status chunk_manager_move(chunk_manager *m, uint32_t chunk, uint32_t tier);
/* A pinned chunk does not leave the tier that it is on, but for an access. Pins count. */
castor_status chunk_manager_pin(chunk_manager *m, uint32_t chunk);
castor_status chunk_manager_unpin(chunk_manager *m, uint32_t chunk);

uint32_t chunk_manager_tier(chunk_manager *m, uint32_t chunk);
/* The chunk's place in the order of victims: higher leaves first; 0: it may not leave now. */
uint64_t chunk_manager_key(chunk_manager *m, uint32_t chunk);
/* The moment of its next use (moments_next_use). */
uint64_t chunk_manager_next_use(chunk_manager *m, uint32_t chunk);
void chunk_manager_statistics(chunk_manager *m, chunk_statistics *out);
/* The recording that is followed, or was last, as text (moments.h); false: there is none yet. */
bool chunk_manager_write_recording(chunk_manager *m, moments_sink *sink, void *context);

/* CASTOR_ERR_MISMATCH: an invariant does not hold. */
castor_status chunk_manager_check(chunk_manager *m);

#endif
