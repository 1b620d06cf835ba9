/* The arena: page-aligned blocks for PyTorch's CPU tensors.
 *
 * Vocabulary
 *   region   one reserved address range; every block lies inside it, so that `is it ours` is one comparison
 *   block    what arena_alloc returned: whole pages, page-aligned, shared with no other block
 *   extent   a run of pages: a block, or free; a free one is dirty (its pages may be resident) or clean (none is)
 *   adopted  a block over which the node store has mapped a chunk's pages
 *   loan     pages of a file that serve as room for blocks while the file's owner does not need them (arena.c)
 *   peak     the most bytes of blocks that were not adopted, over the recent past (see arena.c: a period that is
 *            measured in bytes allocated, so that it spans at least a training step, and forgets a single high)
 *
 * Invariants
 *   - a block's pages are private anonymous memory unless it is adopted, or lies on a loan; freeing an adopted block first
 *     puts back in its place what was there
 *   - after a call returns, blocks that are not adopted and dirty extents together are at most the recent peak plus
 *     the retain limit: freed pages serve the next step, and the process never grows by them. They are fewer by what
 *     loans are expected to have room for
 *   - contents of a block are undefined, as malloc's are
 *
 * All functions may be called from any thread; none calls malloc. After fork the child keeps using its copy. */
#ifndef CASTOR_ARENA_H
#define CASTOR_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* Reserves the region. CASTOR_ERR_MEMORY when no address space is to be had: the caller then uses the system's
 * allocator. Idempotent; the first call's limit counts. */
castor_status arena_start(uint64_t retain_bytes);
/* Starts it, once, if the options want it. True when it serves PyTorch's blocks. */
bool arena_serves(void);
/* The options want it only since now. */
void arena_serve_now(void);

/* NULL when the region is full or memory is out: the caller falls back to the system's allocator. */
void *arena_alloc(size_t size);
void arena_free(void *block);

/* The region; empty until arena_start, unchanged afterwards. */
typedef struct arena_range {
    uintptr_t base;
    size_t size;
} arena_range;
extern arena_range arena_region;

/* Inside the region; lock-free. */
static inline bool arena_owns(const void *address) {
    size_t size = __atomic_load_n(&arena_region.size, __ATOMIC_ACQUIRE);
    return (uintptr_t)address - __atomic_load_n(&arena_region.base, __ATOMIC_RELAXED) < size;
}

/* The usable size in bytes (whole pages) of the block that starts at `address`; 0 when no block starts there. */
size_t arena_block_size(const void *address);

/* Marks a block as adopted. When it is freed, `on_free(context, block)` runs first (without the arena's lock). */
castor_status arena_adopt(void *block, void (*on_free)(void *context, void *block), void *context);
void arena_release(void *block); /* no longer adopted; the caller has put anonymous memory back */
/* The context of a block that was adopted with this function; NULL when no such block starts at the address. */
void *arena_adopted(const void *address, void (*on_free)(void *context, void *block));

/* Pages of a file, whole ones, in which blocks may lie between an offer and a recall. */
typedef struct arena_loan {
    int fd;
    uint64_t offset, bytes; /* multiples of the page's size, not 0 */
    /* After an offer: nobody reads or writes the pages any more. Once true it stays so until the recall. Called under the arena's
     * lock: reads atomics only. */
    bool (*idle)(void *context);
    void *context;
    uint32_t id; /* out, not 0 */
} arena_loan;

/* Loans that are recalled in the reverse order: what is recalled first is used last. An error: there are none of them, and ids are 0. */
castor_status arena_loans_add(arena_loan *loans, uint32_t count);
/* The bytes of the pages mean nothing until arena_loan_recall returns. */
void arena_loan_offer(uint32_t id);
/* Blocks that still lie there get pages of their own at the same address, with what they hold; no others come. Nothing, unless
 * offered. CASTOR_ERR_MEMORY: the pages are still in use. */
castor_status arena_loan_recall(uint32_t id);
/* Recalls it, and there is no such loan any more. */
void arena_loan_end(uint32_t id);

/* The most bytes that blocks which are not adopted and freed pages that are resident have had since the last call. */
uint64_t arena_peak_take(void);

/* The most since the last call, or since a block was adopted, which is no activation: of blocks that are not adopted, and of those of
 * them whose pages are no loan's. */
typedef struct arena_peaks {
    uint64_t own_bytes, anonymous_bytes;
    uint64_t start_bytes; /* before the last adoption, since ever: of blocks that were not adopted then */
} arena_peaks;
arena_peaks arena_peaks_take(void);

/* From now on at most so many freed bytes stay resident, whatever the recent peak was. */
void arena_retain_most(uint64_t bytes);

/* Others use so many bytes more (less, if negative) of what the recent peak has room for: that many fewer freed bytes stay
 * resident. */
void arena_yield(int64_t bytes);

typedef struct arena_stats {
    uint64_t live_bytes;           /* of all blocks, adopted ones too */
    uint64_t live_peak_bytes;      /* the most that live_bytes has been */
    uint64_t anonymous_peak_bytes; /* the largest recent sum of blocks that are not adopted */
    uint64_t dirty_bytes;          /* of dirty extents */
    uint64_t adopted_bytes;        /* of adopted blocks */
    uint64_t yielded_bytes;        /* by arena_yield */
    uint64_t loan_bytes;           /* of blocks that lie on loans */
    uint64_t loan_peak_bytes;      /* the most that they have been */
    uint64_t moved_bytes;          /* of blocks that were moved from loans, ever */
    uint64_t blocks;
    uint64_t allocations; /* blocks ever made */
    uint64_t reuses;      /* of these, from dirty extents */
    uint64_t purges;      /* times that pages were given back */
    uint64_t purged_bytes;
} arena_stats;
void arena_get_stats(arena_stats *out);
bool arena_check(void); /* the invariants hold (slow: walks everything) */

/* For pthread_atfork: hold the lock over the fork. */
void arena_fork_prepare(void);
void arena_fork_parent(void);
void arena_fork_child(void);

#endif
