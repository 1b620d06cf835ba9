/* trace_now_ns: CLOCK_MONOTONIC in ns, cheaper than the system's, since a hook asks twice per call.
 *
 * Where the processor counts at a constant rate, a thread reads that counter and adds what it has counted since
 * the thread's anchor, a pair of counter and system clock that is renewed every ANCHOR_NS. Within a thread time
 * never goes back. Elsewhere, and until the rate is known, it is the system's clock. */
#include "trace.h"

#include <stdbool.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <x86intrin.h>
#endif
#include "base/clock.h"

#ifdef __x86_64__

#define ANCHOR_NS      2000000u  /* the age of an anchor; bounds the error of a wrong rate */
#define CALIBRATION_NS 20000000u /* the rate is known after so long */
#define FRACTION_BITS  32        /* of a rate: ns per count */
#define BRACKET_COUNTS 3000      /* a reading that took longer was interrupted and says little */
#define RATE_TOLERANCE 1000      /* a rate is wrong if it differs by one part in so many */

/* A reading of both clocks. */
typedef struct clock_reading {
    uint64_t count, ns;
} clock_reading;

typedef struct clock_anchor {
    clock_reading at;
    uint64_t rate, valid_counts; /* valid_counts 0: there is no anchor */
    bool busy;                   /* being renewed: a signal handler uses the system's clock */
} clock_anchor;

static __thread clock_anchor anchor __attribute__((tls_model("initial-exec")));

/* The process's rate: from its first reading and one that is CALIBRATION_NS later. */
static clock_reading first;  /* set by the thread that changes first_state from 0 to 1 */
static uint32_t first_state; /* atomic: 0, 1 being set, 2 set */
static uint64_t known_rate;  /* atomic; 0: not yet */
static bool unusable;        /* atomic: the counter is not constant, or was found not to be */

static bool counter_is_constant(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
}

static uint64_t rate_between(clock_reading from, clock_reading to) {
    if (to.count <= from.count || to.ns <= from.ns)
        return 0;
    return (uint64_t)(((unsigned __int128)(to.ns - from.ns) << FRACTION_BITS) / (to.count - from.count));
}

/* A machine that slept or moved may have a counter that did not wait for it. */
static bool rate_holds(uint64_t rate, clock_reading from, clock_reading to) {
    uint64_t seen = rate_between(from, to), difference = seen > rate ? seen - rate : rate - seen;
    return difference <= rate / RATE_TOLERANCE;
}

static uint64_t rate_find(clock_reading now) {
    uint64_t rate = __atomic_load_n(&known_rate, __ATOMIC_RELAXED);
    if (rate)
        return rate;
    uint32_t state = 0;
    if (__atomic_compare_exchange_n(&first_state, &state, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        if (!counter_is_constant())
            __atomic_store_n(&unusable, true, __ATOMIC_RELAXED);
        first = now;
        __atomic_store_n(&first_state, 2, __ATOMIC_RELEASE);
        return 0;
    }
    if (state != 2 || now.ns < first.ns + CALIBRATION_NS)
        return 0;
    rate = rate_between(first, now);
    __atomic_store_n(&known_rate, rate, __ATOMIC_RELAXED);
    return rate;
}

/* Reads the system's clock, and makes it the anchor if it can be one. */
static uint64_t anchor_renew(clock_anchor *own) {
    if (__atomic_load_n(&unusable, __ATOMIC_RELAXED))
        return clock_ns(CLOCK_MONOTONIC);
    own->busy = true;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    clock_reading now;
    now.count = __rdtsc();
    now.ns = clock_ns(CLOCK_MONOTONIC);
    if (__rdtsc() - now.count < BRACKET_COUNTS) {
        /* The last reading by the old anchor was at most `before`. */
        uint64_t before =
            own->valid_counts ? own->at.ns + (own->valid_counts * own->rate >> FRACTION_BITS) : 0;
        uint64_t rate = rate_find(now);
        if (rate && own->valid_counts && !rate_holds(rate, own->at, now)) {
            __atomic_store_n(&unusable, true, __ATOMIC_RELAXED);
            rate = 0;
        }
        if (before > now.ns && before - now.ns < ANCHOR_NS)
            now.ns = before;
        own->at = now;
        own->rate = rate;
        own->valid_counts = rate ? ((uint64_t)ANCHOR_NS << FRACTION_BITS) / rate : 0;
    } else {
        own->valid_counts = 0;
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    own->busy = false;
    return now.ns;
}

uint64_t trace_now_ns(void) {
    clock_anchor *own = &anchor;
    if (__builtin_expect(own->busy, 0))
        return clock_ns(CLOCK_MONOTONIC);
    uint64_t counted = __rdtsc() - own->at.count;
    if (__builtin_expect(counted < own->valid_counts, 1))
        return own->at.ns + (counted * own->rate >> FRACTION_BITS);
    return anchor_renew(own);
}

#else

uint64_t trace_now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

#endif
