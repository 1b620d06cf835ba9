/* Which homes are on the host though the device had room, and which return there.
 *
 * A return must last: a home that comes back and leaves again has crossed the link twice for nothing. So a home returns only into memory
 * that was free at the end of each of the last steps, none of which had to rescue an allocation, and a reserve stays free. What the
 * script needs within its steps alone is not seen if it gives it back to the driver before the step's end: if returns are followed by a
 * rescue, the next ones wait, each time twice as long. */
#include "homes_inside.h"

#define PAUSE_FIRST 16
#define PAUSE_MOST  (UINT64_C(1) << 20)

void homes_placement_set(homes *h, const placement_settings *placement) {
    pthread_mutex_lock(&h->lock);
    h->placement = *placement;
    pthread_mutex_unlock(&h->lock);
}

device_tier policy_birth(const homes *h, chunk_kind kind, uint64_t bytes) {
    uint64_t there = h->statistics.bytes[kind][DEVICE_TIER_HOST];
    uint64_t all = there + h->statistics.bytes[kind][DEVICE_TIER_DEVICE] + bytes;
    return (double)there < placement_share(&h->placement, kind) * (double)all ? DEVICE_TIER_HOST
                                                                              : DEVICE_TIER_DEVICE;
}

static void pause_longer(home_returns *r) {
    if (r->pause < PAUSE_MOST)
        r->pause = r->pause ? 2 * r->pause : PAUSE_FIRST;
    r->resume = r->steps + r->pause;
}

void homes_short(homes *h) {
    atomic_store_explicit(&h->fell_short, true, memory_order_relaxed);
    atomic_store_explicit(&h->were_short, true, memory_order_relaxed);
}

bool homes_were_short(const homes *h) {
    return atomic_load_explicit(&h->were_short, memory_order_relaxed);
}

void policy_rescued(homes *h) {
    homes_short(h);
    if (h->returns.moved)
        pause_longer(&h->returns);
    h->returns.moved = false;
}

/* Bytes that may return. */
static uint64_t return_room(const homes *h) {
    const home_returns *r = &h->returns;
    if (r->seen < HOMES_RETURN_STEPS || r->steps < r->resume)
        return 0;
    uint64_t least = UINT64_MAX, free_bytes = 0, total_bytes = 0;
    for (uint32_t i = 0; i < HOMES_RETURN_STEPS; i++)
        least = r->room[i] < least ? r->room[i] : least;
    h->driver.room(h->driver.context, h->device, &free_bytes, &total_bytes);
    uint64_t reserve = placement_headroom(&h->placement, total_bytes);
    return least > reserve ? least - reserve : 0;
}

/* The home that returns next; UINT32_MAX: none has room. Kernels read small parameters, norms and biases, in their homes; large ones
 * have slots, and the steps of an optimizer come in parts. */
static uint32_t return_next(const homes *h, uint64_t room) {
    static const chunk_kind order[CHUNK_KIND_COUNT] = {CHUNK_PARAM, CHUNK_GRAD, CHUNK_OPTIM};
    for (int i = 0; i < CHUNK_KIND_COUNT; i++) {
        uint32_t found = UINT32_MAX, least = UINT32_MAX;
        for (uint32_t next = h->youngest[order[i]]; next; next = h->records[next - 1].older) {
            const home_record *r = &h->records[next - 1];
            uint64_t bytes = (uint64_t)r->units * h->unit_bytes;
            /* Among equals the oldest. */
            if (r->tier != DEVICE_TIER_HOST || r->stuck || r->units > least || bytes > room ||
                !tier_has_room(h, DEVICE_TIER_DEVICE, bytes))
                continue;
            found = next - 1;
            least = r->units;
        }
        if (found != UINT32_MAX)
            return found;
    }
    return UINT32_MAX;
}

bool homes_step_end(homes *h) {
    pthread_mutex_lock(&h->lock);
    home_returns *r = &h->returns;
    bool due = false, fell_short = atomic_exchange_explicit(&h->fell_short, false, memory_order_relaxed);
    r->steps++;
    if (h->fixed || !tier_bytes(h, DEVICE_TIER_HOST)) {
        r->seen = 0;
    } else {
        uint64_t free_bytes = 0, total_bytes = 0;
        h->driver.room(h->driver.context, h->device, &free_bytes, &total_bytes);
        r->room[r->steps % HOMES_RETURN_STEPS] = fell_short ? 0 : free_bytes;
        r->seen += r->seen < HOMES_RETURN_STEPS;
        uint64_t room = return_room(h);
        due = room && return_next(h, room) != UINT32_MAX;
    }
    pthread_mutex_unlock(&h->lock);
    return due;
}

/* The last steps would have had so much less. */
static void room_taken(home_returns *r, uint64_t bytes) {
    for (uint32_t i = 0; i < HOMES_RETURN_STEPS; i++)
        r->room[i] -= r->room[i] < bytes ? r->room[i] : bytes;
}

castor_status homes_return(homes *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t begin_ns = h->driver.now_ns(h->driver.context), room = return_room(h), moved = 0;
    castor_status status = h->driver.drain(h->driver.context, h->device);
    uint32_t unit;
    while (status == CASTOR_OK && moved < HOMES_RETURN_BYTES && (unit = return_next(h, room)) != UINT32_MAX) {
        uint64_t bytes = (uint64_t)h->records[unit].units * h->unit_bytes;
        if (moved && bytes > HOMES_RETURN_BYTES - moved)
            break;
        status = flip_drained(h, unit, DEVICE_TIER_DEVICE, false);
        if (status != CASTOR_OK)
            break;
        moved += bytes;
        room -= bytes;
        room_taken(&h->returns, bytes);
        h->returns.moved = true;
    }
    if (status != CASTOR_OK)
        pause_longer(&h->returns);
    h->statistics.flip_ns += h->driver.now_ns(h->driver.context) - begin_ns;
    pthread_mutex_unlock(&h->lock);
    return status == CASTOR_ERR_MEMORY ? CASTOR_OK : status;
}
