/* Hooks whose short calls are only counted, because there are so many: one in SAMPLED_EVERY of a thread's is timed.
 *
 * The counter (CALL, hook) counts all calls; its time is that of the long ones, which are recorded. (TIMED, id) counts these, and
 * (SAMPLE, id) counts the short ones that were timed, with their time. So the short ones took about
 * SAMPLE.ns / SAMPLE.count * (CALL.count - TIMED.count). Reports find the hook by the name that all three have. */
#ifndef CASTOR_TRACE_SAMPLED_H
#define CASTOR_TRACE_SAMPLED_H

#include "counters.h"

#define SAMPLED_EVERY 64
#define SAMPLED_FIRST 8 /* a thread's first calls take longer than those that follow */

typedef enum sampled_hook { SAMPLED_POSIX_MEMALIGN, SAMPLED_HOOK_COUNT } sampled_hook;

/* Names the counters of a sampled hook as `call`, the hook's own id, is named. */
static inline void sampled_name(sampled_hook hook, const char *name) {
    trace_name_set(TRACE_SAMPLE, hook, name);
    trace_name_set(TRACE_TIMED, hook, name);
}

/* Whether the short call that begins now is to be timed. `left` is the hook's, one for each thread, and begins as
 * SAMPLED_FIRST. */
static inline bool sampled_due(unsigned *left) {
    if (__builtin_expect(--*left != 0, 1))
        return false;
    *left = SAMPLED_EVERY;
    return true;
}

/* A short call has ended. begin_ns 0: it was not timed. */
static inline void sampled_add(sampled_hook hook, uint32_t call, uint64_t begin_ns, uint64_t bytes) {
    trace_counters *counters = counters_get();
    if (!counters)
        return;
    counters_add(counters, TRACE_CALL, call, bytes, 0);
    if (begin_ns)
        counters_add(counters, TRACE_SAMPLE, hook, 0, trace_now_ns() - begin_ns);
}

/* A long call has been recorded. */
static inline void sampled_recorded(sampled_hook hook) {
    trace_counters *counters = counters_get();
    if (counters)
        counters_add(counters, TRACE_TIMED, hook, 0, 0);
}

#endif
