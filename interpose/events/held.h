/* Memory whose bytes a save still needs (checkpoint/hold.h).
 *
 * What writes to such memory is stopped by the kernel. What the kernel does not see as a write must be announced before it is
 * done: freeing or replacing memory, and letting other processes, or another mapping, write to the store's files. */
#ifndef CASTOR_EVENTS_HELD_H
#define CASTOR_EVENTS_HELD_H

#include <stdint.h>
#include <stddef.h>

typedef struct held_calls {
    void (*replaced)(const void *address, size_t bytes);
    void (*store_written)(void);
} held_calls;

/* Nothing smaller is held, so nobody is told when a smaller block is freed. */
#define HELD_BYTES_MIN (256ul << 10)

extern int held_count; /* ranges of memory that are held; by atomic built-ins alone */
extern const held_calls *held_now;

static inline int held_any(void) {
    return __builtin_expect(__atomic_load_n(&held_count, __ATOMIC_ACQUIRE) != 0, 0);
}

/* The range is about to be freed or mapped over. */
static inline void held_before_replacing(const void *address, size_t bytes) {
    if (held_any())
        held_now->replaced(address, bytes);
}

/* This process comes to a barrier, after which owners may write to the store. */
static inline void held_before_barrier(void) {
    if (held_any())
        held_now->store_written();
}

#endif
