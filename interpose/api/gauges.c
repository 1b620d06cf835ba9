#include "gauges.h"
#include "castor.h"

#include <stdatomic.h>
#include "arena/arena.h"
#include "budget/budget.h"
#include "base/machine.h"
#include "job/options.h"
#include "store/store.h"
#include "store/tensor.h"
#include "trace/counters.h"
#include "trace/sampler.h"
#include "trace/trace.h"

enum { DEVICE = 0, HOST = 1, DISK = 2 }; /* tiers of castor_memory */

#define NODE_INTERVAL_NS UINT64_C(100000000)

static uint64_t import_bytes;                     /* set size when the agent attached */
static uint64_t import_own_bytes;                 /* what of it no other process had */
static _Atomic uint64_t model_bytes;              /* that are on no device: in memory or on disk */
static _Atomic uint64_t on_cpu[CHUNK_KIND_COUNT]; /* outside the store */

void gauges_model_data_set(uint64_t param_bytes, uint64_t grad_bytes, uint64_t optim_bytes) {
    atomic_store(&on_cpu[CHUNK_PARAM], param_bytes);
    atomic_store(&on_cpu[CHUNK_GRAD], grad_bytes);
    atomic_store(&on_cpu[CHUNK_OPTIM], optim_bytes);
}

/* Bytes of the chunks that this rank owns, by kind. */
static void add_own(const store *s, uint64_t own[]) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        const chunk_list *list = &s->chunks.list[kind];
        for (uint32_t i = 0; i < list->count; i++)
            if (list->chunks[i].owner == s->rank)
                own[kind] += list->chunks[i].used;
    }
}

/* Under a budget: adds what of this rank's chunks is in memory and on disk alone, and what the chunk managers have done. */
static void add_budgets(castor_memory *out) {
    for (store *s = store_first(); s && !s->detached; s = s->next) {
        chunk_statistics found;
        if (!budget_statistics(s, &found))
            continue;
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
            out->bytes[kind][HOST] += found.bytes[kind][0];
            out->bytes[kind][DISK] += found.bytes[kind][1];
        }
        for (int event = 0; event < MOMENT_EVENT_COUNT; event++) {
            out->moment_bytes[event] += found.moment_bytes[event];
            out->moment_other_bytes[event] += found.moment_non_model_bytes[event];
        }
        out->moves += found.moves[0][1] + found.moves[1][0];
        out->moved_bytes += found.moved_bytes[0][1] + found.moved_bytes[1][0];
        out->hits += found.hits;
        out->late += found.late;
        out->misses += found.misses;
        out->stall_ns += found.stall_ns;
    }
}

/* PyTorch's blocks that are no model data. Those on loans lie in the memory of sums, which counts already. */
static uint64_t other_bytes(const arena_stats *arena) {
    return arena->live_bytes - arena->adopted_bytes - arena->loan_bytes;
}

/* `own`: bytes of this rank's chunks, on all tiers. Chunks of sums and states that the budget does not know yet have been
 * allocated, and nobody has written to them. */
static void sample_budget(const uint64_t own[]) {
    castor_memory found = {0};
    arena_stats arena;
    add_budgets(&found);
    arena_get_stats(&arena);
    uint64_t in_memory = other_bytes(&arena);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        uint64_t *away = &found.bytes[kind][DISK], loaded = found.bytes[kind][HOST];
        if (kind != CHUNK_PARAM)
            *away = own[kind] > loaded ? own[kind] - loaded : 0;
        in_memory += own[kind] > *away ? own[kind] - *away : 0;
    }
    trace_gauge_set(GAUGE_MEMORY_BUDGET_BYTES, store_first()->budget_bytes);
    trace_gauge_set(GAUGE_IN_MEMORY_BYTES, in_memory);
    trace_gauge_set(GAUGE_DISK_PARAM_BYTES, found.bytes[CHUNK_PARAM][DISK]);
    trace_gauge_set(GAUGE_DISK_GRAD_BYTES, found.bytes[CHUNK_GRAD][DISK]);
    trace_gauge_set(GAUGE_DISK_OPTIM_BYTES, found.bytes[CHUNK_OPTIM][DISK]);
    trace_gauge_set(GAUGE_CHUNK_MOVES, found.moves);
    trace_gauge_set(GAUGE_CHUNK_BYTES_MOVED, found.moved_bytes);
    trace_gauge_set(GAUGE_PREFETCH_HITS, found.hits);
    trace_gauge_set(GAUGE_PREFETCH_LATE, found.late);
    trace_gauge_set(GAUGE_PREFETCH_MISSES, found.misses);
    trace_gauge_set(GAUGE_STALL_NS, found.stall_ns);
}

/* What this rank holds. */
static void sample_rank(void) {
    uint64_t own[CHUNK_KIND_COUNT] = {0};
    for (store *s = store_first(); s && !s->detached; s = s->next) {
        pthread_mutex_lock(&s->lock);
        add_own(s, own);
        pthread_mutex_unlock(&s->lock);
    }
    if (store_first() && store_first()->bounded) {
        sample_budget(own);
    } else if (options()->offload_dir[0] != '\0') {
        trace_gauge_set(GAUGE_DISK_PARAM_BYTES, own[CHUNK_PARAM]);
        trace_gauge_set(GAUGE_DISK_GRAD_BYTES, own[CHUNK_GRAD]);
        trace_gauge_set(GAUGE_DISK_OPTIM_BYTES, own[CHUNK_OPTIM]);
    }
    uint64_t device[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT] = {0};
    bool counted = gauges_devices_sample(device);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        own[kind] += atomic_load(&on_cpu[kind]);
    static const trace_gauge all[CHUNK_KIND_COUNT] = {[CHUNK_PARAM] = GAUGE_PARAM_BYTES,
                                                      [CHUNK_GRAD] = GAUGE_GRAD_BYTES,
                                                      [CHUNK_OPTIM] = GAUGE_OPTIM_BYTES};
    for (int kind = 0; kind < CHUNK_KIND_COUNT && counted; kind++)
        trace_gauge_set(all[kind],
                        own[kind] + device[kind][DEVICE_TIER_DEVICE] + device[kind][DEVICE_TIER_HOST]);
    uint64_t model = own[CHUNK_PARAM] + own[CHUNK_GRAD] + own[CHUNK_OPTIM];
    arena_stats arena;
    arena_get_stats(&arena);
    atomic_store(&model_bytes, model);
    if (arena.live_peak_bytes) {
        trace_gauge_set(GAUGE_OTHER_BYTES, other_bytes(&arena));
    } else { /* the set size has no pages of devices, nor those of homes on the host */
        uint64_t pss = sample_last_pss();
        if (pss > import_bytes + model)
            trace_gauge_set(GAUGE_OTHER_BYTES, pss - import_bytes - model);
    }
}

/* The node's chunks, whose last values are the steady state. */
static void sample_node(void) {
    uint64_t node[CHUNK_KIND_COUNT] = {0}, chunks = 0, largest = 0, wasted = 0;
    const store *first = store_first();
    if (!first || first->detached)
        return;
    for (store *s = store_first(); s && !s->detached; s = s->next) {
        if (s->bounded && s->rank)
            continue; /* to look costs time, and the report takes the largest of all ranks */
        pthread_mutex_lock(&s->lock);
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
            node[kind] += store_resident_bytes(s, (chunk_kind)kind);
            chunks += s->chunks.list[kind].count;
        }
        wasted += s->chunks.wasted_bytes;
        largest = s->chunks.chunk_bytes > largest ? s->chunks.chunk_bytes : largest;
        pthread_mutex_unlock(&s->lock);
    }
    trace_gauge_set(GAUGE_STORE_PARAM_BYTES, node[CHUNK_PARAM]);
    trace_gauge_set(GAUGE_STORE_GRAD_BYTES, node[CHUNK_GRAD]);
    trace_gauge_set(GAUGE_STORE_OPTIM_BYTES, node[CHUNK_OPTIM]);
    trace_gauge_set(GAUGE_CHUNK_COUNT, chunks);
    trace_gauge_set(GAUGE_CHUNK_SIZE, largest);
    trace_gauge_set(GAUGE_CHUNK_WASTED, wasted);
}

uint64_t castor_memory_available(void) {
    return machine_memory_available("");
}

void castor_memory_get(castor_memory *out) {
    uint64_t own[CHUNK_KIND_COUNT] = {0};
    *out = (castor_memory){0};
    for (store *s = store_first(); s && !s->detached; s = s->next) {
        pthread_mutex_lock(&s->lock);
        add_own(s, own);
        if (s->budget_bytes > out->budget_bytes)
            out->budget_bytes = s->budget_bytes;
        out->chunk_bytes =
            s->chunks.chunk_bytes > out->chunk_bytes ? s->chunks.chunk_bytes : out->chunk_bytes;
        pthread_mutex_unlock(&s->lock);
    }
    add_budgets(out);
    uint64_t device[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT] = {0};
    gauges_devices_get(device);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        uint64_t away = out->bytes[kind][DISK] < own[kind] ? out->bytes[kind][DISK] : own[kind];
        out->bytes[kind][DISK] = away;
        out->bytes[kind][HOST] =
            own[kind] - away + atomic_load(&on_cpu[kind]) + device[kind][DEVICE_TIER_HOST];
        out->bytes[kind][DEVICE] = device[kind][DEVICE_TIER_DEVICE];
    }
    arena_stats arena;
    arena_get_stats(&arena);
    out->other_bytes = other_bytes(&arena);
}

void gauges_sample(void) {
    sample_rank();
    sample_node();
}

/* A script that has ended gives back its tensors before it leaves: from the first step on, the node's gauges are taken where
 * steps end, and not by the sampler, which would take what is left then for the steady state. */
static _Atomic uint64_t step_sampled_ns;

void gauges_step(void) {
    uint64_t now = trace_now_ns();
    if (now - atomic_load(&step_sampled_ns) < NODE_INTERVAL_NS)
        return;
    atomic_store(&step_sampled_ns, now);
    sample_node();
}

static void sample_node_before_steps(void) {
    if (atomic_load(&step_sampled_ns) == 0)
        sample_node();
}

void gauges_backward(void) {
    static _Atomic bool sampled;
    if (!atomic_exchange(&sampled, true))
        sample_node_before_steps();
}

/* Of this process's private pages, those that forked processes have too; a page of k processes counts 1/k. All k are taken to have
 * all such pages. */
static uint64_t forked_bytes(const sample_set *set) {
    uint64_t others = store_first() && store_first()->world > 2 ? (uint64_t)store_first()->world - 1 : 1;
    return set->anonymous > set->pss_anonymous ? (set->anonymous - set->pss_anonymous) / others : 0;
}

static uint64_t gauge_now(trace_gauge gauge) {
    const trace_counters *counters = counters_peek();
    return counters ? __atomic_load_n(&counters->gauges[gauge].last, __ATOMIC_RELAXED) : 0;
}

/* What a reading of the set size consists of. */
static void split_set(const sample_set *set) {
    uint64_t import = set->pss_file + forked_bytes(set) + import_own_bytes;
    import = import < set->pss ? import : set->pss;
    uint64_t away = gauge_now(GAUGE_DISK_PARAM_BYTES) + gauge_now(GAUGE_DISK_GRAD_BYTES) +
                    gauge_now(GAUGE_DISK_OPTIM_BYTES);
    uint64_t model = atomic_load(&model_bytes), rest = set->pss - import;
    uint64_t held =
        (model > away ? model - away : 0) + gauge_now(GAUGE_PRIVATE_BYTES) + gauge_now(GAUGE_OTHER_BYTES);
    trace_gauge_set(GAUGE_IMPORT_BYTES, import);
    trace_gauge_set(GAUGE_REST_BYTES, rest > held ? rest - held : 0);
}

void gauges_start(void) {
    const sample_set set = sample_read_set();
    import_bytes = set.pss;
    uint64_t forked = forked_bytes(&set);
    import_own_bytes = set.pss_anonymous > forked ? set.pss_anonymous - forked : 0;
    gauges_devices_start();
    sample_register(sample_node_before_steps);
    sample_set_observe(split_set);
    sample_register_often(sample_rank);
}
