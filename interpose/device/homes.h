/* Homes: where the model's data lies on a device, from birth to death.
 *
 * Vocabulary
 *   home   a range of one reserved range of addresses, a whole number of units, backed by pages of the device or of the host
 *   kind   of a home: parameters, gradients or optimizer states (placement/chunk.h)
 *   piece  the pages of a home are created and mapped in pieces: of a power of two of units, HOMES_PIECE_UNITS at most
 *   fixed  a home on the host where the driver maps no pages of the host: memory that the driver has allocated outside of the range,
 *          at the same address for the device and the processors. It stays there until it dies, and so do those on the device
 *   flip   a home's pages change from the device's to the host's or back, at the same address, with their bytes
 *   budget the bytes of the device's memory that homes may take
 *   shared pages  of the host, that the ranks of a node have together: one rank makes them, the others take them by their descriptors
 *   joined home   one whose pages are shared ones. It is on the host, and can only be read
 *   beside        another address of a home's shared pages, where they can be written, whether the home is joined or has pages of its own
 *
 * Invariants (homes_check)
 *   - every address of a home is mapped, readable and, unless it is joined, writable by the device, from home_create to home_destroy,
 *     except inside of a flip, before which the caller closes the gate (events/gate.h) and the device is drained
 *   - a flip that fails leaves the home with its bytes where it was. If the driver does not let it, the text says whether the
 *     home is lost, or only lies on both tiers; it is not flipped any more
 *   - the bytes of a tier are the sum of its homes'
 *   - homes of a device take at most the budget, if they were not larger before it was set
 *
 * A home is on the device while there is room under the budget and in the driver; else it is on the host. Host memory is bounded by
 * driver->host_room. The static policy begins with the host for its share of a kind. Under the automatic one, homes that are on the host
 * come back between steps when there is lasting room. One order decides who moves: states leave first, then gradients, then parameters,
 * of each kind the youngest, and they come back in the reverse order. Safe from any thread: one lock for each device. Nothing here is called with the lock of slots held. Tables are
 * mapped anonymously (mmap), sized by the reserved range; no malloc. After a fork the child's copy must not be used. */
#ifndef CASTOR_DEVICE_HOMES_H
#define CASTOR_DEVICE_HOMES_H

#include "driver.h"
#include "placement/placement.h"

#define HOMES_PIECE_UNITS  32
#define HOMES_NO_UNIT      UINT32_MAX
#define HOMES_RETURN_BYTES (UINT64_C(256) << 20) /* or one home, if it is larger */
#define HOMES_RETURN_STEPS 8                     /* for so many there must have been room */

typedef struct homes homes;

typedef struct home {
    uintptr_t address;
    size_t bytes; /* whole units */
    chunk_kind kind;
    device_tier tier;
} home;

typedef struct homes_statistics {
    uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT], peak_bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT];
    uint64_t count[CHUNK_KIND_COUNT];
    uint64_t flips[DEVICE_TIER_COUNT], flipped_bytes[DEVICE_TIER_COUNT]; /* to that tier */

    uint64_t budget_bytes; /* UINT64_MAX: none was set */
    uint64_t flip_ns;      /* with the waits for the device */
    uint64_t rescues;      /* calls of homes_evict that freed something */
    uint64_t refused;      /* homes that could not be created */
    uint64_t taken_bytes;  /* of `bytes` on the host: of joined homes whose pages another rank has made */
    uint64_t
        beside_bytes; /* of pages that this rank has made, and whose home is not joined: they are not among `bytes` */
    uint64_t away_bytes; /* of `bytes` on the host: of homes with which this process does not compute */
} homes_statistics;

/* `address`, `reserved_bytes`: addresses without pages that the caller has reserved and keeps, whole units. `budget_bytes`:
 * UINT64_MAX: what the driver has. The driver is copied, its context is not. CASTOR_ERR_UNSUPPORTED: the device cannot map memory. */
castor_status homes_create(homes **out, const device_driver *driver, int device, uintptr_t address,
                           uint64_t reserved_bytes, uint64_t budget_bytes);
/* Destroys all homes first. No other thread may be inside. */
void homes_destroy(homes *h);
/* Homes that are larger than it stay: homes_evict moves them. */
void homes_budget_set(homes *h, uint64_t budget_bytes);
/* Before the first home. Without it there are no shares, and nothing comes back by itself. */
void homes_placement_set(homes *h, const placement_settings *placement);
/* Of `bytes` at least. CASTOR_ERR_MEMORY, with a text that says what is missing where: neither the device nor the host has room,
 * or no addresses are left. */
castor_status home_create(homes *h, chunk_kind kind, size_t bytes, home *out);
/* The device must be done with it: this waits for nothing. CASTOR_ERR_ARGUMENT: no home begins there. After the driver's errors the
 * home is still there. */
castor_status home_destroy(homes *h, uintptr_t address);
/* Whether its homes stay where they are born, and those on the host lie outside of the range. Constant. */
bool homes_are_fixed(const homes *h);
/* Homes lie in numbered units. How many there are. Constant. */
uint32_t homes_units(const homes *h);
/* The unit that holds an address; HOMES_NO_UNIT: none does. Lock-free. */
uint32_t homes_unit(const homes *h, uintptr_t address);
/* The reserved range, [first, end). Constant. */
void homes_range(const homes *h, uintptr_t *first, uintptr_t *end);
/* The home that holds an address; false: none does. */
bool home_find(homes *h, uintptr_t address, home *out);
/* The first home at an address or behind it, within the range; false: there is none. */
bool home_next(homes *h, uintptr_t address, home *out);
/* Whether a home there is on the host, as of now. Lock-free: a table with a byte for each unit. False where there is no home. */
bool home_is_on_host(const homes *h, uintptr_t address);
/* Moves the home that begins there. The caller has closed the gate; the device is drained here. CASTOR_ERR_MEMORY: no room there.
 * CASTOR_ERR_TIMEOUT: the device did not come to rest. Nothing has changed then. */
castor_status home_flip(homes *h, uintptr_t address, device_tier to);
/* This process does not compute with the home: it is on the host from now on and never comes back, not by home_leave either while the host has room. As
 * home_flip. */
castor_status home_away(homes *h, uintptr_t address);
/* Flips homes to the host until `bytes` of the device's memory have become free. The caller has closed the gate. Drains the device once. Returns the bytes that
 * became free, which may be fewer, with error_text set if something failed. */
uint64_t homes_evict(homes *h, uint64_t bytes);
/* Bytes on the device that homes_evict could free. Lock-free. */
uint64_t homes_evictable(const homes *h);
/* The device had no memory for somebody: nothing comes back within the next steps. Lock-free. */
void homes_short(homes *h);
/* Whether that was ever so, or the end of a step left less than a quarter of the device, where there is no budget. Lock-free. */
bool homes_were_short(const homes *h);
/* A step is over. Returns whether homes_return would move something. Asks the driver for its room only if a home is on the host; else after some
 * steps, to see whether memory is short. */
bool homes_step_end(homes *h);
/* Moves homes to the device where the last steps left room, up to HOMES_RETURN_BYTES. The caller has closed the gate. A lack of memory is no failure. */
castor_status homes_return(homes *h);
/* ---- homes_shared.c: pages that ranks share. A home has them from home_offer or home_take until it is destroyed, or home_part. ---- */

/* How many descriptors the pages of that home have; 0: no home begins there. */
uint32_t home_pieces(homes *h, uintptr_t address);
/* Makes shared pages with the home's bytes. The caller closes the descriptors. The device must be done with what writes the home.
 * CASTOR_ERR_UNSUPPORTED: the driver makes none. */
castor_status home_offer(homes *h, uintptr_t address, int *descriptors);
/* Takes the pages that another rank has offered for a home of the same size. */
castor_status home_take(homes *h, uintptr_t address, const int *descriptors);
/* The home has the shared pages from now on, which must have its bytes. The caller has closed the gate; drains the device. */
castor_status home_join(homes *h, uintptr_t address);
/* A joined home gets pages of its own, with the same bytes: on the device where there is room, else on the host; `on_host`: there in any case, for
 * the processors. The caller has closed the gate; drains the device. CASTOR_OK as well if it was not joined. */
castor_status home_leave(homes *h, uintptr_t address, bool on_host);
/* A home that is not joined has no shared pages any more. The device must be done with them. */
castor_status home_part(homes *h, uintptr_t address);
/* Where the shared pages can be written, for any address of a home; 0: it has none. */
uintptr_t home_beside(homes *h, uintptr_t address);
/* Whether a home there is joined. Lock-free. */
bool home_is_joined(const homes *h, uintptr_t address);
/* How many are, of all devices. Atomic. */
extern uint32_t homes_joined;

/* ---- */

void homes_statistics_get(homes *h, homes_statistics *out);
/* CASTOR_ERR_MISMATCH: an invariant does not hold. */
castor_status homes_check(homes *h);

#endif
