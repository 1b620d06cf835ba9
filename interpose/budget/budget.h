/* A memory budget: which of the chunks that this rank owns are in memory, and which on disk alone.
 *
 * Vocabulary
 *   budget   bytes of memory for the node's model data and its ranks' other data
 *   share    this rank's part of the model data's bytes, in proportion to what it owns
 *   closed   a chunk that gets no more tensors; from then on it may be evicted
 *   part     the parameters that an optimizer steps at a time
 *
 * The chunk manager decides (chunk_manager.h); its backend is here: the tiers are host and disk, and the disk
 * queue moves. Chunk files lie on disk from the start, so that nothing here changes what anybody reads.
 *
 * Invariants
 *   - chunks are closed on every rank in the same places, so that their layout stays the same
 *   - a rank announces what it will write (a part, a gradient); the chunk's owner keeps the chunk in use until the write is done
 *   - an error of the disk stops nothing: the chunk stays in memory, and the next part that needs the room reports it
 */
#ifndef CASTOR_BUDGET_H
#define CASTOR_BUDGET_H

#include "placement/chunk_statistics.h"
#include "placement/moments.h"
#include "store/store.h"

struct tensor;
typedef struct budget budget;

/* Chunks are loaded in pages of this size, which the kernel frees only as a whole: a page that two chunks share would stay for
 * ever. */
#define BUDGET_UNIT_BYTES (2ul << 20)

/* For a store whose files are on disk. */
extern const store_bound budget_bound;

/* Tensors were registered, or this rank has placed states: the chunks that they are in are closed. Callers hold the store's lock. */
castor_status budget_close(store *s);

/* The bytes of parameters that one part of a step may have, at most `most` (0: as many as the budget allows); 0: all at once. */
uint64_t budget_part_bytes(const store *s, uint64_t most);
/* The tensors' chunks of those kinds (1 << chunk_kind each), as far as this rank owns them, are in memory when this returns and
 * stay there until the end of the part. CASTOR_ERR_MEMORY: the budget has no room for them, and the text names the smallest that
 * has. */
castor_status budget_part_begin(store *s, int kinds, uint32_t number, struct tensor *const *tensors,
                                uint32_t count);
void budget_part_end(store *s);
void budget_step_end(store *s);

/* A gradient goes into the tensor's sum, and all ranks' are in it. */
void budget_sum_begin(struct tensor *t);
void budget_sum_end(struct tensor *t);
void budget_backward_end(store *s);

/* Whether parameters and gradients may be on disk alone, and not only states. */
bool budget_moves_parameters(const store *s);

/* CASTOR_ERR_MISMATCH: an invariant of the chunk manager does not hold (slow). */
castor_status budget_check(const store *s);
bool budget_statistics(const store *s, chunk_statistics *out); /* false: no budget */

/* Which parameters forward and backward touch, without a hook in the model. Under a budget the views of parameters are in this
 * process's page tables only while they are used: a view that is there again was touched.
 *
 * All of it runs on the script's main thread, in calls that its code made: there nobody else edits a parameter, so that a view's
 * unedited pages can be told from its edited ones and let go. Elsewhere the calls do nothing. */

/* PyTorch asked for a block: checks, not too often, which parameters were touched, and unmaps those that were used before. */
void touches_collect(void);
/* A backward has begun, has ended. */
void touches_backward(store *s, bool begun);
/* An optimizer's step begins: it touches what its parts say. */
void touches_step(store *s);
/* It is over: lets go of all views, and the next pass begins. */
void touches_drop(store *s);

#endif
