#include "collective.h"
#include <stddef.h>
#include "hooks/lookup/wrapper.h"
#include "trace/live.h"
#include "trace/trace.h"
#include "process_group.h"

#define FLIGHTS_MAX  512u
#define WORKS_MAX    2048u /* a power of two */
#define WORK_PROBES  64u
#define RECEIVES_MAX 1021u

struct collective_flight {
    uint32_t claimed; /* atomic: 0, free */
    uint32_t pending; /* atomic: works that are not complete, and the call until it returns */
    uint32_t failed;  /* atomic: the call threw */
    hook_id id;
    uint32_t group;
    hook_payload payload;
    live_wait *live;
    uint64_t call_begin_ns, call_end_ns;
    uint64_t begin_ns, end_ns; /* atomic: of the works; 0: none yet */
};

static collective_flight flights[FLIGHTS_MAX];
static uint32_t flights_next;

/* Works in flight by address. A slot is claimed by its `work`, whose flight is set right after. */
static struct {
    const void *work;
    collective_flight *flight;
} works[WORKS_MAX];

static void (*observer)(hook_id id);
static bool received; /* atomic: this process has called for a message */

HOOK_THREAD_LOCAL collective_call *current;

void hooks_collective_observe(void (*entered)(hook_id id)) {
    __atomic_store_n(&observer, entered, __ATOMIC_RELEASE);
}

bool hooks_collective_pending(void) {
    bool pending = __atomic_load_n(&received, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < FLIGHTS_MAX && !pending; i++)
        pending = __atomic_load_n(&flights[i].claimed, __ATOMIC_ACQUIRE) != 0;
    return pending;
}

/* Messages between two ranks: the others of the group do not come. */
static bool is_message(hook_id id) {
    switch (id) {
    case HOOK_GLOO_SEND:
    case HOOK_GLOO_RECV:
    case HOOK_GLOO_RECV_ANYSOURCE:
    case HOOK_C10D_NCCL_SEND:
    case HOOK_C10D_NCCL_RECV:
    case HOOK_C10D_NCCL_RECV_ANYSOURCE:
    case HOOK_C10D_NCCL2_SEND:
    case HOOK_C10D_NCCL2_RECV:
        return true;
    default:
        return false;
    }
}

static bool is_send(hook_id id) {
    return id == HOOK_GLOO_SEND || id == HOOK_C10D_NCCL_SEND || id == HOOK_C10D_NCCL2_SEND;
}

bool collective_is_inside(void) {
    return current != NULL;
}

void collective_hide(bool hide) {
    static collective_call hidden; /* nothing is ever written to it: the calls of the thread are inside it */
    current = hide ? &hidden : NULL;
}

static collective_flight *flight_claim(void) {
    uint32_t first = __atomic_fetch_add(&flights_next, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        collective_flight *flight = &flights[(first + i) % FLIGHTS_MAX];
        uint32_t free = 0;
        if (__atomic_compare_exchange_n(&flight->claimed, &free, 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return flight;
    }
    return NULL;
}

static void record(hook_id id, uint64_t begin_ns, uint64_t end_ns, const hook_payload *payload,
                   uint32_t group) {
    trace_record_write(TRACE_COLLECTIVE, id, begin_ns, end_ns, payload->bytes, payload->dtype, group,
                       payload->numel);
}

/* The call, or one of its works, is complete: the last of them ends the flight. */
static void flight_release(collective_flight *flight) {
    if (__atomic_sub_fetch(&flight->pending, 1, __ATOMIC_ACQ_REL))
        return;
    bool worked = flight->end_ns != 0;
    if (!flight->failed)
        record(flight->id, worked ? flight->begin_ns : flight->call_begin_ns,
               worked ? flight->end_ns : flight->call_end_ns, &flight->payload, flight->group);
    live_wait_end(flight->live);
    __atomic_store_n(&flight->claimed, 0, __ATOMIC_RELEASE);
}

/* Messages to come, by the works that stand for them: an older one that has the same place is forgotten. `busy` guards
 * a place; who finds it taken does without. */
typedef struct receive_place {
    uint32_t busy;
    const void *work;
    live_message message;
} receive_place;

static receive_place receives[RECEIVES_MAX];

static receive_place *receive_lock(const void *work) {
    receive_place *place = &receives[((uintptr_t)work >> 4) % RECEIVES_MAX];
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&place->busy, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)
               ? place
               : NULL;
}

static void receive_keep(const void *work, const live_message *message) {
    receive_place *place = work ? receive_lock(work) : NULL;
    if (!place)
        return;
    place->work = work;
    place->message = *message;
    __atomic_store_n(&place->busy, 0, __ATOMIC_RELEASE);
}

live_message collective_message_of(const void *work) {
    live_message message = {LIVE_PROCESS_GROUP_UNKNOWN, -1, 0, 0};
    receive_place *place = receive_lock(work);
    if (!place)
        return message;
    if (place->work == work)
        message = place->message;
    __atomic_store_n(&place->busy, 0, __ATOMIC_RELEASE);
    return message;
}

bool collective_enter(collective_call *call, hook_id id, const void *group) {
    call->outermost = current == NULL;
    if (!call->outermost)
        return false;
    current = call;
    call->id = id;
    call->returned = false;
    call->flight = NULL;
    call->group = process_group_number(group);
    call->group_address = group;
    call->peer = -1;
    call->tag = 0;
    call->work = NULL;
    call->live = NULL;
    call->payload = (hook_payload){.dtype = PAYLOAD_NO_DTYPE};
    void (*entered)(hook_id) = __atomic_load_n(&observer, __ATOMIC_ACQUIRE);
    if (entered)
        entered(id);
    return true;
}

void collective_begin(collective_call *call) {
    call->begin_ns = trace_now_ns();
    bool enqueued = hook_table[call->id].layer == HOOK_LAYER_C10D_NCCL;
    if (is_message(call->id) && !is_send(call->id))
        __atomic_store_n(&received, true, __ATOMIC_RELAXED);
    if (is_message(call->id))
        call->message = live_message_begin(call->group_address, is_send(call->id) ? LIVE_SENT : LIVE_RECEIVED,
                                           call->peer, call->tag, enqueued, call->begin_ns);
    else
        call->live = (enqueued ? live_collective_enqueue : live_collective_begin)(
            call->group_address, hook_operation_name(call->id), call->payload.bytes, call->begin_ns);
    collective_flight *flight = call->flight = flight_claim();
    if (!flight)
        return;
    flight->live = call->live;
    flight->id = call->id;
    flight->group = call->group;
    flight->payload = call->payload;
    flight->failed = 0;
    flight->call_begin_ns = call->begin_ns;
    flight->begin_ns = flight->end_ns = 0;
    __atomic_store_n(&flight->pending, 1, __ATOMIC_RELEASE);
}

void collective_leave(collective_call *call) {
    if (!call->outermost)
        return;
    current = NULL;
    if ((call->id == HOOK_GLOO_RECV || call->id == HOOK_GLOO_RECV_ANYSOURCE) && call->returned)
        receive_keep(call->work, &call->message);
    uint64_t end_ns = trace_now_ns();
    if (call->flight) {
        call->flight->call_end_ns = end_ns;
        if (!call->returned)
            __atomic_store_n(&call->flight->failed, 1, __ATOMIC_RELAXED);
        flight_release(call->flight);
    } else {
        live_wait_end(call->live);
        if (call->returned)
            record(call->id, call->begin_ns, end_ns, &call->payload, call->group);
    }
}

static uint32_t work_slot(const void *work, uint32_t probe) {
    return (uint32_t)(((uintptr_t)work >> 4) * 2654435761u + probe) % WORKS_MAX;
}

static int work_find(const void *work) {
    for (uint32_t probe = 0; probe < WORK_PROBES; probe++) {
        uint32_t slot = work_slot(work, probe);
        if (__atomic_load_n(&works[slot].work, __ATOMIC_ACQUIRE) == work)
            return (int)slot;
    }
    return -1;
}

/* Takes a work out of the table. */
static collective_flight *work_take(const void *work) {
    int slot = work_find(work);
    if (slot < 0)
        return NULL;
    collective_flight *flight = works[slot].flight;
    __atomic_store_n(&works[slot].work, NULL, __ATOMIC_RELEASE);
    return flight;
}

void collective_work_enqueue(const void *work) {
    /* Left over from a work at this address that was destroyed before it ran. */
    collective_flight *lost = work_take(work);
    if (lost)
        flight_release(lost);
    collective_flight *flight = current ? current->flight : NULL;
    if (!flight)
        return;
    for (uint32_t probe = 0; probe < WORK_PROBES; probe++) {
        uint32_t slot = work_slot(work, probe);
        const void *none = NULL;
        /* No other thread looks for this work before it is in the queue: its flight may follow. */
        if (__atomic_compare_exchange_n(&works[slot].work, &none, work, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            works[slot].flight = flight;
            __atomic_add_fetch(&flight->pending, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}

void collective_work_begin(const void *work) {
    int slot = work_find(work);
    if (slot < 0)
        return;
    uint64_t none = 0;
    __atomic_compare_exchange_n(&works[slot].flight->begin_ns, &none, trace_now_ns(), false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}

void collective_work_end(const void *work) {
    collective_flight *flight = work_take(work);
    if (!flight)
        return;
    uint64_t now = trace_now_ns(), seen = __atomic_load_n(&flight->end_ns, __ATOMIC_RELAXED);
    while (seen < now && !__atomic_compare_exchange_n(&flight->end_ns, &seen, now, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
        ;
    flight_release(flight);
}
