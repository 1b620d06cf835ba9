/* The arena: page-aligned blocks for PyTorch's CPU tensors.
 *
 * Vocabulary
 *   region   one reserved address range; every block lies inside it, so that `is it ours` is one comparison
 *   block    what arena_alloc returned: whole pages, page-aligned
 *   extent   free address range between blocks; dirty (its pages may be resident) or clean (they are not)
 *   adopted  a block over which the node store has mapped a chunk's pages
 *
 * Invariants
 *   - a block's pages are private anonymous memory unless it is adopted; freeing an adopted block first puts
 *     anonymous memory back in its place
 *   - the bytes of dirty extents never exceed the retain limit after a call returns
 *   - contents of a block are undefined, as malloc's are
 * All functions may be called from any thread; none calls malloc. After fork the child keeps using its copy.
 */
#ifndef CASTOR_MEMORY_ARENA_H
#define CASTOR_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../core/status.h"

/* Reserves the region. CASTOR_ERR_MEMORY when no address space is to be had: the caller then uses the system's
 * allocator. */
castor_status arena_start(uint64_t retain_bytes);

/* NULL when the region is full or memory is out: the caller falls back to the system's allocator. */
void *arena_alloc(size_t size);
bool arena_owns(const void *address); /* inside the region; lock-free */
void arena_free(void *block);

/* The usable size in bytes (whole pages) of the block that starts at `address`; 0 when no block starts there. */
size_t arena_block_size(const void *address);

/* Marks a block as adopted. When it is freed, `on_free(context, block)` runs first (without the arena's lock). */
castor_status arena_adopt(void *block, void (*on_free)(void *context, void *block), void *context);
void arena_release(void *block); /* no longer adopted; the caller has put anonymous memory back */

typedef struct arena_stats {
    uint64_t live_bytes, live_peak_bytes, dirty_bytes, adopted_bytes, blocks, allocations, reuses, purges;
} arena_stats;
void arena_get_stats(arena_stats *out);
bool arena_check(void); /* the invariants hold (slow: walks everything) */

/* For pthread_atfork: hold the lock over the fork. */
void arena_fork_prepare(void);
void arena_fork_parent(void);
void arena_fork_child(void);

#endif
