#include "consensus.h"

#include "base/clock.h"
#include "wait.h"

#define ELSEWHERE_SECONDS 0.2 /* a rank that stays so long where it was is elsewhere */

struct attempt {
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

/* A rank has abandoned an operation with this key, in whichever attempt: late comers must not wait for it. */
static bool key_abandoned(const store *s, uint64_t key) {
    for (int rank = 0; rank < s->world; rank++)
        if (atomic_load(&s->control->rank[rank].consensus_abandoned_key) == key)
            return true;
    return false;
}

/* A rank that did not come with this key and is seen to be busy with something else. */
static bool somebody_elsewhere(struct attempt *m) {
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
            if (atomic_load(&peer->consensus_key) != m->key)
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

static _Atomic uint64_t *verdict_of(const struct attempt *m) {
    return &m->s->control->consensus_verdict[m->ticket % CONSENSUS_VERDICTS];
}

static bool is_committed(const struct attempt *m) {
    return atomic_load(verdict_of(m)) == (((uint64_t)(m->ticket + 1) << 1) | 1);
}

/* A verdict is one word, ticket + 1 and whether to commit: of ranks that come to different ones at the same time the
 * first decides for all. */
static void decide(const struct attempt *m, bool commit) {
    store_control *c = m->s->control;
    uint64_t verdict = ((uint64_t)(m->ticket + 1) << 1) | commit, found = atomic_load(verdict_of(m));
    while ((int32_t)(m->ticket + 1 - (uint32_t)(found >> 1)) > 0 &&
           !atomic_compare_exchange_weak(verdict_of(m), &found, verdict))
        ;
    uint64_t word = atomic_load(&c->consensus);
    while (ticket_of(word) == m->ticket &&
           !atomic_compare_exchange_weak(&c->consensus, &word, ((uint64_t)m->ticket + 1) << 32))
        ;
    wait_notify(&c->event, &c->waiters);
}

static void abandon(const struct attempt *m) {
    atomic_store(&m->s->control->rank[m->s->rank].consensus_abandoned_key, m->key);
    decide(m, false);
}

static bool is_over(void *context) {
    struct attempt *m = context;
    return ticket_of(atomic_load(&m->s->control->consensus)) != m->ticket;
}

static bool is_over_or_pointless(void *context) {
    return is_over(context) || somebody_elsewhere(context);
}

castor_status consensus_try(store *s, uint64_t key, bool able, double patience_seconds, bool *committed) {
    store_control *c = s->control;
    rank_control *own = &c->rank[s->rank];
    struct attempt m = {.s = s, .key = key, .since = clock_seconds()};
    castor_status status = CASTOR_OK;
    *committed = false;
    for (int rank = 0; rank < s->world; rank++) {
        m.activity_changes[rank] = atomic_load(&c->rank[rank].activity_changes);
        m.stayed_since[rank] = m.since;
    }
    atomic_store(&own->consensus_key, key);
    store_activity_set(s, ACTIVITY_CONSENSUS);
    uint64_t word = atomic_load(&c->consensus);
    do {
        m.ticket = ticket_of(word);
        if (!able || key_abandoned(s, key)) {
            abandon(&m);
            goto done;
        }
    } while (!atomic_compare_exchange_weak(&c->consensus, &word, word + 1));
    if (came(word) + 1 == (uint32_t)s->world) {
        bool same = true;
        for (int rank = 0; rank < s->world; rank++)
            same &= atomic_load(&c->rank[rank].consensus_key) == key;
        if (same)
            decide(&m, true);
        else
            abandon(&m);
    } else {
        wait_condition over = {is_over_or_pointless, NULL, &m, "an operation on all gradients"};
        double left, until = m.since + patience_seconds;
        /* Short waits, because staying somewhere is told by the clock and not by an event. */
        do {
            left = until - clock_seconds();
            status = wait_for(s, &c->event, &c->waiters, &over,
                              left < ELSEWHERE_SECONDS / 2 ? left : ELSEWHERE_SECONDS / 2);
        } while (status == CASTOR_ERR_TIMEOUT && left > 0);
        if (status == CASTOR_ERR_TIMEOUT)
            status = CASTOR_OK;
        if (status == CASTOR_OK && !is_over(&m))
            abandon(&m);
    }
    *committed = is_committed(&m);
    if (!*committed)
        atomic_store(&own->consensus_abandoned_key, key);
done:
    store_activity_set(s, ACTIVITY_SCRIPT);
    return status;
}
