/* Staging: while a script builds a model, the node keeps one copy of what several ranks initialize alike, until the parameters
 * are registered.
 *
 * Vocabulary
 *   block    an arena block that is a parameter's storage
 *   sweep    moves the pages of blocks that this process wrote to the staging area, and maps private views of
 *            it instead, at the same addresses, with the same bytes
 *
 * Invariants
 *   - a sweep changes no byte that anybody can see. The caller makes sure that nobody writes the blocks meanwhile
 *   - registration replaces a block's views before this process releases their places
 *
 * A forked child keeps its copy of the views and is no member. */
#ifndef CASTOR_LAZY_STAGING_H
#define CASTOR_LAZY_STAGING_H

#include <stdint.h>
#include <stdbool.h>
#include "base/status.h"

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

typedef struct staging_figures {
    uint64_t held_bytes;  /* of places that have a holder, once each */
    uint64_t found_bytes; /* of pieces that were there already, since the beginning */
    uint64_t made_bytes;  /* of pieces that were new */
} staging_figures;

void staging_get_figures(staging_figures *out);

/* For fork: see start.h. */
void staging_fork_prepare(void);
void staging_fork_parent(void);
void staging_fork_child(void);

/* The thread `castor-staging`: finds the job's staging area, or makes it, and asks for a sweep each time this process has made
 * so many more bytes of its own. The sweep itself runs where it is safe: `schedule` lets a thread of the script call it
 * between two of its steps (Py_AddPendingCall). */

/* `own_bytes`: a sweep is due when there are so many more than after the last one. `schedule(sweep, NULL)` may be called from
 * any thread, and returns 0 when sweep(NULL) will be called. Idempotent; also starts again after staging_watch_stop. */
castor_status staging_watch_start(const char *token, uint64_t own_bytes,
                                  int (*schedule)(int (*)(void *), void *), int (*sweep)(void *));
/* No sweep is scheduled after this call. The staging area stays, also for those who come later. */
void staging_watch_stop(void);

/* What was scheduled was done; `swept` false: it could not be done now. */
void staging_watch_done(int swept);

/* Makes the two files. Any process that gets them can open the area. */
bool staging_index_make(int fds[2]);

#endif
