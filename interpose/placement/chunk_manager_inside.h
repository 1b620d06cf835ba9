/* What the parts of the chunk manager share: chunk_manager.c (registration, accesses and events) and chunk_room.c (moves, waits,
 * victims and prefetch). Every field is guarded by `lock`, and every function here is
 * called with it; those that say so release it while they wait, so anything may have changed when they return. */
#ifndef CASTOR_PLACEMENT_CHUNK_MANAGER_INSIDE_H
#define CASTOR_PLACEMENT_CHUNK_MANAGER_INSIDE_H

#include <pthread.h>
#include "chunk_manager.h"
#include "prefetch.h"
#include "victims.h"

#define FLIGHTS_MAX 256

typedef struct managed_chunk {
    uint64_t bytes;
    uint64_t last_use; /* manager's `uses` at that time */
    uint64_t handle, begin_ns;
    uint32_t users, pins;
    uint8_t kind;
    uint8_t tier;        /* while it moves, where it comes from */
    uint8_t static_tier; /* to which it goes back under the static policy */
    uint8_t to;
    bool moving;
    bool waited;     /* a thread waits for the move in the backend */
    bool loading;    /* a thread makes room for it */
    bool dirty;      /* slower tiers have no copy of these bytes */
    bool prefetched; /* came, or comes, without an access, and had none since */
    bool failed;     /* a move failed in this step: nobody moves it but an access */
} managed_chunk;

struct chunk_manager {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a move has ended, or room was made */
    chunk_backend backend;
    chunk_manager_settings settings;

    managed_chunk *chunks; /* the first of the tables by chunk, which are one block */
    uint32_t chunks_count, chunks_room;
    victims victims[TIERS_MAX];
    uint64_t coming[TIERS_MAX], going[TIERS_MAX]; /* bytes of moves to and from a tier: parts of its bytes */
    uint32_t flights[FLIGHTS_MAX], flights_count; /* the chunks that move */
    uint32_t flights_of[TIERS_MAX][TIERS_MAX];
    bandwidth bandwidth[TIERS_MAX][TIERS_MAX];

    moments moments;
    void *moments_tables;
    uint64_t scan;        /* uses before this number need no prefetch (moments_upcoming_get) */
    uint64_t event_ns;    /* when the present moment began, waits left out */
    uint64_t clock_ns;    /* that clock, which never goes back */
    uint64_t non_model;   /* most bytes since the present moment began */
    uint64_t uses;        /* accesses so far */
    uint32_t resync_next; /* the chunk */
    chunk_statistics statistics;
};

/* The system's time by which a wait has to be over. */
uint64_t wait_deadline(const chunk_manager *m);
/* The backend's clock without the time that accesses waited. */
uint64_t manager_now(chunk_manager *m);

/* Asks for non-model data. */
void non_model_sample(chunk_manager *m);

/* The chunk's place in the order of victims, after anything that decides it has changed. */
void chunk_refresh(chunk_manager *m, uint32_t chunk);
bool chunk_may_leave(const chunk_manager *m, uint32_t chunk);
uint64_t chunk_key(const chunk_manager *m, uint32_t chunk);
/* The chunk is on another tier, without a move. */
void chunk_settle(chunk_manager *m, uint32_t chunk, uint32_t tier);

/* Begins a move to a tier that has room as far as the manager knows. An error: nothing has changed. */
castor_status move_begin(chunk_manager *m, uint32_t chunk, uint32_t to);
/* Notes the moves that have ended. */
void moves_collect(chunk_manager *m);
/* Waits a while for the end of the chunk's move, without the lock; by the deadline, an error. CASTOR_OK says nothing
 * about the move: look again. The error of a move that failed is passed on to one who waits for it. */
castor_status move_await(chunk_manager *m, uint32_t chunk, uint64_t deadline);
/* The same for room, or for another thread to load the chunk. */
castor_status change_await(chunk_manager *m, uint32_t chunk, uint64_t deadline);
/* True: the chunk does not move any more, and is where it was. */
bool move_cancel(chunk_manager *m, uint32_t chunk);

/* Room for `chunk` on a tier, by moving victims to slower ones, waiting for them without the lock. */
castor_status room_make(chunk_manager *m, uint32_t tier, uint32_t chunk, uint64_t deadline);
/* Whether room_make could have an end: tier 0 has room for `chunk` beside those that stay. */
bool room_possible(chunk_manager *m, uint32_t chunk);
/* Starts moving a victim away: to the first slower tier with room. */
castor_status victim_evict(chunk_manager *m, uint32_t chunk);
/* Starts what is due: chunks that belong elsewhere, room for what comes, and what comes. */
void room_plan(chunk_manager *m);

#endif
