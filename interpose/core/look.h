/* How long a wait that yields the processor between its looks goes on before it sleeps.
 *
 * Waking a processor that has halted takes tens of microseconds, so looking is worth while where waits are short. Where
 * they are long, because ranks compute meanwhile, or a yield takes long, because others want the processor, it is not:
 * after a few looks in vain only one wait in some looks at all. Threads may share a patience: what is lost by a race is one
 * step. */
#ifndef CASTOR_CORE_LOOK_H
#define CASTOR_CORE_LOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOOK_MICROSECONDS 400u /* at most, and at first */
#define LOOK_IN_VAIN_MAX  5u   /* halvings */
#define LOOK_ONE_IN       32u  /* waits, after so many halvings */

typedef struct look_patience {
    _Atomic uint32_t in_vain; /* looks, less those that were not */
    _Atomic uint32_t skipped;
} look_patience;

/* For how many microseconds this wait looks; 0: not at all. */
static inline uint32_t look_begin(look_patience *p) {
    uint32_t in_vain = atomic_load_explicit(&p->in_vain, memory_order_relaxed);
    if (in_vain < LOOK_IN_VAIN_MAX)
        return LOOK_MICROSECONDS >> in_vain;
    if (atomic_fetch_add_explicit(&p->skipped, 1, memory_order_relaxed) % LOOK_ONE_IN)
        return 0;
    return LOOK_MICROSECONDS >> LOOK_IN_VAIN_MAX;
}

/* `in_time`: it was ready before the time was over. */
static inline void look_end(look_patience *p, bool in_time) {
    uint32_t in_vain = atomic_load_explicit(&p->in_vain, memory_order_relaxed);
    if (in_time && in_vain > 0)
        atomic_store_explicit(&p->in_vain, in_vain - 1, memory_order_relaxed);
    if (!in_time && in_vain < LOOK_IN_VAIN_MAX)
        atomic_store_explicit(&p->in_vain, in_vain + 1, memory_order_relaxed);
}

#endif
