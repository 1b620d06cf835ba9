/* Holds: memory of the script whose bytes are needed as they are now, although the script goes on.
 *
 * Vocabulary
 *   hold       the bytes of one range at one moment
 *   grain      the unit in which a hold is kept: GRAIN_BYTES of memory. It is guarded, then copied or released
 *   guarded    its pages are write-protected (userfaultfd), so memory still has the bytes
 *   copied     something was about to change it, and waited until the bytes were copied; the copy is a saved grain
 *
 * Who writes to a guarded grain, in user code or in a system call, is stopped by the kernel; the thread `castor-hold` copies the
 * grain and lets the writer go on. What the kernel does not stop is announced (events/held.h). Memory for which neither is sure is
 * copied at once: what lies outside of whole pages, small ranges, shared mappings, files, mappings that somebody else watches, and everything where
 * the kernel offers no such protection.
 *
 * Invariants
 *   - the store's files change under a private view only after a barrier of its ranks. So grains that lie there are copied before
 *     this process comes to a barrier
 *   - a guarded grain belongs to one hold. Another hold of the same memory has it copied first
 *   - no thread that has the lock writes to guarded memory, allocates, or frees
 *   - a grain's bytes count only if its pages are still guarded after they were read: else the memory was replaced by something that
 *     did not announce it, and the hold fails */
#ifndef CASTOR_CHECKPOINT_HOLD_H
#define CASTOR_CHECKPOINT_HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hold hold;
typedef struct hold_maps hold_maps;

/* What is mapped where, for the holds of one moment. NULL: not known, and everything is copied. */
hold_maps *hold_maps_read(void);
void hold_maps_free(hold_maps *maps);

/* NULL: no memory. */
hold *hold_take(const hold_maps *maps, const void *address, size_t bytes);
/* The next bytes, in order, at most *bytes of them (the number that there were). They stay until the next call. False: the memory was replaced, or there was no
 * room for a copy. */
bool hold_read(hold *h, char *out, size_t bytes);
void hold_drop(hold *h);

typedef struct hold_statistics {
    uint64_t guarded_bytes, copied_at_once_bytes, copied_later_bytes; /* of all holds so far */
} hold_statistics;
void hold_statistics_get(hold_statistics *out);

/* In a forked child nothing is held. */
void hold_fork_child(void);

/* Memory for saved grains, of large pages where there are some: a new small page costs the system more than the copy of its
 * bytes. It is given back as soon as none is left in 16 neighbours. */

#define GRAIN_BYTES (2ul << 20)

/* Bytes of saved grains, now and at most so far. */
void saved_grains_bytes(uint64_t *now, uint64_t *most);

#endif
