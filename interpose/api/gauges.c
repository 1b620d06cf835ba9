#include "gauges.h"
#include <stdatomic.h>
#include <unistd.h>
#include "arena/arena.h"
#include "base/machine.h"
#include "budget/budget.h"
#include "device/devices.h"
#include "job/options.h"
#include "store/store.h"
#include "store/tensor.h"
#include "trace/counters.h"
#include "trace/device_blocks.h"
#include "trace/device_memory.h"
#include "trace/sampler.h"
#include "trace/trace.h"
#include "castor.h"

/* What this process tells the trace of its devices. */

static _Atomic uint64_t outside[CHUNK_KIND_COUNT];          /* model data on devices that is in no home */
static _Atomic uint64_t copied_by_agent[DEVICE_TIER_COUNT]; /* to that tier */
static _Atomic bool trains;                                 /* a backward pass was seen */
static _Atomic bool ended;                                  /* the gauges stay as they are */
static _Atomic pid_t counting;                              /* a forked child has no devices */

void castor_event_device_data(const uint64_t *addresses, const uint64_t *bytes, const uint8_t *kinds,
                              uint32_t count) {
    static const device_part parts[CHUNK_KIND_COUNT] = {[CHUNK_PARAM] = DEVICE_PART_PARAM,
                                                        [CHUNK_GRAD] = DEVICE_PART_GRAD,
                                                        [CHUNK_OPTIM] = DEVICE_PART_OPTIM};
    uint64_t found[CHUNK_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < count; i++)
        if (kinds[i] < CHUNK_KIND_COUNT)
            device_blocks_tell(addresses[i], parts[kinds[i]]);
    for (uint32_t i = 0; i < count; i++)
        if (kinds[i] < CHUNK_KIND_COUNT && devices_find(addresses[i]) < 0)
            found[kinds[i]] += bytes[i];
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        atomic_store(&outside[kind], found[kind]);
    device_blocks_write();
}

void castor_event_device_used(int device, uint64_t bytes) {
    device_blocks_note_used(device, bytes);
    device_blocks_write();
}

int castor_event_device_peak(void) {
    return device_blocks_risen();
}

void castor_event_device_copied(int device, int to, uint64_t bytes, void *stream) {
    if ((unsigned)to >= DEVICE_TIER_COUNT)
        return;
    atomic_fetch_add(&copied_by_agent[to], bytes);
    if (stream)
        copies_note(devices_copies(device), to == DEVICE_TIER_DEVICE ? COPY_PART_IN : COPY_PART_OUT, bytes,
                    (uint64_t)stream);
}

/* Of all devices together. */
typedef struct devices_statistics {
    homes_statistics homes;
    slots_statistics slots;
    updates_statistics updates;
    uint64_t slots_bytes; /* taken for regions */
    bool any;
} devices_statistics;

static void add_homes(homes_statistics *sum, const homes_statistics *more) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
            sum->bytes[kind][tier] += more->bytes[kind][tier];
    for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++) {
        sum->flips[tier] += more->flips[tier];
        sum->flipped_bytes[tier] += more->flipped_bytes[tier];
    }
    sum->budget_bytes += more->budget_bytes == UINT64_MAX ? 0 : more->budget_bytes;
    sum->flip_ns += more->flip_ns;
    sum->rescues += more->rescues;
    sum->refused += more->refused;
    sum->taken_bytes += more->taken_bytes;
    sum->beside_bytes += more->beside_bytes;
}

static void add_slots(slots_statistics *sum, const slots_statistics *more) {
    sum->uses += more->uses;
    sum->hits += more->hits;
    sum->prefetched += more->prefetched;
    sum->in_time += more->in_time;
    sum->home_reads += more->home_reads;
    sum->copies += more->copies;
    sum->copied_bytes += more->copied_bytes;
    sum->stale += more->stale;
}

static void add_updates(updates_statistics *sum, const updates_statistics *more) {
    sum->updates += more->updates;
    sum->elements += more->elements;
    sum->waits += more->waits;
}

static void statistics_get(devices_statistics *out) {
    *out = (devices_statistics){0};
    if (atomic_load(&counting) != getpid())
        return;
    for (int device = 0; device < DEVICES_MAX; device++) {
        homes *h = devices_homes(device);
        if (!h)
            continue;
        homes_statistics of_homes;
        slots_statistics of_slots;
        updates_statistics of_updates;
        homes_statistics_get(h, &of_homes);
        slots_statistics_get(devices_slots(device), &of_slots);
        updates_statistics_get(devices_updates(device), &of_updates);
        add_homes(&out->homes, &of_homes);
        add_slots(&out->slots, &of_slots);
        add_updates(&out->updates, &of_updates);
        out->slots_bytes += of_slots.copies > 0 ? of_slots.region_bytes : 0; /* the first copy takes it */
        out->any = true;
    }
}

static void set_homes(const homes_statistics *homes) {
    trace_gauge_set(GAUGE_DEVICE_BUDGET_BYTES, homes->budget_bytes);
    trace_gauge_set(GAUGE_FLIPS_TO_DEVICE, homes->flips[DEVICE_TIER_DEVICE]);
    trace_gauge_set(GAUGE_FLIPS_TO_HOST, homes->flips[DEVICE_TIER_HOST]);
    trace_gauge_set(GAUGE_FLIPPED_TO_DEVICE_BYTES, homes->flipped_bytes[DEVICE_TIER_DEVICE]);
    trace_gauge_set(GAUGE_FLIPPED_TO_HOST_BYTES, homes->flipped_bytes[DEVICE_TIER_HOST]);
    trace_gauge_set(GAUGE_FLIP_NS, homes->flip_ns);
    trace_gauge_set(GAUGE_RESCUES, homes->rescues);
    trace_gauge_set(GAUGE_HOMES_REFUSED, homes->refused);
}

static void set_slots(const slots_statistics *slots) {
    trace_gauge_set(GAUGE_SLOT_USES, slots->uses);
    trace_gauge_set(GAUGE_SLOT_HITS, slots->hits);
    trace_gauge_set(GAUGE_SLOT_PREFETCHED, slots->prefetched);
    trace_gauge_set(GAUGE_SLOT_IN_TIME, slots->in_time);
    trace_gauge_set(GAUGE_SLOT_HOME_READS, slots->home_reads);
    trace_gauge_set(GAUGE_SLOT_COPIES, slots->copies);
    trace_gauge_set(GAUGE_SLOT_COPIED_BYTES, slots->copied_bytes);
    trace_gauge_set(GAUGE_SLOT_STALE, slots->stale);
}

static void set_updates(const updates_statistics *updates) {
    trace_gauge_set(GAUGE_HOST_STEPS, updates->updates);
    trace_gauge_set(GAUGE_HOST_STEP_BYTES, updates->elements * sizeof(float));
    trace_gauge_set(GAUGE_HOST_STEP_WAITS, updates->waits);
}

static void set_link(const devices_statistics *found) {
    trace_gauge_set(GAUGE_LINK_TO_DEVICE_BYTES, found->slots.copied_bytes +
                                                    found->homes.flipped_bytes[DEVICE_TIER_DEVICE] +
                                                    atomic_load(&copied_by_agent[DEVICE_TIER_DEVICE]));
    trace_gauge_set(GAUGE_LINK_TO_HOST_BYTES, found->homes.flipped_bytes[DEVICE_TIER_HOST] +
                                                  atomic_load(&copied_by_agent[DEVICE_TIER_HOST]));
}

static void gauges_devices_start(void) {
    atomic_store(&counting, getpid());
}

void castor_event_devices_end(void) {
    gauges_sample();
    for (int device = 0; device < DEVICES_MAX; device++)
        copies_look(devices_copies(device), true);
    atomic_store(&ended, true);
}

static void add_bytes(const devices_statistics *found, uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
            bytes[kind][tier] += found->homes.bytes[kind][tier];
        if (kind == CHUNK_PARAM) /* what ranks share counts where it was made */
            bytes[kind][DEVICE_TIER_HOST] += found->homes.beside_bytes - found->homes.taken_bytes;
        bytes[kind][DEVICE_TIER_DEVICE] += atomic_load(&outside[kind]);
    }
}

/* Adds the model data of this process in homes, and in devices' memory outside of homes, by kind and tier. */
static void gauges_devices_get(uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    devices_statistics found;
    statistics_get(&found);
    add_bytes(&found, bytes);
}

/* The same, and sets the gauges of devices. False: Python has ended, nothing was done. */
static bool gauges_devices_sample(uint64_t bytes[CHUNK_KIND_COUNT][DEVICE_TIER_COUNT]) {
    devices_statistics found;
    if (atomic_load(&ended))
        return false;
    statistics_get(&found);
    add_bytes(&found, bytes);
    uint64_t outside_bytes = 0, allocated = device_memory_bytes();
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
        outside_bytes += atomic_load(&outside[kind]);
    if (allocated > 0 || outside_bytes > 0 || found.any) {
        trace_gauge_set(GAUGE_DEVICE_PARAM_BYTES, bytes[CHUNK_PARAM][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_GRAD_BYTES, bytes[CHUNK_GRAD][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_OPTIM_BYTES, bytes[CHUNK_OPTIM][DEVICE_TIER_DEVICE]);
        trace_gauge_set(GAUGE_DEVICE_OTHER_BYTES, allocated > outside_bytes ? allocated - outside_bytes : 0);
    }
    if (!found.any)
        return true;
    trace_gauge_set(GAUGE_DEVICE_OUTSIDE_BYTES, outside_bytes);
    trace_gauge_set(GAUGE_DEVICE_SLOTS_BYTES, found.slots_bytes);
    set_homes(&found.homes);
    set_slots(&found.slots);
    set_updates(&found.updates);
    set_link(&found);
    return true;
}

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
        /* Model data outside of the store lies in blocks, too. */
        uint64_t other = other_bytes(&arena), outside = 0;
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
            outside += atomic_load(&on_cpu[kind]);
        trace_gauge_set(GAUGE_OTHER_BYTES, other > outside ? other - outside : 0);
        if (atomic_load(&trains)) {
            arena_peaks peaks = arena_peaks_take();
            trace_gauge_set(GAUGE_BLOCKS_START_BYTES, peaks.start_bytes);
            trace_gauge_set(GAUGE_BLOCKS_BYTES, peaks.own_bytes > outside ? peaks.own_bytes - outside : 0);
            trace_gauge_set(GAUGE_BLOCKS_BESIDE_BYTES,
                            peaks.anonymous_bytes > outside ? peaks.anonymous_bytes - outside : 0);
        }
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
    if (!atomic_exchange(&trains, true))
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
