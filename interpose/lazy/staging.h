/* Staging: while a script builds a model, the node keeps one copy of what several ranks initialize alike, until the parameters
 * are registered.
 *
 * Vocabulary
 *   block    an arena block that is a parameter's storage
 *   sweep    moves the pages of blocks that this process wrote to the staging area (staging_index.h), and maps private views of
 *            it instead, at the same addresses, with the same bytes
 *
 * Invariants
 *   - a sweep changes no byte that anybody can see. The caller makes sure that nobody writes the blocks meanwhile
 *   - registration replaces a block's views before this process releases their slots
 *
 * A forked child keeps its copy of the views and is no member. */
#ifndef CASTOR_LAZY_STAGING_H
#define CASTOR_LAZY_STAGING_H

#include <stdbool.h>
#include "base/status.h"
#include "staging_index.h"

/* `fds`: as staging_index_make made them, in this process or in one that passed them on. */
castor_status staging_join(const int fds[2]);
/* Whether this process and at least one other one use the staging area. */
bool staging_is_shared(void);
/* Whether views of the staging area may lie over blocks of this process. */
bool staging_in_use(void);

/* Sweeps those of `blocks` that the arena owns. Returns the bytes that moved to the staging area. */
uint64_t staging_sweep(void *const *blocks, uint32_t count);
/* After a sweep: waits while this process is far ahead of the others. */
void staging_await_others(void);

/* The caller is about to map other pages over the block at this address: the arena forgets its adoption. NULL: nothing of it is
 * staged. Afterwards the caller ends it with staging_leave. */
typedef struct staging_block staging_block;
staging_block *staging_take_out(const void *address);
void staging_leave(staging_block *block); /* NULL is fine */

void staging_get_figures(staging_figures *out);

/* For fork: see start.h. */
void staging_fork_prepare(void);
void staging_fork_parent(void);
void staging_fork_child(void);

#endif
