/* The exported functions about the store: thin, over the modules. */
#include "castor.h"
#include "rank_check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "budget/budget.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/machine.h"
#include "job/options.h"
#include "base/process.h"
#include "events/life.h"
#include "hooks/table/hooks.h"
#include "nodes/exchange.h"
#include "placement_options.h"
#include "store/demand.h"
#include "store/binding.h"
#include "store/wait.h"
#include "store/registration.h"
#include "store/snapshot.h"
#include "store/store.h"
#include "store/tensor.h"
#include "trace/trace.h"

#define BLAMED_POLL_NS 20000000l

/* From so many ranks on, the sums' memory goes back between steps: the cost is the node's, and each rank bears its part
 * of it (docs/decisions.md). */

_Static_assert(sizeof(castor_binding_claim) == sizeof(binding_claim), "one layout, two names");
_Static_assert(sizeof(castor_description) == sizeof(tensor_description), "one layout, two names");
_Static_assert((int)CASTOR_ACTIVITY_ENDED == (int)ACTIVITY_ENDED &&
                   (int)CASTOR_ACTIVITY_DATA == (int)ACTIVITY_DATA &&
                   (int)CASTOR_ACTIVITY_BACKWARD == (int)ACTIVITY_BACKWARD,
               "one value, two names");
_Static_assert(CASTOR_SAID_MAX * sizeof(double) == STORE_SAID_MAX, "one value, two names");

/* A rank inside a collective of the script's will not come to an operation on all gradients. */
static void collective_entered(hook_id id) {
    (void)id;
    for (store *s = store_first(); s; s = s->next)
        if (!s->detached && store_activity_get(s, s->rank) == ACTIVITY_SCRIPT)
            store_activity_set(s, ACTIVITY_COLLECTIVE);
}

castor_status rank_check(const store *s, const char *function) {
    if (!s->detached)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_UNSUPPORTED,
                     "%s: this process was forked from rank %d (pid %d) and is no rank itself. It sees the "
                     "parameters as they were then; let the rank make this call",
                     function, store_job_rank(s, s->rank), s->control->rank[s->rank].pid);
}

static void gradient_return_set(store *s) {
    int asked = options()->gradient_return;
    s->gradient_return = asked >= 0 ? asked : budget_moves_parameters(s) ? 100 : 0;
}

castor_status castor_store_open(const char *group, const char *token, int rank, int world, int owners,
                                castor_store **out) {
    const castor_options *o = options();
    if (owners < 1 || owners > world)
        return error_set(CASTOR_ERR_ARGUMENT, "%d owners among %d ranks: out of range", owners, world);
    if (!store_first()) {
        castor_status status =
            life_fork_register(snapshot_fork_prepare, snapshot_fork_parent, snapshot_fork_child);
        if (status)
            return error_set(status, "no room for the store's fork handlers");
        hooks_collective_observe(collective_entered);
        for (uint32_t activity = 0; activity < ACTIVITY_COUNT; activity++)
            trace_name_set(TRACE_WAIT, activity, store_activity_names[activity]);
        castor_rank_set(rank);
    }
    uint64_t chunk_bytes = o->chunk_size == OPTION_BYTES_AUTO ? 0 : o->chunk_size;
    store_settings settings = {.bound = &budget_bound,
                               .chunk_bytes = chunk_bytes,
                               .offload_dir = o->offload_dir,
                               .budget_bytes = o->memory_budget == OPTION_BYTES_AUTO ? STORE_BUDGET_AUTO
                                                                                     : o->memory_budget,
                               .placement = placement_of(o),
                               .moments_dir = o->moments_dir,
                               .timeout_seconds = o->timeout};
    castor_status status = store_open(token ? token : o->job, group, rank, world, &settings, out);
    if (status)
        return status;
    (*out)->owners = owners;
    gradient_return_set(*out);
    return CASTOR_OK;
}

int castor_places(uint64_t parameter_bytes) {
    const castor_options *o = options();
    placement_settings placement = placement_of(o);
    if (placement_offloads(&placement))
        return 1;
    if (o->memory_budget != OPTION_BYTES_AUTO)
        return o->memory_budget != 0;
    return store_budget_automatic(parameter_bytes, machine_memory_available("")) != 0;
}

void castor_store_leave(castor_store *s) {
    store_leave(s);
}

castor_status castor_barrier(castor_store *s, const char *what) {
    castor_status status = rank_check(s, __func__);
    return status ? status : wait_barrier(s, what);
}

castor_status castor_broadcast(castor_store *s, void *data, size_t bytes, const char *what) {
    castor_status status = rank_check(s, __func__);
    return status ? status : ranks_broadcast(s, data, bytes, what);
}

castor_status castor_gather(castor_store *s, const void *data, size_t bytes, void *out, const char *what) {
    castor_status status = rank_check(s, __func__);
    return status ? status : ranks_gather(s, data, bytes, out, what);
}

void castor_activity_set(castor_store *s, int place) {
    if (place >= 0 && place < ACTIVITY_COUNT)
        store_activity_set(s, (store_activity)place);
}

void castor_fail(castor_store *s, const char *text, uint64_t cause) {
    if (!s->detached)
        atomic_store(&s->control->rank[s->rank].cause, cause);
    store_fail_by(s, s->rank,
                  error_set(CASTOR_ERR_PEER, "rank %d (pid %d) stopped: %s", store_job_rank(s, s->rank),
                            (int)getpid(), text));
}

int castor_failure_get(castor_store *s, char *text, size_t size) {
    if (!s->detached)
        wait_peers_check(s);
    if (atomic_load(&s->control->failed) != 2)
        return -2;
    log_message(text, size, "%s", s->control->failure);
    return s->control->blamed;
}

uint64_t castor_failure_cause(const castor_store *s, int rank) {
    return rank >= 0 && rank < s->world ? atomic_load(&s->control->rank[rank].cause) : 0;
}

void castor_line_reader_set(void (*tell)(char *out, size_t size)) {
    wait_location_teller_set(tell);
}

void castor_blamed_wait(castor_store *s, double seconds) {
    int rank = s->detached ? -1 : store_blamed(s);
    double until = clock_seconds() + seconds;
    while (rank >= 0 && clock_seconds() < until &&
           process_state(s->control->rank[rank].pid, s->control->rank[rank].start_ticks) != 0)
        nanosleep(&(struct timespec){0, BLAMED_POLL_NS}, NULL);
}

void castor_signals_set(int (*ensure)(void), void (*release)(int), int (*check)(void),
                        void (*fetch)(void **, void **, void **)) {
    interrupt_set(&(interrupt_calls){ensure, release, check, fetch});
}

void castor_raised_take(void **out) {
    interrupt_take(out);
}

castor_status invariants_check(store *s) {
    if (!store_check(s))
        return CASTOR_ERR_ARGUMENT;
    if (!arena_check())
        return error_set(CASTOR_ERR_ARGUMENT, "the arena's tables contradict each other");
    return budget_check(s);
}

int castor_is_paged(uint64_t bytes) {
    return pages_own(bytes);
}

int castor_is_mappable(const void *address, uint64_t bytes, int whole) {
    return tensor_is_mappable(address, bytes, whole);
}

castor_status castor_register(castor_store *s, const castor_description *descriptions, uint32_t count,
                              castor_tensor **out) {
    castor_status status = rank_check(s, __func__);
    if (status)
        return status;
    uint32_t *ids = calloc(count + 1ul, sizeof *ids);
    if (!ids)
        return store_fail(s, error_set(CASTOR_ERR_MEMORY, "no memory to register %u parameters", count));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += descriptions[i].numel *
                 (descriptions[i].flags & CASTOR_DESCRIPTION_FLOAT_SUM /* masters and states are floats too */
                      ? kernel_dtype_bytes(KERNEL_F32)
                      : kernel_dtype_bytes((kernel_dtype)descriptions[i].dtype));
    store_activity_set(s, ACTIVITY_REGISTRATION);
    status = store_budget_decide(s, bytes);
    gradient_return_set(s);
    if (status == CASTOR_OK)
        status = tensor_register(s, (const tensor_description *)descriptions, count, ids);
    store_activity_set(s, ACTIVITY_SCRIPT);
    for (uint32_t i = 0; i < count && !status; i++)
        out[i] = s->tensors[ids[i]];
    if (status == CASTOR_OK)
        exchange_registered(s, options()->chunk_size, out, count);
    free(ids);
    return status;
}

void castor_tensor_get(const castor_tensor *t, castor_tensor_info *out) {
    bool mine = t->owner == t->store->rank, stepped_here = mine && (t->node < 0 || t->node == t->store->node);
    *out = (castor_tensor_info){.id = t->id,
                                .owner = t->owner,
                                .shared = t->mode == TENSOR_SHARED,
                                .dtype = t->dtype,
                                .node = t->node,
                                .single_sum = demand_single(t, CHUNK_GRAD),
                                .single_parameter = demand_single(t, CHUNK_PARAM),
                                .stepped_here = stepped_here,
                                .summed_here = demand_single(t, CHUNK_GRAD) ? stepped_here : mine,
                                .bytes = t->bytes,
                                .binding = t->binding,
                                .param_alias = t->param_alias,
                                .sum = t->grad_alias,
                                .gradient = (const castor_gradient_state *)&t->gradient};
}

void castor_tensor_forget(castor_tensor *t) {
    tensor_forget(t);
}

castor_status castor_tensor_release(castor_tensor *t) {
    return tensor_release(t);
}

castor_status castor_tensor_unbind(castor_tensor *t) {
    return tensor_unbind(t);
}

uint32_t castor_bindings_check(castor_tensor *const *tensors, void *const *addresses, const uint64_t *layouts,
                               uint32_t count, uint8_t *away) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += away[i] = !binding_is_at(tensors[i], addresses[i], layouts[i]);
    return found;
}

castor_status castor_bindings_settle(castor_store *s, castor_tensor *const *tensors,
                                     const castor_binding_claim *claims, uint32_t count, uint8_t *verdicts) {
    castor_status status = rank_check(s, __func__);
    if (status)
        return status;
    store_activity_set(s, ACTIVITY_STEP);
    return bindings_settle(s, tensors, (const binding_claim *)claims, count, verdicts);
}

uint64_t castor_digest(const void *data, uint64_t bytes) {
    return binding_digest(data, bytes);
}

castor_status castor_edits_digest(castor_tensor *const *tensors, uint32_t count, uint64_t *digests) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        status = binding_edits_digest(tensors[i], &digests[i]);
    return status;
}

castor_status castor_state_allocate(castor_tensor *t, uint64_t bytes, uint64_t *offset, void **alias) {
    castor_status status = rank_check(t->store, __func__);
    return status ? status : tensor_state_allocate(t, bytes, offset, (char **)alias);
}

castor_status castor_state_view(castor_tensor *t, uint64_t offset, uint64_t bytes, void **out) {
    store *s = t->store;
    castor_status status = rank_check(s, __func__);
    if (status)
        return status;
    uint64_t from = offset & ~(PAGE_BYTES - 1);
    size_t span = pages_round(offset - from + bytes);
    char *view;
    status = pages_map_view(s->chunks.list[CHUNK_OPTIM].fd, from, span, NULL, &view);
    if (status == CASTOR_OK && (status = snapshot_view_add(t, from, view, span)) != CASTOR_OK)
        munmap(view, span);
    if (status == CASTOR_OK)
        chunk_units_map(&s->chunks, view, span);
    if (status == CASTOR_OK)
        *out = view + (offset - from);
    return status;
}

void castor_state_unview(castor_store *s, void *view, uint64_t bytes) {
    char *from = (char *)((uintptr_t)view & ~(PAGE_BYTES - 1));
    snapshot_view_remove(s, from);
    munmap(from, pages_round((size_t)((char *)view - from) + bytes));
}

castor_status castor_views_push(void *const *views, void *const *aliases, const uint64_t *bytes,
                                uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        if (pages_edited_copy(views[i], aliases[i], pages_round(bytes[i])))
            status = pages_edited_drop(views[i], pages_round(bytes[i]));
    return status;
}

castor_status castor_view_keep(void *view, uint64_t bytes) {
    return pages_privatize(view, pages_round(bytes));
}

castor_status castor_views_drop(void *const *views, const uint64_t *bytes, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        status = pages_edited_drop(views[i], pages_round(bytes[i]));
    return status;
}

void castor_copy_many(void *const *to, const void *const *from, const uint64_t *bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        memcpy(to[i], from[i], bytes[i]);
}

castor_status castor_directory_put(castor_store *s, const void *data, size_t bytes) {
    castor_status status = rank_check(s, __func__);
    return status ? status : store_exchange_put(s, EXCHANGE_STATES, data, bytes);
}

const void *castor_directory_get(castor_store *s, int rank, size_t *bytes) {
    return store_exchange_get(s, EXCHANGE_STATES, rank, bytes);
}
