#include "phases.h"

#include <pthread.h>
#include "base/clock.h"
#include "counters.h"

#define DEPTH_MAX 8 /* phases inside of more count for the last of these */

/* Written by the script's thread alone, except for `owner` and `trains`. */
static struct {
    uint64_t ns[TRACE_PHASE_COUNT], count[TRACE_PHASE_COUNT];
    uint64_t since_ns; /* up to here all time has been counted */
    uint64_t gap_ns;   /* of the gap that is not decided yet */
    trace_phase gap;   /* what it counts for so far */
    trace_phase inside[DEPTH_MAX];
    unsigned depth;
    bool attached, ended;
    bool batch;      /* a batch was given, and no backward pass or step has begun since */
    bool trains;     /* atomic: a backward pass or step has begun */
    pthread_t owner; /* atomic: the script's thread */
} own = {.gap = TRACE_PHASE_IMPORT};

static trace_phase phase_now(void) {
    return own.depth ? own.inside[own.depth < DEPTH_MAX ? own.depth - 1 : DEPTH_MAX - 1] : own.gap;
}

static void phase_write(trace_counters *counters, trace_phase phase) {
    trace_counter *counter = &counters->counters[trace_slot(TRACE_PHASE, phase)];
    __atomic_store_n(&counter->count, own.count[phase], __ATOMIC_RELAXED);
    __atomic_store_n(&counter->ns, own.ns[phase], __ATOMIC_RELAXED);
}

static void now_write(trace_counters *counters) {
    __atomic_store_n(&counters->gauges[GAUGE_PHASE].last, phase_now(), __ATOMIC_RELAXED);
    __atomic_store_n(&counters->gauges[GAUGE_PHASE_BEGAN_NS].last, own.since_ns, __ATOMIC_RELAXED);
}

static void phases_write(trace_counters *counters) {
    if (!own.attached)
        return;
    for (int phase = 0; phase < TRACE_PHASE_COUNT; phase++)
        phase_write(counters, (trace_phase)phase);
    now_write(counters);
}

/* Counts the time up to now. Returns the phase that it counts for. */
static trace_phase charge(uint64_t now_ns) {
    trace_phase phase = phase_now();
    uint64_t ns = now_ns > own.since_ns ? now_ns - own.since_ns : 0;
    own.ns[phase] += ns;
    own.since_ns += ns;
    if (!own.depth)
        own.gap_ns += ns;
    return phase;
}

/* The gap ends, with the begin of `next`: what was it? */
static trace_phase gap_before(trace_phase next) {
    bool started = own.batch || own.gap != TRACE_PHASE_START_UP;
    switch (next) {
    case TRACE_PHASE_BACKWARD:
        return started ? TRACE_PHASE_FORWARD : own.gap;
    case TRACE_PHASE_OPTIMIZER: /* after a backward pass that nobody saw */
        return own.batch ? TRACE_PHASE_FORWARD : own.gap;
    default:
        return own.batch ? TRACE_PHASE_EVALUATION : own.gap;
    }
}

/* Decides the gap for which `counted` was charged last, and begins the next one. */
static void gap_decide(trace_counters *counters, trace_phase next) {
    trace_phase decided = gap_before(next);
    if (decided != own.gap) {
        own.ns[own.gap] -= own.gap_ns;
        own.ns[decided] += own.gap_ns;
        if (counters)
            phase_write(counters, own.gap);
    }
    own.count[decided]++;
    if (counters)
        phase_write(counters, decided);
    own.gap_ns = 0;
    own.gap = TRACE_PHASE_REST;
    own.batch = false;
}

/* Whether the event of this thread counts. */
static bool is_ours(bool training) {
    pthread_t self = pthread_self();
    if (!own.attached || own.ended)
        return false;
    bool ours = __atomic_load_n(&own.owner, __ATOMIC_RELAXED) == self;
    if (__builtin_expect(!training || __atomic_load_n(&own.trains, __ATOMIC_RELAXED), 1))
        return ours;
    bool first = !__atomic_exchange_n(&own.trains, true, __ATOMIC_RELAXED);
    if (first && !ours) {
        own.depth = 0; /* of the thread that does not train */
        __atomic_store_n(&own.owner, self, __ATOMIC_RELAXED);
    }
    return first || ours;
}

void phases_start(void) {
    own.since_ns = clock_ns(CLOCK_MONOTONIC);
}

void phases_attach(void) {
    if (own.attached)
        return;
    charge(trace_now_ns());
    own.count[TRACE_PHASE_IMPORT]++;
    own.gap = TRACE_PHASE_START_UP;
    own.gap_ns = 0;
    own.owner = pthread_self();
    own.attached = true;
    counters_observe(phases_write);
    trace_counters *counters = counters_peek();
    if (counters)
        phases_write(counters);
}

uint64_t phases_begin(trace_phase phase) {
    uint64_t now_ns = trace_now_ns();
    bool training = phase == TRACE_PHASE_BACKWARD || phase == TRACE_PHASE_OPTIMIZER;
    if (!is_ours(training) &&
        (phase != TRACE_PHASE_EXIT || !own.attached || own.ended)) /* any thread ends it */
        return now_ns;
    trace_counters *counters = counters_peek();
    trace_phase before = charge(now_ns);
    if (counters)
        phase_write(counters, before);
    if (phase == TRACE_PHASE_EXIT) {
        own.depth = 0;
        gap_decide(counters, phase);
        own.gap = TRACE_PHASE_EXIT;
        own.ended = true;
    } else {
        /* An import and saving decide nothing: the gap goes on after them. */
        if (!own.depth && phase != TRACE_PHASE_SAVING && phase != TRACE_PHASE_IMPORT)
            gap_decide(counters, phase);
        if (own.depth < DEPTH_MAX)
            own.inside[own.depth] = phase;
        own.depth++;
    }
    if (counters)
        now_write(counters);
    return now_ns;
}

void phases_end(bool batch) {
    if (!is_ours(false) || !own.depth)
        return;
    trace_phase ended = charge(trace_now_ns());
    own.count[ended]++;
    own.depth--;
    if (!own.depth && (ended == TRACE_PHASE_BACKWARD || ended == TRACE_PHASE_OPTIMIZER)) {
        own.gap = TRACE_PHASE_REST;
        own.batch = false;
    }
    if (batch) {
        own.batch = true;
        own.gap = TRACE_PHASE_FORWARD;
    }
    trace_counters *counters = counters_peek();
    if (!counters)
        return;
    phase_write(counters, ended);
    now_write(counters);
}

void phases_flush(void) {
    trace_counters *counters = counters_peek();
    if (!own.attached || !counters)
        return;
    charge(trace_now_ns());
    phases_write(counters);
}

void phases_fork_child(void) {
    bool attached = own.attached;
    own = (__typeof__(own)){.since_ns = clock_ns(CLOCK_MONOTONIC),
                            .gap = attached ? TRACE_PHASE_START_UP : TRACE_PHASE_IMPORT,
                            .owner = pthread_self(),
                            .attached = attached};
}
