/* Moves: their begin and end, and who waits for them. */
#include <errno.h>
#include "core/clock.h"
#include "core/error.h"
#include "chunk_manager_inside.h"

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
