/* The pool, as one process uses it: parameters that a script is making lie once on the node, before they are registered.
 *
 * Vocabulary
 *   block    an arena block that is a parameter's storage
 *   sweep    takes the pages of blocks that this process wrote to the pool (pool_index.h), and maps the pool's instead:
 *            private views, at the same addresses, with the same bytes
 *
 * Invariants
 *   - a sweep changes no byte that anybody can see, and runs while nobody writes the blocks: the caller sees to that
 *   - a block's views are replaced, by its registration, before this process leaves their slots
 *
 * A forked child keeps its copy of the views and is no member. */
#ifndef CASTOR_LAZY_POOL_H
#define CASTOR_LAZY_POOL_H

#include <stdbool.h>
#include "core/status.h"
#include "pool_index.h"

/* `fds` as pool_index_make gave them, to this process or to another one that handed them on. */
castor_status pool_join(const int fds[2]);
/* This process has the pool, and at least one other one has it too. */
bool pool_is_shared(void);
/* The pool's views may lie over blocks of this process. */
bool pool_in_use(void);

/* Sweeps those of `blocks` that the arena owns. Returns the bytes that became the pool's. */
uint64_t pool_sweep(void *const *blocks, uint32_t count);
/* After a sweep: waits while this process is far ahead of the others. */
void pool_await_others(void);

/* The block that starts at the address is the caller's to map over: the arena does not know it as adopted any more. NULL:
 * nothing of it is in the pool. Then, when other pages are mapped over it, pool_leave. */
typedef struct pool_block pool_block;
pool_block *pool_take_out(const void *address);
void pool_leave(pool_block *block); /* NULL is fine */

void pool_get_figures(pool_figures *out);

/* For fork: see start.h. */
void pool_fork_prepare(void);
void pool_fork_parent(void);
void pool_fork_child(void);

#endif
