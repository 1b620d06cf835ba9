/* The arena's book of its region: which pages belong to which extent. Private to the arena.
 *
 * Extents cover the region without gaps. Free extents of one state are never neighbours (they merge), and
 * stand in bins by size; dirty ones also in a list by age. Nothing here touches the pages themselves, and
 * every function is called under the arena's lock. The memory of the book is its own mapping, touched as it
 * is needed: 4 bytes per page of the region at most, and one extent_t per extent.
 */
#ifndef CASTOR_ARENA_EXTENT_H
#define CASTOR_ARENA_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef uint32_t extent_id; /* 0: none */

typedef enum extent_state {
    EXTENT_CLEAN,
    EXTENT_DIRTY,
    EXTENT_LENT, /* of a loan, and may become a block (arena.c) */
    EXTENT_HELD, /* of a loan whose owner needs it, or may */
    EXTENT_BLOCK,
    EXTENT_LOST, /* anonymous memory could not be put back: never used again */
    EXTENT_UNUSED,
} extent_state;
#define EXTENT_FREE_STATES 4

typedef struct extent_t {
    uint32_t page, pages;
    extent_id bin_previous, bin_next; /* free extents: neighbours in the bin; unused ones: the next unused */
    extent_id age_previous, age_next; /* dirty extents: the older and the younger one */
    uint32_t state;                   /* extent_state */
    uint16_t adopted;                 /* blocks: the node store's pages lie over it */
    uint16_t lent;                    /* blocks: it lies on pages of loans */
    void (*on_free)(void *, void *);  /* adopted blocks */
    void *context;
} extent_t;

/* Memory for books: zero, and touched as it is needed. NULL without room. */
void *extent_book_map(size_t size);

/* Makes the book of `pages` pages: one clean extent. CASTOR_ERR_MEMORY when there is no room for the book. */
castor_status extent_start(uint32_t pages);

extent_t *extent_get(extent_id id);
extent_id extent_at(uint32_t page); /* the extent that starts at the page; 0 when none does */

/* The best fit among free extents of the state: the smallest that holds `pages`. */
extent_id extent_find(extent_state state, uint32_t pages);
extent_id extent_oldest(void); /* of the dirty ones */
uint64_t extent_pages(extent_state state);

/* Takes the first (`from_end`: the last) `pages` of a free extent out of the book as a block; the rest stays
 * free. 0 when the book is full. */
extent_id extent_take(extent_id id, uint32_t pages, bool from_end);

/* Cuts a block after its first `pages`; returns the rest, a block too. 0 when the book is full: nothing has changed. */
extent_id extent_split(extent_id id, uint32_t pages);

/* Puts a block back as free, merged with its free neighbours of the same state. */
void extent_put(extent_id id, extent_state state);

bool extent_check(void);

#endif
