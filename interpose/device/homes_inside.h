/* What the parts of homes share: homes_flip.c (tiers, and how a home's pages change) and homes.c above it (birth, death, which homes
 * move, look-ups).
 *
 * Vocabulary
 *   unit     here: the number of a unit of the reserved range, from 0; fixed homes have the units after these, a number for each unit
 *            of their bytes
 *   moving   a table with the pages that change places with those of `pages` in a flip
 *   stuck    a home of which a piece could neither change nor change back: it is found and destroyed as others are, and never
 *            flipped. It is lost if a piece has no pages at all
 *   shared   a table with the shared pages of a home, which the home has beside its own ones, or as these if it is joined. They are
 *            released with it
 *   given up a unit that could not be unmapped when a home was not created after all: nothing is mapped there again
 *
 * Every field is guarded by `lock` but those that are constant or atomic. A unit's entries in the tables are zero where no home is;
 * the tables are mapped without memory, so that only entries that were used take some. */
#ifndef CASTOR_DEVICE_HOMES_INSIDE_H
#define CASTOR_DEVICE_HOMES_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include "homes.h"

#define OWNER_GIVEN_UP UINT32_MAX
#define TIER_JOINED    (DEVICE_TIER_COUNT + 1) /* on the host, and can only be read */

/* In the entry of its first unit. `older`, `younger`: homes of its kind, as their first unit + 1; 0: none. */
typedef struct home_record {
    uint32_t units, older, younger;
    uint8_t kind, tier;
    bool stuck;
    bool joined;      /* its pages are the shared ones */
    bool taken;       /* another rank has made these */
    bool away;        /* this process does not compute with it */
    uintptr_t beside; /* 0: it has no shared pages */
} home_record;

/* What decides about returns to the device. Zero: nothing was seen yet. */
typedef struct home_returns {
    uint64_t others
        [HOMES_RETURN_STEPS]; /* the device's bytes that homes did not have at the end of the last steps, as a ring */
    uint32_t seen;            /* of them are known */
    uint64_t capacity;      /* of the device */
    uint64_t steps, resume; /* nothing returns before step `resume` */
    uint64_t pause;         /* steps, of the last pause */
    bool moved;             /* something returned since the last rescue */
} home_returns;

struct homes {
    pthread_mutex_t lock;
    /* Constant. */
    device_driver driver;
    int device;
    uintptr_t address;
    size_t unit_bytes, mapped_bytes; /* mapped_bytes: of this structure with its tables */
    uint32_t units, range_units;     /* range_units: of the reserved range */
    bool fixed;
    /* Where homes are fixed, else NULL. */
    _Atomic uint32_t
        *fixed_units; /* by address / unit_bytes: the unit there + 1; written under the lock, read without */
    uintptr_t *fixed_addresses; /* by unit - range_units */

    uint32_t *owner;      /* by unit: the first unit of the home there, + 1; 0: none, or OWNER_GIVEN_UP */
    home_record *records; /* by first unit */
    uint64_t *
        pages; /* by first unit of a piece; 0 where a piece of a stuck home has none. Of a fixed home: the driver's block */
    uint64_t *moving;       /* the same; zero outside of a flip */
    uint64_t *shared;       /* the same; 0: none */
    _Atomic uint8_t *tiers; /* by unit: tier + 1, TIER_JOINED; written under the lock, read without */

    uint32_t youngest[CHUNK_KIND_COUNT]; /* first unit + 1 */
    uint32_t hints[2];      /* no unit of the range before the first is free, no other before the second */
    uint64_t allowed_bytes; /* on the device: the budget, or what was there when a smaller one was set */
    uint64_t stuck_bytes;   /* of those on the device */
    _Atomic uint64_t evictable; /* bytes on the device without stuck ones */
    uintptr_t alias;            /* a range of one piece, for copies; 0: not reserved yet */
    placement_settings placement;
    home_returns returns;
    _Atomic bool fell_short; /* since the last step's end */
    _Atomic bool were_short; /* ever */
    homes_statistics statistics;
};

static inline uintptr_t unit_address(const homes *h, uint32_t unit) {
    return unit < h->range_units ? h->address + (uintptr_t)unit * h->unit_bytes
                                 : h->fixed_addresses[unit - h->range_units];
}
/* The next piece of a home that has so many units left. */
static inline uint32_t piece_units(uint32_t left) {
    return left >= HOMES_PIECE_UNITS ? HOMES_PIECE_UNITS : 1u << (31 - __builtin_clz(left));
}
static inline uint64_t tier_bytes(const homes *h, device_tier tier) {
    uint64_t sum = 0;
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        sum += h->statistics.bytes[kind][tier];
    return sum;
}
static inline uint32_t *unit_hint(homes *h, uint32_t unit) {
    return &h->hints[unit >= h->range_units];
}
/* A home's bytes come to a tier, or leave it. */
void tier_add(homes *h, const home_record *r, device_tier tier);
void tier_subtract(homes *h, const home_record *r, device_tier tier);
/* Bytes that the budget still allows on the device. */
uint64_t budget_left(const homes *h);
/* Whether so many bytes more may be there: under the budget, or in the host's memory. */
bool tier_has_room(const homes *h, device_tier tier, uint64_t bytes);
/* The same for a home that is on the other tier, with a text. */
castor_status room_check(homes *h, device_tier to, uint64_t bytes);
/* The home's own or shared pages at its addresses, with the access that it has to them. */
castor_status piece_map(homes *h, uint32_t at, size_t bytes, uint64_t pages);
/* The first unit of the home that begins there; UINT32_MAX: none does. */
uint32_t home_unit(const homes *h, uintptr_t address);
/* Pages `moving` take the place of those of a home. All pieces change, or none does. */
castor_status home_change(homes *h, uint32_t unit, uint32_t end);
/* Gives back the pages of `moving`. */
void moving_release(homes *h, uint32_t unit, uint32_t end);
/* The home has no shared pages any more. It is not joined, or its addresses are unmapped. An error: they stay. */
castor_status shared_end(homes *h, uint32_t unit);
/* ... its pages are not the shared ones any more. */
void joined_end(homes *h, uint32_t unit);
/* The device is at rest. `rescues`: for an allocation. */
castor_status flip_drained(homes *h, uint32_t unit, device_tier to, bool rescues);
/* The table of look-ups. `shown`: 0: there is no home. */
void tier_show(homes *h, uint32_t unit, uint32_t units, uint8_t shown);
/* A piece of the home could not be changed back: `lost`: it has no pages. Sets the text and returns `status`. */
castor_status home_stick(homes *h, uint32_t unit, bool lost, castor_status status);

#endif
