#include "together.h"

#include <string.h>
#include "core/clock.h"
#include "core/error.h"
#include "wait.h"

#define ELSEWHERE_SECONDS 0.2 /* a rank that stays so long where it was is elsewhere */

struct meeting {
    store *s;
    uint64_t key;
    uint32_t ticket;
    double since;
    /* Of the others: when this rank came, or since then, at the end of a backward. */
    uint32_t activity_changes[STORE_RANKS_MAX];
    double stayed_since[STORE_RANKS_MAX];
};

static uint32_t ticket_of(uint64_t word) {
    return (uint32_t)(word >> 32);
}
static uint32_t came(uint64_t word) {
    return (uint32_t)word;
}

/* A rank has abandoned an operation with this key, in whichever meeting: late comers must not wait for it. */
static bool key_abandoned(const store *s, uint64_t key) {
    for (int rank = 0; rank < s->world; rank++)
        if (atomic_load(&s->control->rank[rank].together_abandoned_key) == key)
            return true;
    return false;
}

/* A rank that did not come with this key and is seen to be busy with something else. */
static bool somebody_elsewhere(struct meeting *m) {
    store_control *c = m->s->control;
    uint32_t arrivals = atomic_load(&c->rank[m->s->rank].arrivals);
    if (key_abandoned(m->s, m->key))
        return true;
    for (int rank = 0; rank < m->s->world; rank++) {
        rank_control *peer = &c->rank[rank];
        if (rank == m->s->rank)
            continue;
        /* It waits at a barrier that this rank has yet to reach. */
        if ((int32_t)(atomic_load(&peer->arrivals) - arrivals) > 0)
            return true;
        uint32_t activity = atomic_load(&peer->activity);
        if (activity == ACTIVITY_SCRIPT)
            continue;
        if (activity == ACTIVITY_ENDED)
            return true;
        if (activity == ACTIVITY_CONSENSUS) {
            if (atomic_load(&peer->together_key) != m->key)
                return true;
            continue;
        }
        /* It may be on its way out of the backward or the collective that this rank has just left; or come to the end of
         * that backward only now, when its sums have long been added in the background. */
        uint32_t changes = atomic_load(&peer->activity_changes);
        bool stayed = changes == m->activity_changes[rank];
        if (!stayed && activity == ACTIVITY_BACKWARD) {
            m->activity_changes[rank] = changes;
            m->stayed_since[rank] = clock_seconds();
            continue;
        }
        if (stayed ? clock_seconds() - m->stayed_since[rank] > ELSEWHERE_SECONDS
                   : activity != ACTIVITY_COLLECTIVE)
            return true;
    }
    return false;
}

static _Atomic uint64_t *verdict_of(const struct meeting *m) {
    return &m->s->control->together_verdict[m->ticket % TOGETHER_VERDICTS];
}

static bool is_committed(const struct meeting *m) {
    return atomic_load(verdict_of(m)) == (((uint64_t)(m->ticket + 1) << 1) | 1);
}

/* A verdict is one word, ticket + 1 and whether to commit: of ranks that come to different ones at the same time the
 * first decides for all. */
static void decide(const struct meeting *m, bool commit) {
    store_control *c = m->s->control;
    uint64_t verdict = ((uint64_t)(m->ticket + 1) << 1) | commit, found = atomic_load(verdict_of(m));
    while ((int32_t)(m->ticket + 1 - (uint32_t)(found >> 1)) > 0 &&
           !atomic_compare_exchange_weak(verdict_of(m), &found, verdict))
        ;
    uint64_t word = atomic_load(&c->together);
    while (ticket_of(word) == m->ticket &&
           !atomic_compare_exchange_weak(&c->together, &word, ((uint64_t)m->ticket + 1) << 32))
        ;
    wait_notify(&c->event, &c->waiters);
}

static void abandon(const struct meeting *m) {
    atomic_store(&m->s->control->rank[m->s->rank].together_abandoned_key, m->key);
    decide(m, false);
}

static bool meeting_over(void *context) {
    struct meeting *m = context;
    return ticket_of(atomic_load(&m->s->control->together)) != m->ticket;
}

static bool meeting_over_or_pointless(void *context) {
    return meeting_over(context) || somebody_elsewhere(context);
}

castor_status together_try(store *s, uint64_t key, bool able, double patience_seconds, bool *committed) {
    store_control *c = s->control;
    rank_control *own = &c->rank[s->rank];
    struct meeting m = {.s = s, .key = key, .since = clock_seconds()};
    castor_status status = CASTOR_OK;
    *committed = false;
    for (int rank = 0; rank < s->world; rank++) {
        m.activity_changes[rank] = atomic_load(&c->rank[rank].activity_changes);
        m.stayed_since[rank] = m.since;
    }
    atomic_store(&own->together_key, key);
    store_activity_set(s, ACTIVITY_CONSENSUS);
    uint64_t word = atomic_load(&c->together);
    do {
        m.ticket = ticket_of(word);
        if (!able || key_abandoned(s, key)) {
            abandon(&m);
            goto done;
        }
    } while (!atomic_compare_exchange_weak(&c->together, &word, word + 1));
    if (came(word) + 1 == (uint32_t)s->world) {
        bool same = true;
        for (int rank = 0; rank < s->world; rank++)
            same &= atomic_load(&c->rank[rank].together_key) == key;
        if (same)
            decide(&m, true);
        else
            abandon(&m);
    } else {
        wait_condition over = {meeting_over_or_pointless, NULL, &m, "an operation on all gradients"};
        double left, until = m.since + patience_seconds;
        /* Short waits, because staying somewhere is told by the clock and not by an event. */
        do {
            left = until - clock_seconds();
            status = wait_for(s, &c->event, &c->waiters, &over,
                              left < ELSEWHERE_SECONDS / 2 ? left : ELSEWHERE_SECONDS / 2);
        } while (status == CASTOR_ERR_TIMEOUT && left > 0);
        if (status == CASTOR_ERR_TIMEOUT)
            status = CASTOR_OK;
        if (status == CASTOR_OK && !meeting_over(&m))
            abandon(&m);
    }
    *committed = is_committed(&m);
    if (!*committed)
        atomic_store(&own->together_abandoned_key, key);
done:
    store_activity_set(s, ACTIVITY_SCRIPT);
    return status;
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
static castor_status values_compare(store *s, const char *what, const double *values,
                                    const char *const *labels, uint32_t count) {
    castor_status status = store_exchange_put(s, EXCHANGE_CALL, values, count * sizeof *values);
    if (status || (status = wait_barrier(s, what)))
        return status;
    size_t bytes0, bytes;
    const double *first = store_exchange_get(s, EXCHANGE_CALL, 0, &bytes0);
    for (int rank = 1; rank < s->world; rank++) {
        const double *theirs = store_exchange_get(s, EXCHANGE_CALL, rank, &bytes);
        if (bytes != bytes0)
            return error_set(
                CASTOR_ERR_MISMATCH,
                "the ranks disagree at %s: rank %d brings %lu values, rank %d brings %lu. All ranks must "
                "make the same calls",
                what, store_job_rank(s, 0), (unsigned long)(bytes0 / sizeof *first), store_job_rank(s, rank),
                (unsigned long)(bytes / sizeof *first));
        for (uint32_t i = 0; i < count; i++)
            if (memcmp(&first[i], &theirs[i], sizeof *first) != 0)
                return error_set(
                    CASTOR_ERR_MISMATCH,
                    "the ranks disagree at %s: %s is %g on rank %d and %g on rank %d. Set the same "
                    "on every rank",
                    what, labels ? labels[i] : "a value", first[i], store_job_rank(s, 0), theirs[i],
                    store_job_rank(s, rank));
    }
    return CASTOR_OK; /* each rank's are rank 0's */
}

castor_status together_agree(store *s, const char *what, const double *values, const char *const *labels,
                             uint32_t count) {
    bool alike;
    castor_status status = wait_meeting(s, what, 0, values_digest(values, count), &alike);
    return status || alike ? status : values_compare(s, what, values, labels, count);
}

/* Every rank's `bytes` bytes are there: the meeting has compared their number. */
static void take(const store *s, int from, void *out, size_t bytes) {
    size_t sent;
    const void *area = store_exchange_get(s, EXCHANGE_CALL, from, &sent);
    if (bytes)
        memcpy(out, area, bytes);
}

castor_status together_broadcast(store *s, void *data, size_t bytes, const char *what) {
    castor_status status = CASTOR_OK;
    if (s->rank == 0)
        status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    bool alike;
    if ((status = wait_meeting(s, what, bytes, 0, &alike)))
        return status;
    take(s, 0, data, bytes);
    /* Rank 0 must not write its area again before everyone has read it. */
    return wait_barrier(s, what);
}

castor_status together_gather(store *s, const void *data, size_t bytes, void *out, const char *what) {
    castor_status status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    bool alike;
    if ((status = wait_meeting(s, what, bytes, 0, &alike)))
        return status;
    for (int rank = 0; rank < s->world; rank++)
        take(s, rank, (char *)out + (size_t)rank * bytes, bytes);
    return wait_barrier(s, what);
}
