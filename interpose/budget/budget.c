#include "budget.h"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/thread.h"
#include "placement/recording.h"
#include "store/store.h"
#include "store/tensor.h"
#include "inside.h"
#include "smallest.h"

static budget_chunk *budget_chunk_at(budget *b, uint64_t number);
static void budget_touch(store *s, bool backward, uint32_t number, uint32_t param_chunk);

/* The chunk manager's world on a node without devices: memory, and the files of the offload folder. */

enum { TIER_HOST, TIER_DISK };

static uint64_t now_ns(void *context) {
    (void)context;
    return clock_ns(CLOCK_MONOTONIC);
}

/* This rank's share of `bytes`, which is the node's. */
static uint64_t share_of(const budget *b, uint64_t bytes) {
    uint64_t all = atomic_load(&b->all_load);
    return all ? (uint64_t)((double)bytes * ((double)atomic_load(&b->own_load) / (double)all)) : bytes;
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    const budget *b = context;
    return tier == TIER_HOST && b->bytes ? share_of(b, b->bytes) : UINT64_MAX;
}

static uint64_t lingering_bytes(void *context) {
    const budget *b = context;
    return atomic_load(&b->left_bytes);
}

/* The peak of this rank's since it last asked, and what the others have told. */
static uint64_t non_model_bytes(void *context) {
    const budget *b = context;
    const store *s = b->store;
    atomic_store(&s->control->rank[s->rank].other_bytes, arena_peak_take());
    uint64_t all = 0;
    for (int rank = 0; rank < s->world; rank++)
        all += atomic_load(&s->control->rank[rank].other_bytes);
    return share_of(b, all);
}

/* Disk blocks are taken where a chunk is placed, memory is the kernel's. */
static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
    return CASTOR_OK;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    (void)context, (void)chunk, (void)tier, (void)bytes;
}

static void move_done(disk_operation *operation, void *context) {
    budget_chunk *c = context;
    budget *b = budget_of(c->store);
    if (!operation->cancelled && disk_operation_error(operation) != CASTOR_OK &&
        !atomic_exchange(&b->disk_told, true))
        LOG_W("%s", error_text());
    if (operation->action == DISK_EVICT && !operation->cancelled) {
        uint64_t left = operation->left_bytes < c->bytes ? operation->left_bytes : c->bytes;
        atomic_fetch_add(&b->left_bytes, left);
        atomic_fetch_sub(&b->left_bytes, atomic_exchange(&c->left_bytes, left));
    }
    atomic_store(&c->finished_ns, clock_ns(CLOCK_MONOTONIC));
    pthread_mutex_lock(&b->lock);
    pthread_cond_signal(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

static castor_status move_start(void *context, const chunk_move *move, uint64_t *handle) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, move->chunk);
    chunk *of_store = &b->store->chunks.list[c->kind].chunks[c->index];
    disk_operation *o = &c->operation;
    /* The last one counts as over a moment before its record is free again (move_done). The queue's thread may lose its processor in
     * between; it needs no lock that callers of the manager hold. */
    if (disk_operation_busy(o))
        disk_queue_wait(b->queue, o, b->store->timeout_seconds);
    atomic_store(&c->finished_ns, 0);
    /* Set one by one: `state` is the queue's. */
    o->action = move->to == TIER_DISK ? DISK_EVICT : DISK_LOAD;
    o->fd = b->store->chunks.list[c->kind].fd;
    o->offset = c->offset;
    o->bytes = c->bytes;
    o->alias = of_store->alias;
    o->map = c->kind == CHUNK_OPTIM && o->alias ? DISK_MAP_WRITE : DISK_MAP_NONE;
    o->done = move_done;
    o->context = c;
    *handle = move->chunk;
    return disk_queue_submit(b->queue, o);
}

static castor_status move_over(budget_chunk *c, chunk_move_end *end, uint64_t *finished_ns) {
    *finished_ns = atomic_load(&c->finished_ns);
    *end = *finished_ns ? MOVE_DONE : MOVE_RUNNING;
    return *finished_ns ? disk_operation_error(&c->operation) : CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    return move_over(budget_chunk_at(context, handle), end, finished_ns);
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, handle);
    castor_status status = disk_queue_wait(b->queue, &c->operation, (double)timeout_ns * 1e-9);
    if (status == CASTOR_ERR_TIMEOUT && !atomic_load(&c->finished_ns)) {
        *end = MOVE_RUNNING;
        return CASTOR_OK;
    }
    return move_over(c, end, finished_ns);
}

/* What is being written back or read is let finish. */
static bool move_cancel(void *context, uint64_t handle) {
    budget *b = context;
    budget_chunk *c = budget_chunk_at(b, handle);
    return disk_queue_cancel(b->queue, &c->operation) && disk_operation_ended(&c->operation);
}

static uint32_t residency(void *context, uint32_t number) {
    budget *b = context;
    const budget_chunk *c = budget_chunk_at(b, number);
    uint64_t resident = 0;
    disk_resident(b->store->chunks.list[c->kind].fd, c->offset, c->bytes, NULL, &resident);
    return resident * 2 >= c->bytes ? TIER_HOST : TIER_DISK;
}

static void *allocate(void *context, size_t bytes) {
    (void)context;
    return calloc(1, bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context, (void)bytes;
    free(memory);
}

static chunk_backend budget_backend(budget *b) {
    return (chunk_backend){
        .context = b,
        .tiers = 2,
        .tier_names = {"host", "disk"},
        .keeps_copies = true,
        .now_ns = now_ns,
        .capacity_bytes = capacity_bytes,
        .lingering_bytes = lingering_bytes,
        .non_model_bytes = non_model_bytes,
        .room_take = room_take,
        .room_give = room_give,
        .move_start = move_start,
        .move_poll = move_poll,
        .move_wait = move_wait,
        .move_cancel = move_cancel,
        .residency = residency,
        .allocate = allocate,
        .deallocate = deallocate,
    };
}

#define LOOKS_SHARE 50 /* the time between looks is so many times that of a look */
#define KEPT        2  /* chunks whose views stay: what is used now, and what was before it */

typedef struct touches {
    uint32_t count, capacity; /* tensors */
    bool *there;              /* by tensor: its view was seen in the page tables since it was let go */
    uint32_t kept[KEPT];      /* chunks, the last one first; UINT32_MAX: none */
    uint32_t *seen_in;        /* by chunk: the last pass that touched it */
    uint32_t seen_capacity;
    uint32_t pass, pass_chunks; /* a pass is a forward or a backward; chunks that it has touched */
    bool backward;
    bool stepping; /* the optimizer says itself what it uses */
    uint64_t next_scan_ns;
} touches;

/* After tensors were registered. */
static castor_status touches_grow(store *s) {
    budget *b = budget_of(s);
    touches *t = b->touches ? b->touches : calloc(1, sizeof *t);
    uint32_t chunks = s->chunks.list[CHUNK_PARAM].count;
    uint32_t *seen = t ? realloc(t->seen_in, (chunks + 1) * sizeof *seen) : NULL;
    if (seen)
        t->seen_in = seen;
    bool *there = seen ? realloc(t->there, (s->tensor_count + 1) * sizeof *there) : NULL;
    if (!there) {
        if (!b->touches)
            free(t);
        return error_set(CASTOR_ERR_MEMORY, "no memory for the tables of CASTOR_MEMORY_BUDGET");
    }
    memset(there + t->count, 0, (s->tensor_count - t->count) * sizeof *there);
    memset(seen + t->seen_capacity, 0, (chunks - t->seen_capacity) * sizeof *seen);
    t->seen_capacity = chunks;
    t->there = there;
    t->count = s->tensor_count;
    if (!b->touches)
        t->pass = 1;
    if (!b->touches)
        memset(t->kept, 0xff, sizeof t->kept);
    b->touches = t;
    return CASTOR_OK;
}

/* NULL: nothing of the store moves that a forward touches. */
static touches *touches_of(const store *s) {
    const budget *b = budget_of(s);
    return b ? b->touches : NULL;
}

static bool on_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

/* Under the store's lock: a block that is freed meanwhile stays what it is until then. */
static void view_drop(touches *all, tensor *t) {
    if (t->binding && !t->forgotten)
        pages_unedited_drop(t->binding, t->span);
    all->there[t->id] = false;
}

static void chunk_drop(store *s, uint32_t chunk) {
    for (uint32_t id = 0; id < touches_of(s)->count; id++)
        if (touches_of(s)->there[id] && s->tensors[id]->param_chunk == (int32_t)chunk)
            view_drop(touches_of(s), s->tensors[id]);
}

/* A chunk is used whose views are not mapped: the views that were used longest ago are unmapped. */
static void chunk_touched(store *s, uint32_t chunk) {
    touches *t = touches_of(s);
    if (chunk < t->seen_capacity && t->seen_in[chunk] != t->pass) {
        t->seen_in[chunk] = t->pass;
        budget_touch(s, t->backward, t->pass_chunks++, chunk);
    }
    for (int i = 0; i < KEPT; i++)
        if (t->kept[i] == chunk)
            return;
    uint32_t oldest = t->kept[KEPT - 1];
    memmove(t->kept + 1, t->kept, (KEPT - 1) * sizeof *t->kept);
    t->kept[0] = chunk;
    if (oldest != UINT32_MAX)
        chunk_drop(s, oldest);
}

static void look(store *s) {
    touches *t = touches_of(s);
    if (pthread_mutex_trylock(&s->lock) != 0)
        return;
    /* In the order in which several of them are likely to have been touched since the last look. */
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t id = t->backward ? t->count - 1 - i : i;
        tensor *each = s->tensors[id];
        if (t->there[id] || !each->binding || each->forgotten || !pages_of_store(each->binding, each->span))
            continue;
        t->there[id] = true;
        chunk_touched(s, (uint32_t)each->param_chunk);
    }
    pthread_mutex_unlock(&s->lock);
}

void touches_collect(void) {
    store *s = store_first();
    for (; s && !touches_of(s); s = s->next)
        ;
    if (!s || s->detached || !on_main_thread())
        return;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    for (; s; s = s->next) {
        if (!touches_of(s) || touches_of(s)->stepping || now < touches_of(s)->next_scan_ns)
            continue;
        /* What it costs is the thread's own time: one who waited for a processor in a look must not look less often. */
        uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        look(s);
        uint64_t took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
        now = clock_ns(CLOCK_MONOTONIC);
        touches_of(s)->next_scan_ns = now + LOOKS_SHARE * took;
    }
}

static void pass_begin(touches *t, bool backward) {
    t->backward = backward;
    t->pass++;
    t->pass_chunks = 0;
}

/* What a forward has touched last is seen in every step or in none: how many chunks it touched is the same each time. */
void touches_backward(store *s, bool begun) {
    touches *t = touches_of(s);
    if (!t || t->backward == begun)
        return;
    if (begun && !s->detached && on_main_thread())
        look(s);
    pass_begin(t, begun);
}

void touches_step(store *s) {
    if (touches_of(s))
        touches_of(s)->stepping = true;
}

void touches_drop(store *s) {
    touches *t = touches_of(s);
    if (!t)
        return;
    t->stepping = false;
    if (s->detached || !on_main_thread())
        return;
    pass_begin(t, false);
    pthread_mutex_lock(&s->lock);
    for (uint32_t id = 0; id < t->count; id++)
        view_drop(t, s->tensors[id]);
    pthread_mutex_unlock(&s->lock);
    memset(t->kept, 0xff, sizeof t->kept);
}

#define LOOK_NS         20000000ul /* how often what is resident is looked at */
#define LOOK_CHUNKS     32         /* ... of so many chunks */
#define STOP_SECONDS    5.0
#define TIMEOUT_NS_EACH 1000000000ull

/* ---- the thread that goes on with moves when one has ended */

/* Pages that somebody had mapped when their chunk left: the views may be gone by now. */
static void left_evict(budget *b) {
    pthread_mutex_lock(&b->lock);
    uint32_t count = b->count;
    pthread_mutex_unlock(&b->lock);
    for (uint32_t number = 0; number < count; number++) {
        uint64_t bytes = atomic_exchange(&budget_chunk_at(b, number)->left_bytes, 0);
        atomic_fetch_sub(&b->left_bytes, bytes);
        if (bytes)
            chunk_manager_leave_again(b->manager, number);
    }
}

static void *budget_main(void *context) {
    budget *b = context;
    prctl(PR_SET_NAME, "castor-budget");
    uint64_t check_ns = 0;
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&b->moved, &b->lock, &until);
        pthread_mutex_unlock(&b->lock);
        /* Also while moves follow each other: that is when other ranks load what this rank has evicted. */
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now >= check_ns) {
            chunk_manager_resync(b->manager, LOOK_CHUNKS);
            left_evict(b);
            check_ns = clock_ns(CLOCK_MONOTONIC) + LOOK_NS;
        }
        chunk_manager_advance(b->manager);
        pthread_mutex_lock(&b->lock);
    }
    b->running = false;
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Smaller ones share pages with others, and stay for as long as one of these does. */
static void say_small_chunks(const store *s) {
    uint64_t bytes = s->chunks.chunk_bytes;
    if (s->budget_bytes && bytes && bytes < BUDGET_UNIT_BYTES && s->rank == 0)
        LOG_W("CASTOR_CHUNK_SIZE: chunks of %B are smaller than %B and leave memory slowly, so the job may "
              "use more than CASTOR_MEMORY_BUDGET; set it to auto",
              bytes, (uint64_t)BUDGET_UNIT_BYTES);
}

static castor_status start(store *s) {
    budget *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the tables of CASTOR_MEMORY_BUDGET");
    b->store = s;
    b->bytes = s->budget_bytes;
    s->chunks.unit_bytes = BUDGET_UNIT_BYTES;
    b->backwards = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&b->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    chunk_backend backend = budget_backend(b);
    chunk_manager_settings settings = chunk_manager_defaults(s->placement.policy);
    settings.placement = s->placement;
    settings.timeout_ns = (uint64_t)(s->timeout_seconds * (double)TIMEOUT_NS_EACH);
    castor_status status = disk_queue_start(&(disk_settings){0}, &b->queue);
    if (status == CASTOR_OK)
        status = chunk_manager_create(&b->manager, &backend, &settings);
    if (status == CASTOR_OK) {
        s->bounded = b;
        b->running = true;
        if (s->budget_bytes)
            arena_retain_most(s->budget_bytes / (uint64_t)s->world / BUDGET_FREED_SHARE);
        say_small_chunks(s);
        if (thread_start(budget_main, b) == 0)
            return CASTOR_OK;
        status =
            error_set(CASTOR_ERR_SYSTEM, "no thread for CASTOR_MEMORY_BUDGET can be started: raise the limit "
                                         "on threads (ulimit -u)");
        s->bounded = NULL;
        chunk_manager_destroy(b->manager);
    }
    disk_queue_stop(b->queue, STOP_SECONDS);
    free(b);
    return status;
}

static void stop(store *s) {
    budget *b = budget_of(s);
    if (!b || s->detached)
        return;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)STOP_SECONDS;
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_broadcast(&b->moved);
    while (b->running && pthread_cond_timedwait(&b->moved, &b->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&b->lock);
    disk_queue_stop(b->queue, STOP_SECONDS);
    if (s->moments_dir && *s->moments_dir)
        recording_keep(b->manager, s->moments_dir, store_job_rank(s, s->rank));
}

/* ---- chunks */

/* The manager's number of a chunk; BUDGET_NONE. */
static uint32_t number_of(budget *b, chunk_kind kind, int32_t index) {
    pthread_mutex_lock(&b->lock);
    uint32_t number = index >= 0 && (uint32_t)index < b->closed[kind] ? b->numbers[kind][index] : BUDGET_NONE;
    pthread_mutex_unlock(&b->lock);
    return number;
}

static budget_chunk *budget_chunk_at(budget *b, uint64_t number) {
    pthread_mutex_lock(&b->lock);
    budget_chunk *found = b->chunks[number];
    pthread_mutex_unlock(&b->lock);
    return found;
}

static castor_status no_memory(void) {
    return error_set(CASTOR_ERR_MEMORY, "no memory for the tables of CASTOR_MEMORY_BUDGET");
}

/* Makes room for one more; callers hold the lock. */
static bool tables_grow(budget *b, chunk_kind kind) {
    uint32_t *numbers =
        table_room(b->numbers[kind], &b->numbers_capacity[kind], b->closed[kind], sizeof *numbers);
    if (numbers)
        b->numbers[kind] = numbers;
    budget_chunk **chunks = table_room(b->chunks, &b->capacity, b->count, sizeof *chunks);
    if (chunks)
        b->chunks = chunks;
    return numbers && chunks;
}

/* The chunk with the next index of its kind. */
static castor_status close_next(budget *b, chunk_kind kind) {
    const chunk *c = &b->store->chunks.list[kind].chunks[b->closed[kind]];
    uint64_t bytes = chunk_unit_round(&b->store->chunks, c->used);
    bool mine = c->owner == b->store->rank && bytes && !c->small;
    budget_chunk *made = mine ? calloc(1, sizeof *made) : NULL;
    pthread_mutex_lock(&b->lock);
    bool room = (made || !mine) && tables_grow(b, kind);
    pthread_mutex_unlock(&b->lock);
    if (!room) {
        free(made);
        return no_memory();
    }
    uint32_t number = BUDGET_NONE;
    if (mine) {
        *made = (budget_chunk){
            .store = b->store, .kind = kind, .index = b->closed[kind], .offset = c->offset, .bytes = bytes};
        pthread_mutex_lock(&b->lock);
        b->chunks[b->count] = made; /* before the manager may move it */
        pthread_mutex_unlock(&b->lock);
        castor_status status = chunk_manager_add_chunk(b->manager, kind, bytes, 0, &number);
        if (status) {
            free(made);
            return status;
        }
    }
    atomic_fetch_add(&b->used[kind], mine ? c->used : 0);
    pthread_mutex_lock(&b->lock);
    b->count += mine;
    b->numbers[kind][b->closed[kind]++] = number;
    pthread_mutex_unlock(&b->lock);
    return CASTOR_OK;
}

castor_status budget_close(store *s) {
    budget *b = budget_of(s);
    castor_status status = CASTOR_OK;
    if (!b)
        return CASTOR_OK;
    uint64_t all = 0;
    for (int owner = 0; owner < s->owners; owner++)
        all += s->owner_load[owner];
    atomic_store(&b->own_load, s->owner_load[s->rank]);
    atomic_store(&b->all_load, all);
    for (int kind = 0; kind < CHUNK_KIND_COUNT && !status; kind++) {
        chunk_close(&s->chunks, (chunk_kind)kind);
        while (b->closed[kind] < s->chunks.list[kind].count && !status)
            status = close_next(b, (chunk_kind)kind);
    }
    if (status != CASTOR_OK || s->placement.policy != PLACEMENT_STATIC)
        return status;
    chunk_manager_place(b->manager);
    if (placement_ignores_parameters(&s->placement) && !b->told && s->rank == 0) {
        b->told = true;
        LOG_W("CASTOR_OFFLOAD_PARAM_FRAC counts as 0: it needs CASTOR_SHARD_PARAM_FRAC=1 and "
              "CASTOR_OFFLOAD_OPTIM_FRAC=1");
    }
    return CASTOR_OK;
}

/* ---- a step's parts */

uint64_t budget_part_bytes(const store *s, uint64_t most) {
    budget *b = budget_of(s);
    if (!b)
        return most;
    uint64_t bytes = budget_part_bytes_under(b, b->bytes);
    b->part_most = most;
    return most && most < bytes ? most : bytes;
}

/* The access to a chunk of the part was refused, because the budget is too small. The text says which one is not. */
static castor_status part_refused(budget *b, uint32_t number, struct tensor *const *tensors, uint32_t count) {
    store *s = b->store;
    char why[512];
    log_message(why, sizeof why, "%s", error_text());
    uint64_t chunks = budget_chunk_at(b, number)->bytes, parameters = 0;
    for (uint32_t i = 0; i < b->part_count; i++)
        chunks += budget_chunk_at(b, b->part[i])->bytes;
    for (uint32_t i = 0; i < count; i++)
        parameters += tensors[i]->bytes;
    bool undivided = count > 1 && parameters > budget_part_bytes_under(b, b->bytes);
    pthread_mutex_lock(&s->lock);
    smallest found = budget_smallest(b, chunks, undivided ? SMALLEST_PARTS_ALL : b->part_most);
    pthread_mutex_unlock(&s->lock);
    if (!found.bytes)
        return error_set(CASTOR_ERR_MEMORY, "%s; raise CASTOR_MEMORY_BUDGET", why);
    return error_set(CASTOR_ERR_MEMORY, "%s; the smallest that works is CASTOR_MEMORY_BUDGET=%lluM%s", why,
                     (unsigned long long)(found.bytes / SMALLEST_UNIT),
                     found.assumed ? ", if the optimizer has two states, as Adam has" : "");
}

/* `refused` gets the number of a chunk that has no room; BUDGET_NONE. */
static castor_status part_add(budget *b, uint32_t number, uint32_t *refused) {
    *refused = BUDGET_NONE;
    budget_chunk *c = number == BUDGET_NONE ? NULL : budget_chunk_at(b, number);
    if (!c || c->used_in == b->parts)
        return CASTOR_OK;
    uint32_t *part = table_room(b->part, &b->part_capacity, b->part_count, sizeof *part);
    if (!part)
        return no_memory();
    b->part = part;
    castor_status status = chunk_manager_access(b->manager, number, true);
    if (status == CASTOR_OK) {
        c->used_in = b->parts;
        b->part[b->part_count++] = number;
    }
    *refused = status == CASTOR_ERR_MEMORY ? number : BUDGET_NONE;
    return status;
}

castor_status budget_part_begin(store *s, int kinds, uint32_t number, struct tensor *const *tensors,
                                uint32_t count) {
    budget *b = budget_of(s);
    castor_status status = CASTOR_OK;
    uint32_t refused = BUDGET_NONE;
    if (!b)
        return CASTOR_OK;
    b->parts++;
    chunk_manager_event(b->manager, MOMENT_OPTIMIZER, number << CHUNK_KIND_COUNT | (uint32_t)kinds);
    for (uint32_t i = 0; i < count && !status; i++) {
        const tensor *t = tensors[i];
        if (kinds & 1 << CHUNK_PARAM && t->param_alias)
            status = part_add(b, number_of(b, CHUNK_PARAM, t->param_chunk), &refused);
        if (kinds & 1 << CHUNK_GRAD && status == CASTOR_OK)
            status = part_add(b, number_of(b, CHUNK_GRAD, t->grad_chunk), &refused);
        const state_range *range = kinds & 1 << CHUNK_OPTIM ? t->states : NULL;
        for (; range && !status; range = range->next)
            status = part_add(
                b, number_of(b, CHUNK_OPTIM, chunk_index(&s->chunks, CHUNK_OPTIM, range->offset)), &refused);
    }
    if (refused != BUDGET_NONE)
        status = part_refused(b, refused, tensors, count);
    if (status)
        budget_part_end(s);
    return status;
}

void budget_part_end(store *s) {
    budget *b = budget_of(s);
    if (!b)
        return;
    for (uint32_t i = 0; i < b->part_count; i++)
        chunk_manager_release(b->manager, b->part[i]);
    b->part_count = 0;
}

void budget_step_end(store *s) {
    if (!s->bounded)
        return;
    chunk_manager_resync(budget_of(s)->manager, UINT32_MAX); /* sums that were let go are nowhere */
    chunk_manager_step_end(budget_of(s)->manager);
    chunk_statistics found;
    chunk_manager_statistics(budget_of(s)->manager, &found);
    LOG_D("chunks: %lu steps, %lu recorded, %lu deviations; prefetched in time %lu, late %lu, not %lu, in "
          "vain %lu; "
          "told late %lu; waited %lu ms",
          (unsigned long)found.steps, (unsigned long)found.warmups, (unsigned long)found.deviations,
          (unsigned long)found.hits, (unsigned long)found.late, (unsigned long)found.misses,
          (unsigned long)found.wasted, (unsigned long)found.unnoticed,
          (unsigned long)(found.stall_ns / 1000000));
}

/* ---- sums, and what forward and backward touch */

/* A chunk does not leave while one of its sums is being made. */
static void sum_count(tensor *t, int change) {
    budget *b = budget_of(t->store);
    uint32_t number = b ? number_of(b, CHUNK_GRAD, t->grad_chunk) : BUDGET_NONE;
    if (number == BUDGET_NONE)
        return;
    pthread_mutex_lock(&b->lock);
    budget_chunk *c = b->chunks[number];
    uint32_t before = c->computing;
    c->computing += (uint32_t)change;
    bool first = change > 0 && c->summed_in != b->backwards;
    if (first)
        c->summed_in = b->backwards;
    pthread_mutex_unlock(&b->lock);
    if (change > 0 && before == 0)
        chunk_manager_pin(b->manager, number);
    if (first)
        chunk_manager_event(b->manager, MOMENT_GRADIENT, number);
    if (change > 0)
        chunk_manager_touch(b->manager, number, true);
    else if (before == 1)
        chunk_manager_unpin(b->manager, number);
}

void budget_sum_begin(tensor *t) {
    sum_count(t, 1);
}

void budget_sum_end(tensor *t) {
    sum_count(t, -1);
}

void budget_backward_end(store *s) {
    if (!s->bounded)
        return;
    pthread_mutex_lock(&budget_of(s)->lock);
    budget_of(s)->backwards++;
    pthread_mutex_unlock(&budget_of(s)->lock);
}

/* The parameters of a chunk are used, the `number`th in this forward or backward. Events must come in the same order in every step:
 * which chunk is seen first may depend on when one looks, how many there are does not. In backward gradients are the events. */
static void budget_touch(store *s, bool backward, uint32_t number, uint32_t param_chunk) {
    budget *b = budget_of(s);
    if (!b)
        return;
    if (!backward)
        chunk_manager_event(b->manager, MOMENT_FORWARD, number);
    uint32_t known = number_of(b, CHUNK_PARAM, (int32_t)param_chunk);
    if (known != BUDGET_NONE)
        chunk_manager_touch(b->manager, known, false);
}

bool budget_moves_parameters(const store *s) {
    return s->bounded && placement_moves_parameters(&s->placement);
}

/* ---- what there is */

static uint64_t resident_bytes(const store *s, chunk_kind kind) {
    const chunk_list *list = &s->chunks.list[kind];
    uint64_t all = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint64_t resident = 0;
        if (disk_resident(list->fd, list->chunks[i].offset, pages_round(list->chunks[i].used), NULL,
                          &resident) == CASTOR_OK)
            all += resident;
    }
    return all;
}

static castor_status tensors_added(store *s) {
    castor_status status = budget_close(s);
    return status == CASTOR_OK && budget_moves_parameters(s) ? touches_grow(s) : status;
}

const store_bound budget_bound = {
    .start = start,
    .tensors_added = tensors_added,
    .resident_bytes = resident_bytes,
    .stop = stop,
};

castor_status budget_check(const store *s) {
    return s->bounded ? chunk_manager_check(budget_of(s)->manager) : CASTOR_OK;
}

bool budget_statistics(const store *s, chunk_statistics *out) {
    if (!s->bounded)
        return false;
    chunk_manager_statistics(budget_of(s)->manager, out);
    /* The manager counts chunks up to the ends of their units, and who asks wants to know where the data is. */
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        uint64_t *bytes = out->bytes[kind], used = atomic_load(&budget_of(s)->used[kind]),
                 all = bytes[0] + bytes[1];
        bytes[1] = all ? (uint64_t)((double)used * ((double)bytes[1] / (double)all)) : 0;
        bytes[0] = used - bytes[1];
    }
    return true;
}
