#include "reduce.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "budget/budget.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/table.h"
#include "base/thread.h"
#include "store/demand.h"
#include "store/wait.h"
#include "store/window.h"
#include "trace/trace.h"

#define LOOK_NS    5000000l             /* how often a full queue looks for leases that are wanted back */
#define IDLE_NS    100000000l           /* how often an idle thread does */
#define OVERDUE_NS UINT64_C(1000000000) /* after so long */

struct job {
    tensor *tensor;
    const char *source;
    double scale;
    uint32_t generation;
    bool carry; /* the sum goes on from the last generation's */
};

/* The queue of one store. `lock` guards what has no other word. */
typedef struct reducer {
    store *store;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *jobs; /* ring */
    uint64_t capacity, head, tail;
    uint64_t queued_bytes;
    /* Under a budget: sums that this rank adds to, or has added to, in order, until all ranks have. */
    struct job *open_sums;
    uint32_t open_first, open_count, open_capacity;
    uint32_t wanted; /* the thread's: what rank 0 waits for, as it saw it last, and since when */
    uint64_t wanted_since_ns;
    castor_status failed; /* of the thread; failure holds the text */
    char failure[STORE_TEXT_MAX];
} reducer;

struct turn {
    const tensor *tensor;
    uint32_t need; /* blocks that the rank before must have added, or generations that must be released */
};

/* Rank 0 has waited long for a sum that may hold this rank's blocks, and this rank's gradient of it does not come: the script may wait for
 * rank 0 in turn, in a collective of its own. What is lent goes back. The thread calls it whenever it waits. */
static void overdue_recall(reducer *r) {
    store *s = r->store;
    if (!s->lends)
        return;
    uint32_t wanted = atomic_load(&s->control->wanted);
    uint64_t now_ns = trace_now_ns();
    if (wanted != r->wanted) {
        r->wanted = wanted;
        r->wanted_since_ns = now_ns;
    }
    if (!wanted || now_ns - r->wanted_since_ns < OVERDUE_NS)
        return;
    castor_status status = window_loans_recall(s);
    if (status)
        store_fail(s, status);
}

static int rank_not_released(void *context) {
    const struct turn *turn = context;
    const tensor *t = turn->tensor;
    for (int rank = 0; rank < t->store->world; rank++)
        if ((int32_t)(atomic_load(&t->control->rank[rank].released) - turn->need) < 0)
            return rank;
    return -1;
}

static bool all_released(void *context) {
    return rank_not_released(context) < 0;
}

static int rank_before(void *context) {
    return ((struct turn *)context)->tensor->store->rank - 1;
}

static bool previous_added(void *context) {
    const struct turn *turn = context;
    const tensor *t = turn->tensor;
    overdue_recall(t->store->sums);
    return (int32_t)(atomic_load(&t->control->rank[t->store->rank - 1].added) - turn->need) >= 0;
}

static castor_status turn_wait(tensor *t, uint32_t generation, uint32_t block) {
    store *s = t->store;
    struct turn turn = {t, s->rank ? generation * t->blocks + block + 1 : generation};
    wait_condition c = {s->rank ? previous_added : all_released, s->rank ? rank_before : rank_not_released,
                        &turn, "its turn to add a gradient"};
    if (s->rank == 0 && block > 0)
        return CASTOR_OK;
    if (s->rank || all_released(&turn))
        return wait_until(s, &t->control->event, &t->control->waiters, &c);
    atomic_store(&s->control->wanted, t->id + 1);
    castor_status status = wait_until(s, &t->control->event, &t->control->waiters, &c);
    atomic_store(&s->control->wanted, 0);
    return status;
}

/* Rank 0 waits for a sum that this rank may still hold a lease on, because its own gradient of that tensor is not ready
 * yet: the lease goes back now, else a rank whose queue is full would never come to that gradient. */
static castor_status wanted_release(store *s) {
    uint32_t wanted = atomic_load(&s->control->wanted);
    pthread_mutex_lock(&s->lock);
    tensor *t = wanted && wanted <= s->tensor_count ? s->tensors[wanted - 1] : NULL;
    pthread_mutex_unlock(&s->lock);
    return t ? window_detach_all(t) : CASTOR_OK;
}

/* The sum's memory was given back. What comes back takes the place of freed activations: each rank keeps its part of
 * those less. */
static void block_borrow(tensor *t, size_t bytes) {
    int64_t share = (int64_t)(bytes / (size_t)t->store->world);
    atomic_fetch_add(&t->yielded_bytes, (uint64_t)share);
    arena_yield(share);
}

/* Rank 0 brings the pages with their contents by writing to the file: a lack of memory is an error then and not a
 * signal, and the kernel neither clears the pages nor takes a fault for each. The other ranks read a sum before they
 * write it, and a fault of a read maps the pages around it as well. */
static castor_status block_write(tensor *t, const struct job *job, size_t from, size_t bytes) {
    enum { PIECE_BYTES = 65536 };
    char piece[PIECE_BYTES];
    castor_status status = CASTOR_OK;
    for (size_t end = from + bytes; from < end && !status; from += PIECE_BYTES) {
        size_t size = end - from < PIECE_BYTES ? end - from : PIECE_BYTES;
        if (job->source)
            kernel_scale_store(t->sum_dtype, piece, job->source + from,
                               size / kernel_dtype_bytes(t->sum_dtype), job->scale);
        else
            memset(piece, 0, size);
        status = chunk_write(&t->store->chunks, CHUNK_GRAD, t->grad_offset + from, piece, size);
    }
    return status;
}

/* Adds this rank's part to a block of the sum; rank 0's is the first. `fresh`: the block's memory was given back. */
static castor_status block_add(tensor *t, const struct job *job, size_t from, size_t bytes, bool fresh) {
    char *sum = t->grad_alias + from;
    size_t items = bytes / kernel_dtype_bytes(t->sum_dtype);
    if (fresh)
        block_borrow(t, pages_round(bytes));
    bool first = t->store->rank == 0 && !job->carry;
    if (first && fresh)
        return block_write(t, job, from, bytes);
    if (first && job->source)
        kernel_scale_store(t->sum_dtype, sum, job->source + from, items, job->scale);
    else if (first)
        memset(sum, 0, bytes);
    else if (job->source)
        kernel_scale_add(t->sum_dtype, sum, job->source + from, items, job->scale);
    return CASTOR_OK;
}

/* The ranks must go on from the last sum together, or not at all: rank 0's word is published before its first block. */
static castor_status carry_check(tensor *t, const struct job *job, bool fresh) {
    store *s = t->store;
    if (s->rank == 0 && job->carry && fresh)
        return store_fail(s, error_set(CASTOR_ERR_ARGUMENT,
                                       "the sum of tensor %u cannot continue: its memory was given back",
                                       t->id));
    if (s->rank == 0)
        atomic_store(&t->control->carried, job->carry ? job->generation + 1 : 0);
    else if ((atomic_load(&t->control->carried) == job->generation + 1) != job->carry)
        return store_fail(s,
                          error_set(CASTOR_ERR_ARGUMENT,
                                    "rank %d %s the gradients of the last micro-step and rank %d %s: every "
                                    "rank must call backward(), optimizer.step() and no_sync() alike",
                                    store_job_rank(s, s->rank), job->carry ? "adds to" : "does not add to",
                                    store_job_rank(s, 0), job->carry ? "does not" : "does"));
    return CASTOR_OK;
}

static castor_status reduce_job(const struct job *job) {
    tensor *t = job->tensor;
    store *s = t->store;
    uint64_t begin_ns = trace_now_ns();
    bool fresh =
        false; /* the sum's memory was given back since the last generation, or has never been there */
    for (uint32_t block = 0; block < t->blocks; block++) {
        castor_status status = turn_wait(t, job->generation, block);
        if (status)
            return status;
        if (block == 0) {
            bool elsewhere = demand_elsewhere(t, CHUNK_GRAD);
            fresh = (t->returnable || t->unfilled || elsewhere) &&
                    atomic_load(&t->control->given_back) == job->generation;
            if (elsewhere && s->rank == 0 && (status = demand_take_over(t)) != CASTOR_OK)
                return store_fail(s, status);
            if ((status = carry_check(t, job, fresh)) != CASTOR_OK)
                return status;
        }
        size_t from = (size_t)block * TENSOR_BLOCK_BYTES;
        size_t bytes = t->sum_bytes - from < TENSOR_BLOCK_BYTES ? t->sum_bytes - from : TENSOR_BLOCK_BYTES;
        if ((status = block_add(t, job, from, bytes, fresh)) != CASTOR_OK)
            return status;
        atomic_store(&t->control->rank[s->rank].added, job->generation * t->blocks + block + 1);
        wait_notify(&t->control->event, &t->control->waiters);
    }
    if (t->sum_paged && budget_moves_parameters(s)) /* nothing is lost: the mapping is shared */
        madvise(t->grad_alias, t->sum_span, MADV_DONTNEED);
    trace_record_write(TRACE_REDUCE, t->id, begin_ns, trace_now_ns(), t->sum_bytes, (uint64_t)s->rank,
                       job->generation, 0);
    return CASTOR_OK;
}

/* ---- under a budget: a chunk may leave when its sums are made */

static bool sum_complete(void *context);

/* Callers hold the queue's lock. Ends those at the front that all ranks have added to. */
static void open_sums_end(reducer *r) {
    while (r->open_first < r->open_count) {
        const struct job *job = &r->open_sums[r->open_first];
        struct turn turn = {job->tensor, (job->generation + 1) * job->tensor->blocks};
        if (!sum_complete(&turn))
            return;
        budget_sum_end(job->tensor);
        r->open_first++;
    }
    r->open_first = r->open_count = 0;
}

/* Callers hold the queue's lock. Before this rank adds: whoever sees that the sum is complete finds it here and ends it, and need not
 * wait for this thread to go on. Otherwise a step could begin while the chunk may not leave, and have no room. */
static void open_sums_add(reducer *r, const struct job *job) {
    if (!r->store->bounded)
        return;
    struct job *sums = table_room(r->open_sums, &r->open_capacity, r->open_count, sizeof *sums);
    if (!sums) { /* its chunk may leave meanwhile, which costs time */
        budget_sum_end(job->tensor);
        return;
    }
    r->open_sums = sums;
    r->open_sums[r->open_count++] = *job;
}

/* Waits for `changed` and so long at most, under the lock. */
static void changed_wait(reducer *r, long ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000l;
    until.tv_nsec %= 1000000000l;
    pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

static void idle_wait(reducer *r) {
    if (!r->store->lends) {
        pthread_cond_wait(&r->changed, &r->lock);
        return;
    }
    changed_wait(r, IDLE_NS);
    pthread_mutex_unlock(&r->lock);
    overdue_recall(r);
    pthread_mutex_lock(&r->lock);
}

static void *reducer_main(void *context) {
    reducer *r = context;
    prctl(PR_SET_NAME, "castor-reduce");
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (r->head == r->tail)
            idle_wait(r);
        struct job job = r->jobs[r->tail % r->capacity];
        open_sums_add(r, &job);
        pthread_mutex_unlock(&r->lock);
        castor_status status = r->failed ? r->failed : reduce_job(&job);
        pthread_mutex_lock(&r->lock);
        if (status && !r->failed) {
            r->failed = status;
            log_message(r->failure, sizeof r->failure, "%s", error_text());
        }
        open_sums_end(r);
        r->tail++;
        if (job.source)
            r->queued_bytes -= job.tensor->sum_bytes;
        pthread_cond_broadcast(&r->changed);
    }
    return NULL;
}

static castor_status reducer_start(store *s) {
    reducer *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the queue of gradients");
    r->store = s;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    int failed = thread_start(reducer_main, r);
    if (failed) {
        free(r);
        return error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-reduce (error %d)", failed);
    }
    s->sums = r;
    return CASTOR_OK;
}

static castor_status ring_grow(reducer *r) {
    uint64_t capacity = r->capacity ? r->capacity * 2 : 256;
    struct job *jobs = malloc(capacity * sizeof *jobs);
    if (!jobs)
        return error_set(CASTOR_ERR_MEMORY, "no memory for the queue of gradients");
    for (uint64_t i = r->tail; i < r->head; i++)
        jobs[i % capacity] = r->jobs[i % r->capacity];
    free(r->jobs);
    r->jobs = jobs;
    r->capacity = capacity;
    return CASTOR_OK;
}

castor_status reduce_submit(tensor *t, const void *source, double scale, bool carry, uint64_t queue_bytes,
                            uint64_t *ticket) {
    store *s = t->store;
    castor_status status = CASTOR_OK;
    if (!s->sums && (status = reducer_start(s)) != CASTOR_OK)
        return status;
    reducer *r = s->sums;
    pthread_mutex_lock(&r->lock);
    /* One gradient larger than the bound must still get through. The thread's own waits are bounded. */
    while (source && r->queued_bytes && r->queued_bytes + t->sum_bytes > queue_bytes) {
        pthread_mutex_unlock(&r->lock);
        status = interrupt_arrived()
                     ? store_fail_by(s, s->rank,
                                     error_set(CASTOR_ERR_INTERRUPTED,
                                               "rank %d (pid %d) was interrupted by a signal in "
                                               "backward",
                                               store_job_rank(s, s->rank), (int)getpid()))
                     : wanted_release(s);
        pthread_mutex_lock(&r->lock);
        if (status)
            goto done;
        if (r->queued_bytes && r->queued_bytes + t->sum_bytes > queue_bytes)
            changed_wait(r, LOOK_NS);
    }
    if (r->head - r->tail == r->capacity && (status = ring_grow(r)) != CASTOR_OK)
        goto done;
    r->jobs[r->head++ % r->capacity] = (struct job){t, source, scale, t->generation, carry};
    if (source)
        r->queued_bytes += t->sum_bytes;
    *ticket = r->head;
    pthread_cond_broadcast(&r->changed);
done:
    pthread_mutex_unlock(&r->lock);
    return status;
}

uint64_t reduce_done(const store *s) {
    reducer *r = s->sums;
    if (!r)
        return 0;
    pthread_mutex_lock(&r->lock);
    uint64_t done = r->tail;
    pthread_mutex_unlock(&r->lock);
    return done;
}

void reduce_mark_used(tensor *t) {
    atomic_store(&t->control->used[t->generation % 2], t->generation + 1);
}

bool reduce_was_used(const tensor *t) {
    return atomic_load(&t->control->used[(t->generation - 1) % 2]) == t->generation;
}

void reduce_used_elsewhere(tensor *t) {
    atomic_store(&t->control->used[(t->generation - 1) % 2], t->generation);
}

/* The last rank's progress says it all; this rank's own orders its thread's writes before what follows, for those who
 * cannot see through the other ranks (ThreadSanitizer). */
static bool sum_complete(void *context) {
    const struct turn *turn = context;
    const tensor *t = turn->tensor;
    const tensor_progress *last = &t->control->rank[t->store->world - 1],
                          *own = &t->control->rank[t->store->rank];
    return (int32_t)(atomic_load(&last->added) - turn->need) >= 0 &&
           (int32_t)(atomic_load(&own->added) - turn->need) >= 0;
}

uint32_t reduce_complete(tensor *const *tensors, uint32_t count, const uint8_t *used) {
    uint32_t complete = 0;
    for (uint32_t i = count; i-- > 0;) {
        if (!used[i])
            continue;
        struct turn turn = {tensors[i], (tensors[i]->generation + 1) * tensors[i]->blocks};
        if (!sum_complete(&turn))
            break;
        complete++;
    }
    return complete;
}

/* One that has not come to the end of the backward before one that is there and waits as well; never this rank, whose own
 * thread waits for another's. */
static int rank_not_added(void *context) {
    const struct turn *turn = context;
    const tensor *t = turn->tensor;
    const store *s = t->store;
    int waiting = -1;
    for (int rank = 0; rank < s->world; rank++) {
        if (rank == s->rank || (int32_t)(atomic_load(&t->control->rank[rank].added) - turn->need) >= 0)
            continue;
        if (store_activity_get(s, rank) != ACTIVITY_BACKWARD)
            return rank;
        if (waiting < 0)
            waiting = rank;
    }
    return waiting;
}

castor_status reduce_finish(store *s, tensor *const *tensors, uint32_t count) {
    castor_status status = CASTOR_OK;
    store_activity_set(s, ACTIVITY_BACKWARD);
    for (uint32_t i = 0; i < count && !status; i++) {
        tensor *t = tensors[i];
        struct turn turn = {t, (t->generation + 1) * t->blocks};
        wait_condition c = {sum_complete, rank_not_added, &turn, "the end of backward"};
        status = wait_until(s, &t->control->event, &t->control->waiters, &c);
        if (status == CASTOR_OK)
            t->generation++;
    }
    store_activity_set(s, ACTIVITY_SCRIPT);
    s->changes++;
    reducer *r = s->sums;
    if (r) {
        pthread_mutex_lock(&r->lock);
        if (r->failed)
            status = error_set(r->failed, "%s", r->failure);
        open_sums_end(r);
        pthread_mutex_unlock(&r->lock);
    }
    return status;
}
