#include "wait.h"
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/process.h"
#include "events/held.h"
#include "job/options.h"
#include "job/rendezvous.h"
#include "trace/live.h"
#include "trace/trace.h"
#include "store.h"

#define LOOK_SECONDS    0.1   /* how often a waiter looks after its peers */
#define RECORD_ABOVE_NS 50000 /* shorter waits are counted, not recorded */
#define TELL_SECONDS    2.0   /* so long ranks that have parted wait for each other's lines of the script */

const char *const store_activity_names[ACTIVITY_COUNT] = {
    "in the script's own code", "building a model wrapper or an optimizer", "at the end of a backward",
    "in an optimizer step",     "in an operation on all gradients",         "in a collective of the script's",
    "waiting for a saved file", "starting an iteration over a DataLoader",  "gone",
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value, double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

void wait_notify(_Atomic uint32_t *event, _Atomic uint32_t *waiters) {
    atomic_fetch_add(event, 1);
    if (atomic_load(waiters))
        syscall(SYS_futex, event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void store_activity_set(store *s, store_activity activity) {
    rank_control *own = &s->control->rank[s->rank];
    if (s->detached || atomic_exchange(&own->activity, activity) == (uint32_t)activity)
        return;
    atomic_fetch_add(&own->activity_changes, 1);
    /* Whoever waits for this rank in an operation that it will not join must learn it at once. */
    if (activity != ACTIVITY_SCRIPT)
        wait_notify(&s->control->event, &s->control->waiters);
}

store_activity store_activity_get(const store *s, int rank) {
    return atomic_load(&s->control->rank[rank].activity);
}

castor_status store_fail_by(store *s, int blamed, castor_status status) {
    store_control *control = s->control;
    uint32_t none = 0;
    if (!s->detached && atomic_compare_exchange_strong(&control->failed, &none, 1)) {
        log_message(control->failure, sizeof control->failure, "%s", error_text());
        control->blamed = blamed;
        atomic_store(&control->failed, 2);
        wait_notify(&control->event, &control->waiters);
    }
    return status;
}

castor_status store_fail(store *s, castor_status status) {
    return store_fail_by(s, -1, status);
}

int store_blamed(const store *s) {
    const store_control *control = s->control;
    return atomic_load(&control->failed) == 2 && control->blamed != s->rank ? control->blamed : -1;
}

/* Records this rank's error for all, unless another rank was first: then that one's is the reason, and what this rank
 * saw may be its consequence. */
static castor_status peer_failed(store *s, int rank, castor_status status) {
    store_fail_by(s, rank, status);
    return atomic_load(&s->control->failed) == 2 ? error_set(CASTOR_ERR_PEER, "%s", s->control->failure)
                                                 : status;
}

/* What keeps the decisions of a single process's script the same on all of its ranks. */
#define DECIDE                                                                                               \
    "Decide by what is the same on all of them: the loss after backward(), or whole batches under "          \
    "torch.no_grad()"

static bool of_single_process(const store *s) {
    return options()->world_size == s->world;
}

castor_status wait_peers_check(store *s) {
    store_control *control = s->control;
    if (atomic_load(&control->failed) == 2)
        return error_set(CASTOR_ERR_PEER, "%s", control->failure);
    for (int rank = 0; rank < s->world; rank++) {
        rank_control *peer = &control->rank[rank];
        if (rank == s->rank)
            continue;
        if (!atomic_load(&peer->joined)) {
            castor_status status = rendezvous_ended_check(s->rank, s->world, rank);
            if (status != CASTOR_OK)
                return peer_failed(s, rank, status);
            continue;
        }
        if (atomic_load(&peer->activity) == ACTIVITY_ENDED)
            return peer_failed(
                s, rank,
                error_set(CASTOR_ERR_PEER,
                          "rank %d (pid %d) has ended while other ranks wait for it: all ranks must take the "
                          "same number of steps (as many batches on each); see its own messages%s",
                          store_job_rank(s, rank), peer->pid, of_single_process(s) ? ". " DECIDE : ""));
        if (peer->start_ticks && process_state(peer->pid, peer->start_ticks) == 0)
            return peer_failed(
                s, rank,
                error_set(CASTOR_ERR_PEER,
                          "rank %d (pid %d) died (killed, or out of memory? the kernel's log, dmesg, tells) "
                          "while other ranks wait for it; it was last %s",
                          store_job_rank(s, rank), peer->pid,
                          store_activity_names[atomic_load(&peer->activity)]));
    }
    return CASTOR_OK;
}

static castor_status give_up(store *s, const wait_condition *c) {
    int rank = c->missing ? c->missing(c->context) : -1;
    if (rank < 0)
        return store_fail(
            s, error_set(CASTOR_ERR_TIMEOUT,
                         "%s took longer than CASTOR_TIMEOUT (%.1f s): raise it if the machine is only slow",
                         c->what, s->timeout_seconds));
    const rank_control *peer = &s->control->rank[rank];
    if (process_state(peer->pid, peer->start_ticks) == 'T')
        return store_fail(
            s,
            error_set(CASTOR_ERR_TIMEOUT,
                      "rank %d waited longer than CASTOR_TIMEOUT (%.1f s) for rank %d (pid %d) at %s; that "
                      "rank is stopped by a signal (kill -CONT %d lets it go on)",
                      store_job_rank(s, s->rank), s->timeout_seconds, store_job_rank(s, rank), peer->pid,
                      c->what, peer->pid));
    return store_fail(
        s,
        error_set(CASTOR_ERR_TIMEOUT,
                  "rank %d waited longer than CASTOR_TIMEOUT (%.1f s) for rank %d (pid %d) at %s; that rank "
                  "is %s. All ranks must make the same calls; raise CASTOR_TIMEOUT if it is only slow",
                  store_job_rank(s, s->rank), s->timeout_seconds, store_job_rank(s, rank), peer->pid, c->what,
                  store_activity_names[store_activity_get(s, rank)]));
}

/* Tells `castor top` and the stall watch whom this rank waits for. */
static void say_missing(const store *s, const wait_condition *c, live_wait *live) {
    int rank = live != NULL && c->missing ? c->missing(c->context) : -1;
    if (rank >= 0)
        live_wait_missing(live, s->control->rank[rank].pid);
}

/* The others cannot count on this rank any more: what it waited for it will not wait for again. */
static castor_status interrupted(store *s, const wait_condition *c) {
    store_fail_by(s, s->rank,
                  error_set(CASTOR_ERR_INTERRUPTED,
                            "rank %d (pid %d) was interrupted by a signal while it waited at %s",
                            store_job_rank(s, s->rank), (int)getpid(), c->what));
    return CASTOR_ERR_INTERRUPTED;
}

static castor_status wait_bounded(store *s, _Atomic uint32_t *event, _Atomic uint32_t *waiters,
                                  const wait_condition *c, double seconds, bool fatal) {
    if (c->ready(c->context))
        return CASTOR_OK;
    castor_status status = CASTOR_OK;
    uint64_t begin_ns = trace_now_ns();
    double deadline = clock_seconds() + seconds, look = clock_seconds() + LOOK_SECONDS;
    live_wait *live = live_wait_begin(LIVE_STORE, c->what, begin_ns);
    say_missing(s, c, live);
    atomic_fetch_add(waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(event);
        if (c->ready(c->context))
            break;
        double left = deadline - clock_seconds();
        if (left <= 0) {
            status = fatal ? give_up(s, c) : CASTOR_ERR_TIMEOUT;
            break;
        }
        futex_wait(event, seen, left < LOOK_SECONDS ? left : LOOK_SECONDS);
        if (c->ready(c->context))
            break;
        if (clock_seconds() < look)
            continue; /* woken by an event */
        look = clock_seconds() + LOOK_SECONDS;
        say_missing(s, c, live);
        if (interrupt_arrived()) {
            status = interrupted(s, c);
            break;
        }
        if ((status = wait_peers_check(s)) != CASTOR_OK) {
            /* One that left may have done its part before it did. */
            if (c->ready(c->context))
                status = CASTOR_OK;
            break;
        }
    }
    atomic_fetch_sub(waiters, 1);
    live_wait_end(live);
    uint64_t end_ns = trace_now_ns();
    trace_counter_add(GAUGE_WAIT_NS, end_ns - begin_ns);
    if (end_ns - begin_ns > RECORD_ABOVE_NS)
        trace_record_write(TRACE_WAIT, atomic_load(&s->control->rank[s->rank].activity), begin_ns, end_ns, 0,
                           0, 0, 0);
    return status;
}

castor_status wait_until(store *s, _Atomic uint32_t *event, _Atomic uint32_t *waiters,
                         const wait_condition *c) {
    return wait_bounded(s, event, waiters, c, s->timeout_seconds, true);
}

castor_status wait_for(store *s, _Atomic uint32_t *event, _Atomic uint32_t *waiters, const wait_condition *c,
                       double seconds) {
    return wait_bounded(s, event, waiters, c, seconds, false);
}

struct barrier_wait {
    store *s;
    uint32_t arrivals;
};

static int barrier_missing(void *context) {
    struct barrier_wait *w = context;
    for (int rank = 0; rank < w->s->world; rank++)
        if ((int32_t)(atomic_load(&w->s->control->rank[rank].arrivals) - w->arrivals) < 0)
            return rank;
    return -1;
}

static bool barrier_ready(void *context) {
    return barrier_missing(context) < 0;
}

/* ---- ranks that came to different meetings */

static wait_location_teller location_teller;

void wait_location_teller_set(wait_location_teller teller) {
    location_teller = teller;
}

static bool all_told(void *context) {
    const struct barrier_wait *w = context;
    for (int rank = 0; rank < w->s->world; rank++)
        if (atomic_load(&w->s->control->rank[rank].told) != w->arrivals)
            return false;
    return true;
}

/* "waits at train.py, line 12 (the end of backward)", or without the line where nobody knows it. */
static void meeting_describe(const struct barrier_wait *w, int rank, bool sizes, char *out, size_t size) {
    const rank_control *peer = &w->s->control->rank[rank];
    const store_meeting *m = &peer->meeting[w->arrivals % 2];
    bool located = atomic_load(&peer->told) == w->arrivals && peer->where[0];
    size_t used = log_format(out, size, "rank %d waits%s%s (%s", store_job_rank(w->s, rank),
                             located ? " at " : " for the others", located ? peer->where : "", m->what);
    if (sizes)
        used += log_format(out + used, size - used, ", %lu bytes", (unsigned long)m->bytes);
    log_format(out + used, size - used, ")");
}

/* Every rank finds the same two, since all look at the same meetings. */
static castor_status parted(struct barrier_wait *w, int other) {
    store *s = w->s;
    rank_control *own = &s->control->rank[s->rank];
    bool sizes = strcmp(s->control->rank[0].meeting[w->arrivals % 2].what,
                        s->control->rank[other].meeting[w->arrivals % 2].what) == 0;
    own->where[0] = '\0';
    if (location_teller)
        location_teller(own->where, sizeof own->where);
    atomic_store(&own->told, w->arrivals);
    wait_notify(&s->control->event, &s->control->waiters);
    wait_condition c = {all_told, NULL, w, "the positions of ranks that have parted"};
    castor_status status = wait_for(s, &s->control->event, &s->control->waiters, &c, TELL_SECONDS);
    if (status == CASTOR_ERR_INTERRUPTED)
        return status;
    char first[STORE_WHAT_MAX + STORE_WHERE_MAX + 64], second[sizeof first];
    meeting_describe(w, 0, sizes, first, sizeof first);
    meeting_describe(w, other, sizes, second, sizeof second);
    return store_fail(s, error_set(CASTOR_ERR_PARTED, "%s and %s: the script decided differently on them. %s",
                                   first, second,
                                   of_single_process(s) ? DECIDE : "All ranks must make the same calls"));
}

/* The same of ranks that hand over `bytes` bytes, as many on each. *alike: they all came with this digest as well. `said`: these
 * bytes, where they are at most STORE_SAID_MAX and the others are to read them by wait_said; NULL: they go another way. */
static castor_status wait_meeting(store *s, const char *what, const void *said, uint64_t bytes,
                                  uint64_t digest, bool *alike) {
    struct barrier_wait w = {.s = s};
    rank_control *own = &s->control->rank[s->rank];
    w.arrivals = atomic_load(&own->arrivals) + 1; /* only this rank writes it */
    store_meeting *mine = &own->meeting[w.arrivals % 2];
    mine->bytes = bytes;
    mine->digest = digest;
    if (said)
        memcpy(mine->said, said, bytes);
    log_format(mine->what, sizeof mine->what, "%s", what);
    held_before_barrier();
    atomic_store(&own->arrivals, w.arrivals);
    wait_notify(&s->control->event, &s->control->waiters);
    wait_condition c = {barrier_ready, barrier_missing, &w, what};
    castor_status status = wait_until(s, &s->control->event, &s->control->waiters, &c);
    s->changes++; /* what other ranks wrote before it is to be seen now */
    const store_meeting *first = &s->control->rank[0].meeting[w.arrivals % 2];
    *alike = true;
    for (int rank = 1; rank < s->world && !status; rank++) {
        const store_meeting *theirs = &s->control->rank[rank].meeting[w.arrivals % 2];
        if (theirs->bytes != first->bytes || strcmp(theirs->what, first->what) != 0)
            return parted(&w, rank);
        *alike &= theirs->digest == first->digest;
    }
    return status;
}

castor_status wait_barrier(store *s, const char *what) {
    bool alike;
    return wait_meeting(s, what, NULL, 0, 0, &alike);
}

/* What a rank said at this rank's last meeting. It stands there until the meeting after the next, which no rank reaches before
 * this one has come to the next: no second barrier is needed. */
static const void *wait_said(const store *s, int rank) {
    return s->control->rank[rank].meeting[atomic_load(&s->control->rank[s->rank].arrivals) % 2].said;
}

#define EXCHANGE_CALL_SIZE (16ul << 20)

static char *exchange_area(const store *s, store_exchange channel, int rank, size_t *capacity) {
    char *area = (char *)s->control + STORE_CONTROL_BYTES + (size_t)rank * STORE_EXCHANGE_BYTES;
    *capacity = channel == EXCHANGE_CALL ? EXCHANGE_CALL_SIZE : STORE_EXCHANGE_BYTES - EXCHANGE_CALL_SIZE;
    return channel == EXCHANGE_CALL ? area : area + EXCHANGE_CALL_SIZE;
}

castor_status store_exchange_put(store *s, store_exchange channel, const void *data, size_t bytes) {
    size_t capacity;
    char *area = exchange_area(s, channel, s->rank, &capacity);
    if (bytes > capacity)
        return error_set(CASTOR_ERR_ARGUMENT, "%B to hand to the other ranks, %B is the most",
                         (uint64_t)bytes, (uint64_t)capacity);
    if (bytes)
        memcpy(area, data, bytes);
    atomic_store(&s->control->rank[s->rank].exchange_bytes[channel], bytes);
    return CASTOR_OK;
}

const void *store_exchange_get(const store *s, store_exchange channel, int rank, size_t *bytes) {
    size_t capacity;
    const char *area = exchange_area(s, channel, rank, &capacity);
    *bytes = atomic_load(&s->control->rank[rank].exchange_bytes[channel]);
    return area;
}

/* Of the values' bits: two lists that differ have different ones, but for one chance in 2^64. */
static uint64_t values_digest(const double *values, uint32_t count) {
    uint64_t digest = 0x9e3779b97f4a7c15ull ^ count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        digest = (digest ^ bits) * 0xff51afd7ed558ccdull;
        digest ^= digest >> 32;
    }
    return digest;
}

/* The ranks have come with different values, and all know it: now each says all of its own. */
static castor_status values_compare(store *s, const char *what, const ranks_values *agreed) {
    castor_status status =
        store_exchange_put(s, EXCHANGE_CALL, agreed->values, agreed->count * sizeof *agreed->values);
    if (status || (status = wait_barrier(s, what)))
        return status;
    size_t bytes0, bytes;
    const double *first = store_exchange_get(s, EXCHANGE_CALL, 0, &bytes0);
    for (int rank = 1; rank < s->world; rank++) {
        const double *theirs = store_exchange_get(s, EXCHANGE_CALL, rank, &bytes);
        if (bytes != bytes0)
            return error_set(
                CASTOR_ERR_MISMATCH,
                "the ranks disagree at %s: rank %d has %lu values, rank %d has %lu. All ranks must "
                "make the same calls",
                what, store_job_rank(s, 0), (unsigned long)(bytes0 / sizeof *first), store_job_rank(s, rank),
                (unsigned long)(bytes / sizeof *first));
        for (uint32_t i = 0; i < agreed->count; i++)
            if (memcmp(&first[i], &theirs[i], sizeof *first) != 0)
                return error_set(
                    CASTOR_ERR_MISMATCH,
                    "the ranks disagree at %s: %s is %g on rank %d and %g on rank %d. Set the same "
                    "on every rank",
                    what, agreed->labels ? agreed->labels[i] : "a value", first[i], store_job_rank(s, 0),
                    theirs[i], store_job_rank(s, rank));
    }
    return CASTOR_OK; /* each rank's are rank 0's */
}

/* A meeting at which `every` takes what each rank says. */
static castor_status said_take(store *s, const char *what, const void *said, size_t bytes, uint64_t digest,
                               void *every, bool *alike) {
    castor_status status = wait_meeting(s, what, said, bytes, digest, alike);
    for (int rank = 0; rank < s->world && bytes && !status; rank++)
        memcpy((char *)every + (size_t)rank * bytes, wait_said(s, rank), bytes);
    return status;
}

castor_status ranks_agree(store *s, const char *what, const ranks_values *agreed, const void *said,
                          size_t bytes, void *every) {
    bool alike;
    uint64_t digest = values_digest(agreed->values, agreed->count);
    castor_status status = said_take(s, what, said, bytes, digest, every, &alike);
    return status || alike ? status : values_compare(s, what, agreed);
}

/* Every rank's `bytes` bytes are there: the meeting has compared their number. */
static void take(const store *s, int from, void *out, size_t bytes) {
    size_t sent;
    const void *area = store_exchange_get(s, EXCHANGE_CALL, from, &sent);
    if (bytes)
        memcpy(out, area, bytes);
}

castor_status ranks_broadcast(store *s, void *data, size_t bytes, const char *what) {
    castor_status status = CASTOR_OK;
    if (s->rank == 0)
        status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    bool alike;
    if ((status = wait_meeting(s, what, NULL, bytes, 0, &alike)))
        return status;
    take(s, 0, data, bytes);
    /* Rank 0 must not write its area again before everyone has read it. */
    return wait_barrier(s, what);
}

castor_status ranks_gather(store *s, const void *data, size_t bytes, void *out, const char *what) {
    bool alike;
    if (bytes <= STORE_SAID_MAX)
        return said_take(s, what, data, bytes, 0, out, &alike);
    castor_status status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    if ((status = wait_meeting(s, what, NULL, bytes, 0, &alike)))
        return status;
    for (int rank = 0; rank < s->world; rank++)
        take(s, rank, (char *)out + (size_t)rank * bytes, bytes);
    return wait_barrier(s, what);
}
