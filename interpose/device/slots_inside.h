/* What the parts of slots share: slots_region.c (which storage lies where, the device memory and who has it) and slots.c above it (uses,
 * writers, copies, what the chunk manager asks for).
 *
 * Vocabulary
 *   number    of a storage: its place in the table, and its chunk's number. Numbers of forgotten storages are used again
 *   entry     a range of the region: a slot, or memory that a slot has left and whose uses may not be passed yet
 *   mark      an event that the copy stream may have to wait for
 *   batch     writers that one event stands for: those of one stream from the one that opened it until it is closed, when the event is
 *             recorded. Batches have serial numbers, and the copy stream waits for them in this order
 *   ordered   of a storage: every writer that a copy must wait for is in a batch. Before its first copy, and after an error, a
 *             storage is not: its next copy is made by a use, and waits for all that the use comes after
 *   run       neighbours in the region that leave it together, to make one range
 *
 * Locks: `slots.lock` is the outer one, the manager's the inner one. The manager calls the backend with both held, and no wait of the
 * manager's ever gives the outer one up: its moves are over when they begin. All fields are guarded by `lock` but for `units` and `copied`. */
#ifndef CASTOR_DEVICE_SLOTS_INSIDE_H
#define CASTOR_DEVICE_SLOTS_INSIDE_H

#include <pthread.h>
#include "placement/chunk_manager.h"
#include "slots.h"

#define SLOTS_NONE UINT32_MAX
/* A slot has its storage's address modulo this: what a library chooses by alignment is the same, and so are its results. */
#define SLOTS_ALIGNMENT 512
#define SLOTS_KEPT      (UINT32_C(1) << 31) /* of slots.units: the device keeps an address in the home there */
#define SLOTS_BATCHES                                                                                        \
    128 /* of writers, that the copy stream has not waited for; beyond, it waits for the oldest at once */
#define SLOTS_UNUSED_STEPS 4 /* after so many the region is of no use */
#define SLOTS_STREAMS      4 /* streams in which one slot is used; beyond, the copy stream waits at once */

typedef struct slots_mark {
    uint64_t event, stream;
    bool made;    /* the event exists */
    bool pending; /* it was recorded in `stream`, and the copy stream has not waited for that record */
} slots_mark;

/* Those that are closed are before `last`, which is open or empty. */
typedef struct slots_batches {
    uint64_t last, waited; /* the copy stream has waited for all up to `waited` */
    uint64_t all;          /* the batch of the last writer of anything */
    bool open;             /* `last` has writers, in `stream` */
    uint64_t stream;
    uint64_t events[SLOTS_BATCHES]; /* of the batch with that number, modulo their count; 0: not made yet */
} slots_batches;

typedef struct slots_entry {
    uint64_t first, bytes;   /* in the region */
    uint64_t key;            /* while a run is looked for (chunk_manager_key) */
    uint32_t storage;        /* SLOTS_NONE: its storage has left it */
    uint32_t next, previous; /* by address; `next` alone in the list of those without a range */
    slots_mark used[SLOTS_STREAMS];
    uint64_t ready; /* the event after its copy */
    bool ready_made;
    bool stale; /* a writer came after its copy: never to be read again */
    bool ahead; /* its copy was not made by a use, and it had none yet */
    bool kept;  /* a use could not be noted: never to be written again */
} slots_entry;

typedef struct slots_storage {
    uintptr_t address;
    size_t bytes; /* 0: the number is free */
    uintptr_t home, home_end;
    uint32_t unit;      /* the home's first one */
    uint64_t room;      /* bytes in the region: the chunk's */
    uint64_t ordered;   /* == slots.order: it is */
    uint64_t writer;    /* the batch of its last writer */
    uint32_t entry;     /* SLOTS_NONE: it has no slot */
    uint32_t users;     /* uses that have begun and not ended */
    uint32_t next_free; /* of free numbers */
    bool forgotten;     /* not found by address any more; its number is free after its last use */
    bool home_only;     /* it may be written unseen: never in a slot */
    bool copied;        /* it was copied once, or begins to be */
} slots_storage;

/* Of those that are not forgotten, by address. */
typedef struct slots_place {
    uintptr_t address;
    uint32_t number;
} slots_place;

struct slots {
    pthread_mutex_t lock;
    device_driver driver;
    homes *homes;
    copies *copies;       /* set before the first use */
    uintptr_t first, end; /* the homes' range */
    int device;
    uint32_t unit_bits; /* of the driver's unit */
    /* By unit of homes (homes_unit), of its home: storages, and SLOTS_KEPT; how many of them were ever copied. Atomic */
    uint32_t *units, *copied;
    chunk_manager *manager;

    slots_storage *storages;
    slots_place *places;
    slots_entry *entries;
    uint32_t storages_room, storages_count, places_count; /* of entries there is twice the room */
    uint32_t storages_free, entries_free, entries_first;  /* heads of lists */

    uint64_t region_most, region_bytes; /* what it may have; what it has, or may have if there is none */
    uintptr_t region;                   /* 0: not made yet */
    uint64_t region_pages,
        copy_stream;      /* copy_stream: 0: not made yet; then for good, since marks refer to it */
    uint64_t uses_before; /* at the end of the last step */
    uint32_t
        unused_steps; /* that have ended since something was read in a home on the host, or in a slot of it */
    uint32_t region_pause; /* steps that must end before it is tried again */
    uint32_t
        region_given; /* the last pause after its memory was given to others; each is longer than the one before */
    bool warned;
    bool fixed;          /* homes on the host lie outside of their range (homes.h) */
    bool used_copy;      /* a copy was made for `user` */
    uintptr_t too_large; /* a storage's address (slots_too_large) */
    uint64_t too_large_bytes;

    slots_batches batches;
    uint64_t order;  /* what slots_storage.ordered has to be */
    slots_mark join; /* what a use comes after */
    uint64_t passed; /* an event, for slots_copies_join; 0: not made yet */
    uint32_t user;   /* the storage that a use wants now; SLOTS_NONE: none */
    uint64_t user_stream;
    uint32_t wanted; /* a storage for which no range was found; SLOTS_NONE: none */
    slots_statistics statistics;
};

/* Zeroed memory; NULL: there is none. */
void *slots_map(size_t bytes);
void slots_unmap(void *memory, size_t bytes);

/* True: a storage may lie in a home there. Lock-free. */
bool slots_touched(const slots *s, uintptr_t address, size_t bytes);
/* The storage at an address; SLOTS_NONE: there is none. */
uint32_t slots_find(const slots *s, uintptr_t address);
/* The places of the storages that overlap a range, [result, *end); 0 bytes: of the home that holds the address. */
uint32_t slots_places(const slots *s, uintptr_t address, size_t bytes, uint32_t *end);
/* The slot goes, if nobody uses it, and the number is free if the storage is forgotten. */
void slots_storage_settle(slots *s, uint32_t number);
void slots_tables_end(slots *s);
/* From now on its writers matter. */
void slots_storage_copied(slots *s, slots_storage *st);

/* The slot does not hold what its home holds any more. */
void slots_stale(slots *s, uint32_t number);
/* The copy stream waits for it, if it has not. */
castor_status slots_mark_wait(slots *s, slots_mark *mark);

castor_status slots_region_make(slots *s);
castor_status slots_region_end(slots *s);
/* CASTOR_ERR_MEMORY: no range of that many bytes is free. The copy stream waits for the uses of what lay there. */
castor_status slots_range_take(slots *s, uint32_t number);
void slots_range_leave(slots *s, uint32_t number);
/* A range for a storage becomes free, by the run of idle slots whose soonest use is farthest, and later than what has `key`: 0: whatever it is. */
bool slots_run_free(slots *s, uint32_t number, uint64_t key);

#endif
