/* How long a wait that yields the processor between its looks goes on before it sleeps.
 *
 * Waking a processor that has halted takes tens of microseconds, so looking is worth while where waits are short. Where
 * they are long, because ranks compute meanwhile, it is not: after a few looks in vain only one wait in some looks at all.
 * Where a yield takes long, because other programs want the processor, it is worse than sleep, after which one comes to a
 * turn at once: then hardly any wait looks. Threads may share a patience: what is lost by a race is one step. */
#ifndef CASTOR_CORE_LOOK_H
#define CASTOR_CORE_LOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOOK_MICROSECONDS 400u /* at most, and at first */
#define LOOK_TURN_SECONDS 2e-4 /* a yield that takes longer: somebody else had the processor */
#define LOOK_IN_VAIN_MAX  5u   /* halvings; from there on one wait in 1 << in_vain looks */
#define LOOK_CROWDED      10u

typedef struct look_patience {
    _Atomic uint32_t in_vain; /* looks, less those that were not */
    _Atomic uint32_t skipped;
} look_patience;

/* For how many microseconds this wait looks; 0: not at all. */
static inline uint32_t look_begin(look_patience *p) {
    uint32_t in_vain = atomic_load_explicit(&p->in_vain, memory_order_relaxed);
    if (in_vain < LOOK_IN_VAIN_MAX)
        return LOOK_MICROSECONDS >> in_vain;
    uint32_t skipped = atomic_fetch_add_explicit(&p->skipped, 1, memory_order_relaxed) + 1;
    return skipped & ((1u << in_vain) - 1) ? 0 : LOOK_MICROSECONDS >> LOOK_IN_VAIN_MAX;
}

/* `in_time`: it was ready before the time was over. `turn_seconds`: what the longest yield took. */
static inline void look_end(look_patience *p, bool in_time, double turn_seconds) {
    uint32_t in_vain = atomic_load_explicit(&p->in_vain, memory_order_relaxed), next = in_vain;
    if (turn_seconds > LOOK_TURN_SECONDS)
        next = LOOK_CROWDED;
    else if (in_time && in_vain > 0)
        next = in_vain - 1;
    else if (!in_time && in_vain < LOOK_IN_VAIN_MAX)
        next = in_vain + 1;
    if (next != in_vain)
        atomic_store_explicit(&p->in_vain, next, memory_order_relaxed);
}

#endif
