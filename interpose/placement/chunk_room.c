/* Room: who leaves a tier, and what comes before it is asked for. */
#include <errno.h>
#include "base/clock.h"
#include "base/error.h"
#include "chunk_manager_inside.h"

/* ---- Moves: their begin and end, and who waits for them. */

#define WAIT_SLICE_NS UINT64_C(20000000) /* after which a thread that waits looks again */

uint64_t wait_deadline(const chunk_manager *m) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), timeout = m->settings.timeout_ns;
    return timeout < UINT64_MAX - now ? now + timeout : UINT64_MAX;
}

uint64_t manager_now(chunk_manager *m) {
    uint64_t now = m->backend.now_ns(m->backend.context), stalls = m->statistics.stall_ns;
    now = now > stalls ? now - stalls : 0;
    /* Threads that wait at the same time count twice. */
    m->clock_ns = now > m->clock_ns ? now : m->clock_ns;
    return m->clock_ns;
}

void chunk_settle(chunk_manager *m, uint32_t chunk, uint32_t tier) {
    managed_chunk *c = &m->chunks[chunk];
    if (tier > c->tier && c->prefetched) {
        c->prefetched = false;
        m->statistics.wasted++;
    }
    chunk_statistics_count(&m->statistics, c->kind, c->tier, c->bytes, -1);
    chunk_statistics_count(&m->statistics, c->kind, tier, c->bytes, 1);
    victims_set(&m->victims[c->tier], chunk, 0);
    /* What comes up has a copy below where the backend keeps one; what goes down is the copy. */
    if (m->backend.keeps_copies)
        c->dirty = false;
    if (tier > c->tier) {
        uint64_t number = moments_number_of(&m->moments, chunk);
        m->scan = number < m->scan ? number : m->scan;
    }
    c->tier = (uint8_t)tier;
    chunk_refresh(m, chunk);
}

/* What the other tier has already need not be copied there. */
static chunk_move move_of(const chunk_manager *m, uint32_t chunk, uint32_t to) {
    const managed_chunk *c = &m->chunks[chunk];
    bool copies = to < c->tier || c->dirty || !m->backend.keeps_copies;
    return (chunk_move){chunk, c->tier, to, c->bytes, copies};
}

castor_status move_begin(chunk_manager *m, uint32_t chunk, uint32_t to) {
    managed_chunk *c = &m->chunks[chunk];
    chunk_backend *b = &m->backend;
    if (m->flights_count == FLIGHTS_MAX)
        return error_set(CASTOR_ERR_MEMORY, "chunk %u: %u moves are under way already", chunk, FLIGHTS_MAX);
    castor_status status = b->room_take(b->context, chunk, to, c->bytes);
    if (status != CASTOR_OK)
        return status;
    chunk_move move = move_of(m, chunk, to);
    c->begin_ns = b->now_ns(b->context);
    status = b->move_start(b->context, &move, &c->handle);
    if (status != CASTOR_OK) {
        b->room_give(b->context, chunk, to, c->bytes);
        return status;
    }
    c->moving = true;
    c->to = (uint8_t)to;
    m->flights[m->flights_count++] = chunk;
    m->flights_of[c->tier][to]++;
    m->coming[to] += c->bytes;
    m->going[c->tier] += c->bytes;
    chunk_statistics_count(&m->statistics, c->kind, to, c->bytes, 1);
    chunk_refresh(m, chunk);
    return CASTOR_OK;
}

/* The move is over; `moved`: the chunk has gone to the other tier. */
static void move_end(chunk_manager *m, uint32_t chunk, bool moved, uint64_t finished_ns) {
    managed_chunk *c = &m->chunks[chunk];
    uint32_t from = c->tier, to = c->to, left = moved ? from : to, flight = 0;
    while (m->flights[flight] != chunk)
        flight++;
    m->flights[flight] = m->flights[--m->flights_count];
    m->flights_of[from][to]--;
    m->coming[to] -= c->bytes;
    m->going[from] -= c->bytes;
    c->moving = false;
    chunk_statistics_count(&m->statistics, c->kind, to, c->bytes, -1);
    m->backend.room_give(m->backend.context, chunk, left, c->bytes);
    if (moved) {
        chunk_move move = move_of(m, chunk, to);
        if (move.dirty)
            bandwidth_add(&m->bandwidth[from][to], c->bytes, c->begin_ns, finished_ns);
        chunk_statistics_move(&m->statistics, &move);
        chunk_settle(m, chunk, to);
    } else {
        if (to < from)
            c->prefetched = false;
        chunk_refresh(m, chunk);
    }
    pthread_cond_broadcast(&m->changed);
}

static void move_failed(chunk_manager *m, uint32_t chunk) {
    m->statistics.failed_moves++;
    m->chunks[chunk].failed = true;
    m->scan = 0;
    move_end(m, chunk, false, 0);
}

void moves_collect(chunk_manager *m) {
    chunk_backend *b = &m->backend;
    for (uint32_t i = m->flights_count; i-- > 0;) {
        uint32_t chunk = m->flights[i];
        chunk_move_end end = MOVE_RUNNING;
        uint64_t finished_ns = 0;
        if (m->chunks[chunk].waited)
            continue;
        if (b->move_poll(b->context, m->chunks[chunk].handle, &end, &finished_ns) != CASTOR_OK)
            move_failed(m, chunk);
        else if (end == MOVE_DONE)
            move_end(m, chunk, true, finished_ns);
    }
}

castor_status change_await(chunk_manager *m, uint32_t chunk, uint64_t deadline) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now >= deadline)
        return error_set(
            CASTOR_ERR_TIMEOUT,
            "chunk %u: waited %llu ms for its move between tiers; the disk may hang or be too slow, or raise "
            "CASTOR_TIMEOUT",
            chunk, (unsigned long long)(m->settings.timeout_ns / 1000000));
    uint64_t until = deadline - now < WAIT_SLICE_NS ? deadline : now + WAIT_SLICE_NS;
    struct timespec time = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    pthread_cond_timedwait(&m->changed, &m->lock, &time);
    return CASTOR_OK;
}

castor_status move_await(chunk_manager *m, uint32_t chunk, uint64_t deadline) {
    chunk_backend *b = &m->backend;
    managed_chunk *c = &m->chunks[chunk];
    if (c->waited)
        return change_await(m, chunk, deadline);
    uint64_t now = clock_ns(CLOCK_MONOTONIC), finished_ns = 0, handle = c->handle;
    if (now >= deadline)
        return change_await(m, chunk, deadline); /* which says so */
    chunk_move_end end = MOVE_RUNNING;
    c->waited = true;
    pthread_mutex_unlock(&m->lock);
    castor_status status =
        b->move_wait(b->context, handle, deadline - now < WAIT_SLICE_NS ? deadline - now : WAIT_SLICE_NS,
                     &end, &finished_ns);
    pthread_mutex_lock(&m->lock);
    m->chunks[chunk].waited = false; /* the table may have grown meanwhile */
    if (status != CASTOR_OK)
        move_failed(m, chunk);
    else if (end == MOVE_DONE)
        move_end(m, chunk, true, finished_ns);
    else
        pthread_cond_broadcast(&m->changed); /* somebody else may wait in the backend */
    return status;
}

bool move_cancel(chunk_manager *m, uint32_t chunk) {
    chunk_backend *b = &m->backend;
    managed_chunk *c = &m->chunks[chunk];
    if (c->waited || !b->move_cancel || !b->move_cancel(b->context, c->handle))
        return false;
    m->statistics.cancelled_moves++;
    move_end(m, chunk, false, 0);
    return true;
}

/* ---- */

#define PLAN_ITEMS 64  /* moves that are looked ahead for */
#define PLAN_LOOKS 512 /* uses that are looked at for them in one go */
#define NEAR_USES  4

static uint64_t capacity_of(chunk_manager *m, uint32_t tier) {
    return m->backend.capacity_bytes(m->backend.context, tier);
}

/* What may be planned with: what lingers is in memory, and others must go for it. */
static uint64_t capacity_to_plan(chunk_manager *m) {
    uint64_t capacity = capacity_of(m, 0);
    uint64_t lingers = m->backend.lingering_bytes ? m->backend.lingering_bytes(m->backend.context) : 0;
    if (capacity == UINT64_MAX)
        return capacity;
    return capacity > lingers ? capacity - lingers : 0;
}

static uint64_t room_limit(chunk_manager *m) {
    uint64_t recorded = moments_non_model(&m->moments);
    uint64_t non_model = recorded > m->non_model ? recorded : m->non_model;
    return placement_limit(&m->settings.placement, !m->moments.following, capacity_to_plan(m), non_model);
}

void non_model_sample(chunk_manager *m) {
    uint64_t bytes = m->backend.non_model_bytes(m->backend.context);
    m->non_model = bytes > m->non_model ? bytes : m->non_model;
    chunk_statistics_non_model(&m->statistics, bytes);
}

bool chunk_may_leave(const chunk_manager *m, uint32_t chunk) {
    const managed_chunk *c = &m->chunks[chunk];
    if (m->settings.placement.policy == PLACEMENT_STATIC && c->tier >= c->static_tier)
        return false; /* it is where it belongs */
    return !c->moving && !c->loading && !c->users && !c->pins && !c->failed;
}

uint64_t chunk_key(const chunk_manager *m, uint32_t chunk) {
    return chunk_may_leave(m, chunk)
               ? placement_key(moments_next_use(&m->moments, chunk), m->chunks[chunk].last_use)
               : 0;
}

void chunk_refresh(chunk_manager *m, uint32_t chunk) {
    victims_set(&m->victims[m->chunks[chunk].tier], chunk, chunk_key(m, chunk));
}

/* What a tier holds when all moves from it are done. */
static uint64_t held_after_moves(const chunk_manager *m, uint32_t tier) {
    return m->statistics.tier_bytes[tier] - m->going[tier];
}

static bool fits(uint64_t held, uint64_t bytes, uint64_t limit) {
    return held <= limit && bytes <= limit - held;
}

castor_status victim_evict(chunk_manager *m, uint32_t chunk) {
    managed_chunk *c = &m->chunks[chunk];
    castor_status status = CASTOR_OK;
    bool tried = false;
    for (uint32_t tier = c->tier + 1u; tier < m->backend.tiers; tier++) {
        if (!fits(m->statistics.tier_bytes[tier], c->bytes, capacity_of(m, tier)))
            continue;
        tried = true;
        status = move_begin(m, chunk, tier);
        if (status == CASTOR_OK) {
            /* It is needed again, perhaps before those that were already looked at. */
            uint64_t number = moments_number_of(&m->moments, chunk);
            m->scan = number < m->scan ? number : m->scan;
            return status;
        }
    }
    if (!tried)
        status = error_set(CASTOR_ERR_MEMORY,
                           "chunk %u (%B) cannot leave tier %s: there is no room on a slower one", chunk,
                           c->bytes, m->backend.tier_names[c->tier]);
    c->failed = true;
    m->statistics.failed_moves++;
    chunk_refresh(m, chunk);
    return status;
}

/* A chunk that leaves the tier, to wait for; VICTIM_NONE: none does. */
static uint32_t leaving(const chunk_manager *m, uint32_t tier) {
    for (uint32_t i = 0; i < m->flights_count; i++)
        if (m->chunks[m->flights[i]].tier == tier)
            return m->flights[i];
    return VICTIM_NONE;
}

/* One that comes to the tier ahead of its use, and can go again when it is there; VICTIM_NONE: none does. */
static uint32_t coming(const chunk_manager *m, uint32_t tier) {
    for (uint32_t i = m->flights_count; i-- > 0;) {
        const managed_chunk *c = &m->chunks[m->flights[i]];
        if (c->to == tier && !c->users && !c->pins)
            return m->flights[i];
    }
    return VICTIM_NONE;
}

static castor_status no_room(chunk_manager *m, uint32_t tier, uint32_t chunk) {
    const managed_chunk *c = &m->chunks[chunk];
    return error_set(
        CASTOR_ERR_MEMORY,
        "no room for chunk %u (%s) on tier %s: it needs %B of %B, of which chunks in use have %B and other "
        "data %B",
        chunk, chunk_kind_names[c->kind], m->backend.tier_names[tier], c->bytes, capacity_of(m, tier),
        m->statistics.tier_bytes[tier], tier == 0 ? m->non_model : 0);
}

/* What the tier's chunks may have at most, whatever the policy says. */
static uint64_t most_of(chunk_manager *m, uint32_t tier) {
    uint64_t capacity = capacity_of(m, tier), others = tier == 0 ? m->non_model : 0;
    return capacity == UINT64_MAX ? capacity : capacity > others ? capacity - others : 0;
}

bool room_possible(chunk_manager *m, uint32_t chunk) {
    non_model_sample(m);
    uint64_t stay = 0, most = most_of(m, 0);
    if (most == UINT64_MAX)
        return true;
    for (uint32_t i = 0; i < m->chunks_count; i++) {
        const managed_chunk *c = &m->chunks[i];
        bool there = c->tier == 0 || (c->moving && c->to == 0);
        if (i != chunk && there && (c->moving ? c->users || c->pins : !chunk_may_leave(m, i)))
            stay += c->bytes;
    }
    return fits(stay, m->chunks[chunk].bytes, most);
}

castor_status room_make(chunk_manager *m, uint32_t tier, uint32_t chunk, uint64_t deadline) {
    uint64_t bytes = m->chunks[chunk].bytes;
    castor_status status = CASTOR_OK;
    for (;;) {
        moves_collect(m);
        non_model_sample(m);
        uint64_t most = most_of(m, tier), limit = tier == 0 ? room_limit(m) : most;
        uint64_t held = m->statistics.tier_bytes[tier];
        if (fits(held, bytes, limit))
            return CASTOR_OK;
        uint32_t victim = victims_first(&m->victims[tier]), gone = leaving(m, tier);
        if (!fits(held_after_moves(m, tier), bytes, limit) && victim != VICTIM_NONE) {
            victim_evict(m, victim); /* a failure makes it no victim */
            continue;
        }
        if (gone != VICTIM_NONE) {
            status = move_await(m, gone, deadline);
            if (status == CASTOR_ERR_TIMEOUT)
                return status;
            continue; /* what failed is no victim any more */
        }
        /* The limit is the policy's, what the tier holds is the world's. */
        if (fits(held, bytes, most)) {
            m->statistics.over_limit++;
            return CASTOR_OK;
        }
        uint32_t early = coming(m, tier);
        if (early != VICTIM_NONE) {
            if (!move_cancel(m, early) && (status = move_await(m, early, deadline)) == CASTOR_ERR_TIMEOUT)
                return status;
            continue;
        }
        return no_room(m, tier, chunk);
    }
}

/* Chunks go to their static tier, and others leave, until tier 0 is within its limit. */
static void settle(chunk_manager *m) {
    bool warmup = !m->moments.following, fixed = m->settings.placement.policy == PLACEMENT_STATIC;
    uint64_t limit = room_limit(m);
    if (warmup && !fixed) /* warm-up brings less, and sends nothing away for that */
        limit = placement_limit(&m->settings.placement, false, capacity_to_plan(m), m->non_model);
    while (m->flights_count < FLIGHTS_MAX && held_after_moves(m, 0) > limit) {
        uint32_t victim = victims_first(&m->victims[0]);
        if (victim == VICTIM_NONE)
            break;
        victim_evict(m, victim);
    }
}

typedef struct plan {
    prefetch_item items[PLAN_ITEMS];
    uint32_t chunks[PLAN_ITEMS];
    uint64_t moments[PLAN_ITEMS];
    uint64_t numbers[PLAN_ITEMS]; /* of the uses */
    uint64_t non_model[PLAN_ITEMS];
    uint32_t count;
} plan;

/* The chunks that are not there, in the order in which they are needed. */
static void look_ahead(chunk_manager *m, plan *p) {
    uint64_t number = moments_number_now(&m->moments);
    moments_upcoming use;
    bool all_there = true;
    p->count = 0;
    if (m->scan > number)
        number = m->scan;
    for (uint32_t looks = 0; looks < PLAN_LOOKS && p->count < PLAN_ITEMS; looks++, number++) {
        if (!moments_upcoming_get(&m->moments, number, &use))
            break;
        const managed_chunk *c = &m->chunks[use.chunk];
        bool there = c->tier == 0 ? !c->moving : c->moving && c->to == 0;
        bool later = moments_number_of(&m->moments, use.chunk) != number; /* another use of it comes first */
        if (there || later) {
            if (all_there)
                m->scan = number + 1;
            continue;
        }
        all_there = false;
        if (c->moving || c->loading || c->failed)
            continue;
        p->items[p->count] = (prefetch_item){c->bytes, use.begin_ns, 0};
        p->chunks[p->count] = use.chunk;
        p->moments[p->count] = use.moment;
        p->numbers[p->count] = number;
        p->non_model[p->count++] = use.non_model_bytes;
    }
}

/* The victim that goes for the use of that number, in `moment`: only one that is needed later. Where nothing tells how long moves take,
 * all that could come would come at once. Then a use that is not near waits while the one before it will leave a better victim: where
 * each step goes through all chunks in the same order, the best one is always the last that was used, and what came too early would
 * have sent away one that stays. */
static uint32_t victim_for(const chunk_manager *m, uint64_t moment, uint64_t number) {
    uint32_t victim = victims_first(&m->victims[0]);
    uint64_t next = victim == VICTIM_NONE ? 0 : moments_next_use(&m->moments, victim);
    if (next <= moment)
        return VICTIM_NONE;
    if (m->bandwidth[1][0].picoseconds_per_byte == 0 &&
        number > moments_number_now(&m->moments) + NEAR_USES &&
        moments_use_after(&m->moments, number - 1) > next)
        return VICTIM_NONE;
    return victim;
}

static uint32_t outward(const chunk_manager *m) {
    uint32_t moves = 0;
    for (uint32_t to = 1; to < m->backend.tiers; to++)
        moves += m->flights_of[0][to];
    return moves;
}

static uint32_t inward(const chunk_manager *m) {
    uint32_t moves = 0;
    for (uint32_t from = 1; from < m->backend.tiers; from++)
        moves += m->flights_of[from][0];
    return moves;
}

/* Items are begun in order. One that finds no room yet holds up those after it, so that none takes the room which is
 * being made for an earlier one; but room is made for several ahead, so that the way out is as busy as the way in. */
static void prefetch(chunk_manager *m) {
    plan p;
    uint64_t present_ns, next_ns, promised = 0, at_a_time = m->settings.moves_at_a_time;
    bool held_up = false;
    look_ahead(m, &p);
    if (p.count == 0)
        return;
    moments_times(&m->moments, &present_ns, &next_ns);
    uint64_t since = manager_now(m) - m->event_ns, recorded = room_limit(m);
    /* The next chance to begin a move comes with the next event. */
    uint64_t due = present_ns + since > next_ns ? present_ns + since : next_ns;
    prefetch_schedule(p.items, p.count, &m->bandwidth[1][0]);
    for (uint32_t i = 0; i < p.count; i++) {
        uint32_t chunk = p.chunks[i];
        uint64_t bytes = m->chunks[chunk].bytes, limit = recorded;
        uint64_t then = placement_limit(&m->settings.placement, false, capacity_to_plan(m), p.non_model[i]);
        limit = then < limit ? then : limit;
        uint64_t held = m->statistics.tier_bytes[0];
        bool fits_now = fits(held, bytes, limit);
        uint64_t out_ns = fits_now ? 0 : bandwidth_time_ns(&m->bandwidth[0][1], bytes);
        if (p.items[i].begin_ns > due + out_ns)
            return;
        if (!held_up && fits_now && inward(m) < at_a_time) {
            if (move_begin(m, chunk, 0) != CASTOR_OK) {
                m->statistics.failed_moves++;
                return;
            }
            m->chunks[chunk].prefetched = true;
            continue;
        }
        held_up = true;
        while (!fits(held_after_moves(m, 0) + promised, bytes, limit)) {
            uint32_t victim =
                outward(m) < at_a_time ? victim_for(m, p.moments[i], p.numbers[i]) : VICTIM_NONE;
            if (victim == VICTIM_NONE)
                return;
            victim_evict(m, victim);
        }
        promised += bytes;
    }
}

/* Under the static policy a chunk goes back to its static tier when its next use is not near. */
static void go_back(chunk_manager *m) {
    for (;;) {
        uint32_t victim = victims_first(&m->victims[0]);
        if (victim == VICTIM_NONE || m->flights_count == FLIGHTS_MAX)
            return;
        if (m->moments.following && (m->chunks[victim].prefetched ||
                                     moments_next_use(&m->moments, victim) <= moments_now(&m->moments) + 1))
            return;
        victim_evict(m, victim);
    }
}

void room_plan(chunk_manager *m) {
    settle(m);
    if (m->settings.placement.policy == PLACEMENT_STATIC)
        go_back(m);
    if (m->moments.following)
        prefetch(m);
}
