/* The backend of the chunk manager: the only way in which placement touches memory, disks or a clock.
 *
 * Vocabulary
 *   tier   where a chunk's bytes are, the fastest first: device, host, disk; without devices: host, disk. A chunk is used on
 *          tier 0
 *   move   a whole chunk goes from one tier to another, in the background
 *   room   the bytes that a chunk takes on a tier; during a move it takes them on both
 *
 * What every backend guarantees
 *   - a chunk's bytes are readable and writable at its address at any time, wherever they are: moves change only speed
 *   - a move that fails or is cancelled leaves the chunk where it was
 *   - every function but move_wait is called with the manager's lock held: it returns at once and does not call the manager
 *   - a function that fails sets the error's text
 *
 * What the manager promises
 *   - a chunk has one move at a time, from its tier to another one, after room_take there
 *   - it polls each move, or waits for it, until the move is done, failed or cancelled, and never uses the handle again. One
 *     thread at a time waits for a move, and nobody polls it meanwhile
 *   - it calls room_give once for each room_take. A chunk that lies on a tier from the start has its room already */
#ifndef CASTOR_PLACEMENT_BACKEND_H
#define CASTOR_PLACEMENT_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define TIERS_MAX 3

typedef enum chunk_move_end { MOVE_RUNNING, MOVE_DONE } chunk_move_end;

typedef struct chunk_move {
    uint32_t chunk;
    uint32_t from, to;
    uint64_t bytes;
    bool dirty; /* false: `to` has the same bytes already, nothing need be copied (keeps_copies) */
} chunk_move;

typedef struct chunk_backend {
    void *context;
    uint32_t tiers;
    const char *tier_names[TIERS_MAX];
    /* A slower tier keeps the bytes of a chunk that has moved up: a chunk that nobody wrote to need not be copied back. True of
     * file-backed memory. */
    bool keeps_copies;

    uint64_t (*now_ns)(void *context); /* never goes back */
    /* Model and other data together; UINT64_MAX: as much as there is. May change from call to call. */
    uint64_t (*capacity_bytes)(void *context, uint32_t tier);
    /* Bytes on tier 0 of chunks that have left it, to the manager's knowledge. May be NULL: none. */
    uint64_t (*lingering_bytes)(void *context);
    /* The most bytes of non-model data on tier 0 at any time since the last call. */
    uint64_t (*non_model_bytes)(void *context);

    castor_status (*room_take)(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes);
    void (*room_give)(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes);

    castor_status (*move_start)(void *context, const chunk_move *move, uint64_t *handle);
    /* Whether the move is over, and when it was. An error: it has failed and is over. */
    castor_status (*move_poll)(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns);
    /* The same after at most `timeout_ns`. Without the lock. */
    castor_status (*move_wait)(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns);
    /* True: the move is over and the chunk is where it was. False: it goes on. May be NULL. */
    bool (*move_cancel)(void *context, uint64_t handle);

    /* The tier on which most of the chunk is now, whatever was asked for. May be NULL. */
    uint32_t (*residency)(void *context, uint32_t chunk);
    /* Zeroed memory for tables, at registration alone; NULL: there is none. */
    void *(*allocate)(void *context, size_t bytes);
    void (*deallocate)(void *context, void *memory, size_t bytes);
} chunk_backend;

#endif
