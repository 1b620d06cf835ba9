/* Spinning: how long a wait checks its condition, and yields the processor after each check, before it sleeps.
 *
 * Waking a halted processor takes tens of microseconds, so spinning pays if waits are short. If they are long, because ranks
 * compute meanwhile, it does not: each unsuccessful spin halves the next one, and after a few of them only one wait in several
 * spins at all. If a yield takes long, because other programs want the processor, spinning is worse than sleeping: hardly any
 * wait spins then. Threads may share a patience; a race costs one step of it. */
#ifndef CASTOR_BASE_SPIN_H
#define CASTOR_BASE_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SPIN_MICROSECONDS  400u /* at most, and at first */
#define SPIN_YIELD_SECONDS 2e-4 /* after a longer yield: another program had the processor */
#define SPIN_FAILURES_MAX  5u   /* halvings; from there on one wait in 1 << failures spins */
#define SPIN_CROWDED       10u

typedef struct spin_patience {
    _Atomic uint32_t failures; /* unsuccessful spins, less the successful ones */
    _Atomic uint32_t skipped;
} spin_patience;

/* For how many microseconds this wait spins; 0: not at all. */
static inline uint32_t spin_begin(spin_patience *p) {
    uint32_t failures = atomic_load_explicit(&p->failures, memory_order_relaxed);
    if (failures < SPIN_FAILURES_MAX)
        return SPIN_MICROSECONDS >> failures;
    uint32_t skipped = atomic_fetch_add_explicit(&p->skipped, 1, memory_order_relaxed) + 1;
    return skipped & ((1u << failures) - 1) ? 0 : SPIN_MICROSECONDS >> SPIN_FAILURES_MAX;
}

/* `in_time`: the condition held before the time was over. `turn_seconds`: the duration of the longest yield. */
static inline void spin_end(spin_patience *p, bool in_time, double turn_seconds) {
    uint32_t failures = atomic_load_explicit(&p->failures, memory_order_relaxed), next = failures;
    if (turn_seconds > SPIN_YIELD_SECONDS)
        next = SPIN_CROWDED;
    else if (in_time && failures > 0)
        next = failures - 1;
    else if (!in_time && failures < SPIN_FAILURES_MAX)
        next = failures + 1;
    if (next != failures)
        atomic_store_explicit(&p->failures, next, memory_order_relaxed);
}

#endif
