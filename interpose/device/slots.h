/* Slots: device memory that holds copies of parameters whose home is on the host, for calls that only read them.
 *
 * Vocabulary
 *   storage  a range of a home that is read as a whole, one parameter's memory; registered by slots_storage_add
 *   slot     device memory that holds a copy of one storage
 *   region   the device memory from which slots come, one range, cut by first fit
 *   use      a library call that reads an operand: begun before it is enqueued, ended after
 *   writer   anything that may have changed bytes of a home
 *
 * Every storage is a chunk of a chunk manager (placement/chunk_manager.h) whose tier 0 is the region and whose tier 1 are homes. Each
 * use is a moment of a step: the manager records the sequence, copies ahead, and chooses victims. A move into the region enqueues a
 * copy on the copy stream and is over at once as far as the manager is concerned; order on the device is kept by events. A slot is
 * clean: it is never written back.
 *
 * Invariants (slots_check)
 *   - a use reads the bytes that the storage's home has at that point of the use's stream, in any order of writers that is defined
 *     without slots. Where that cannot be had (no room, a capture, an error) the use reads the home itself
 *   - a slot's memory is written only after every use that was begun on it before has been passed on the device
 *   - a copy into a slot begins after every writer that was noted before it; a storage's first copy, which a use makes, begins after
 *     all that this use comes after instead: writers of what was never copied cost nothing
 *   - what may be written unseen, by a graph or through an address in the device's memory, has no slot
 *   - the host never waits for the device here
 *
 * Safe from any thread: one lock, under which the driver is called; the chunk manager's lock comes after it. What may enqueue copies
 * (slot_use_begin, slots_step_end) is called inside of the gate: copies read homes. After a fork the child's copy must not be used. */
#ifndef CASTOR_DEVICE_SLOTS_H
#define CASTOR_DEVICE_SLOTS_H

#include "copies.h"
#include "homes.h"
#include "placement/chunk_statistics.h"

typedef struct slots slots;

typedef struct slots_statistics {
    uint64_t region_bytes, storages, storage_bytes; /* registered now */
    uint64_t uses, hits;                            /* of storages with host homes; found in a slot */
    uint64_t prefetched;                            /* hits of copies that were made ahead */
    uint64_t in_time;                               /* hits whose copy was done when the use began */
    uint64_t home_reads;                            /* uses that read the home */
    uint64_t copies, copied_bytes, stale;           /* stale: copies dropped because of a writer */
} slots_statistics;

/* The region's memory comes from the driver, of the device's tier, when the first use needs it; `region_bytes`: its size, rounded up
 * to units; less where there is less. */
castor_status slots_create(slots **out, homes *h, const device_driver *driver, int device,
                           uint64_t region_bytes);
void slots_destroy(slots *s);
/* Where its copies are noted from now on. */
void slots_copies_set(slots *s, copies *c);

/* A storage inside one home. Adding what was added before does nothing; one that overlaps others replaces them. */
castor_status slots_storage_add(slots *s, uintptr_t address, size_t bytes);
/* Forgets the storages that overlap a range: it is freed. A copy from there may still be under way: the device is drained before
 * its pages go. */
void slots_forget(slots *s, uintptr_t address, size_t bytes);

typedef struct slot_use {
    uintptr_t pointer; /* what the call shall read: the operand itself, or its copy */
    uint32_t storage;  /* SLOT_USE_NONE: there is nothing to end */
    uint64_t stream;
} slot_use;
#define SLOT_USE_NONE UINT32_MAX

/* The call that comes next in `stream` reads [pointer, pointer + bytes); 0 bytes: how many is unknown, as far as the storage goes.
 * A range that a storage with a host home does not hold whole is read where it is. Never fails. */
slot_use slot_use_begin(slots *s, uintptr_t pointer, size_t bytes, uint64_t stream);
/* The call was enqueued, or has failed. */
void slot_use_end(slots *s, const slot_use *use);

/* What has just been enqueued in `stream`, or was done by the host, may write [address, address + bytes); 0 bytes: anything in
 * the home that holds the address. Cheap where no storage is registered in that home: one lookup in a table. */
void slots_written(slots *s, uintptr_t address, size_t bytes, uint64_t stream);
/* The same, of any storage: a writer whose addresses are unknown. */
void slots_written_all(slots *s, uint64_t stream);
/* The device keeps an address in its memory: kernels may write anything in the home that holds it, unseen. The storages there, and those
 * that come, are read in their home until it is freed. Not `sure`: it may be a word that looks like an address, which counts if
 * a storage begins there. */
void slots_kept(slots *s, uintptr_t address, bool sure);
/* Whether it keeps one in the home there. Lock-free. */
bool slots_keep(const slots *s, uintptr_t address);
/* The same as slots_written with 0 bytes at each of SLOTS_ADDRESSES_MOST addresses, or fewer, by one writer. */
#define SLOTS_ADDRESSES_MOST 32
void slots_written_each(slots *s, const uintptr_t *addresses, uint32_t count, uint64_t stream);
/* Whether a writer must be noted there, for scans of launch arguments. Lock-free. The answer is that of all addresses in [*first,
 * *first + *bytes). `captured`: the writer may be captured into a graph; any other one does not matter to what was never copied. */
bool slots_may_hold(const slots *s, uintptr_t address, bool captured, uintptr_t *first, size_t *bytes);
/* A stream ends, or is captured, from now on: what copies have to wait for there is recorded before. */
void slots_writes_end(slots *s);
/* What comes in `stream` from now on comes after the copies that were enqueued so far: others may write then what they read. */
castor_status slots_copies_join(slots *s, uint64_t stream);
/* An optimizer step is over: the sequence of uses begins again. */
void slots_step_end(slots *s);
/* The region's memory goes back to the driver: parameters are read in their homes until a later step finds memory again. The
 * caller has closed the gate; the device is drained. Returns the bytes; 0: there is no region, it is in use, or the driver fails. */
uint64_t slots_region_give(slots *s);
uint64_t slots_region_held(slots *s); /* bytes that it has now */
/* Whether some steps have read nothing there, whose memory slots_region_end_unused gives back, as above, until something is read in a home on the host. */
bool slots_region_is_unused(slots *s);
void slots_region_end_unused(slots *s);
/* Whole units. One that is larger stays until its memory is given back. */
void slots_region_limit(slots *s, uint64_t bytes);

void slots_statistics_get(slots *s, slots_statistics *out);
/* Numbers that order what lies at these addresses by its next use, as far as the sequence is known. */
void slots_next_uses(slots *s, const uint64_t *addresses, uint32_t count, uint64_t *order);
/* The largest storage that uses have read in its home, since it is larger than a region may be; 0 bytes: none was. */
uint64_t slots_too_large(slots *s, uintptr_t *address);
castor_status slots_check(slots *s);

#endif
