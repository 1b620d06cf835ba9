#include "touches.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/clock.h"
#include "base/error.h"
#include "store/tensor.h"
#include "budget.h"

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

castor_status touches_grow(store *s) {
    touches *t = s->touches ? s->touches : calloc(1, sizeof *t);
    uint32_t chunks = s->chunks.list[CHUNK_PARAM].count;
    uint32_t *seen = t ? realloc(t->seen_in, (chunks + 1) * sizeof *seen) : NULL;
    if (seen)
        t->seen_in = seen;
    bool *there = seen ? realloc(t->there, (s->tensor_count + 1) * sizeof *there) : NULL;
    if (!there) {
        if (!s->touches)
            free(t);
        return error_set(CASTOR_ERR_MEMORY, "no memory for the tables of CASTOR_MEMORY_BUDGET");
    }
    memset(there + t->count, 0, (s->tensor_count - t->count) * sizeof *there);
    memset(seen + t->seen_capacity, 0, (chunks - t->seen_capacity) * sizeof *seen);
    t->seen_capacity = chunks;
    t->there = there;
    t->count = s->tensor_count;
    if (!s->touches)
        t->pass = 1;
    if (!s->touches)
        memset(t->kept, 0xff, sizeof t->kept);
    s->touches = t;
    return CASTOR_OK;
}

static bool on_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

/* Under the store's lock: a block that is freed meanwhile stays what it is until then. */
static void view_drop(touches *all, tensor *t) {
    if (t->home && !t->forgotten)
        pages_unedited_drop(t->home, t->span);
    all->there[t->id] = false;
}

static void chunk_drop(store *s, uint32_t chunk) {
    for (uint32_t id = 0; id < s->touches->count; id++)
        if (s->touches->there[id] && s->tensors[id]->param_chunk == (int32_t)chunk)
            view_drop(s->touches, s->tensors[id]);
}

/* A chunk is used whose views are not mapped: the views that were used longest ago are unmapped. */
static void chunk_touched(store *s, uint32_t chunk) {
    touches *t = s->touches;
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
    touches *t = s->touches;
    if (pthread_mutex_trylock(&s->lock) != 0)
        return;
    /* In the order in which several of them are likely to have been touched since the last look. */
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t id = t->backward ? t->count - 1 - i : i;
        tensor *each = s->tensors[id];
        if (t->there[id] || !each->home || each->forgotten || !pages_of_store(each->home, each->span))
            continue;
        t->there[id] = true;
        chunk_touched(s, (uint32_t)each->param_chunk);
    }
    pthread_mutex_unlock(&s->lock);
}

void touches_collect(void) {
    store *s = store_first();
    for (; s && !s->touches; s = s->next)
        ;
    if (!s || s->detached || !on_main_thread())
        return;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    for (; s; s = s->next) {
        if (!s->touches || s->touches->stepping || now < s->touches->next_scan_ns)
            continue;
        /* What it costs is the thread's own time: one who waited for a processor in a look must not look less often. */
        uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        look(s);
        uint64_t took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
        now = clock_ns(CLOCK_MONOTONIC);
        s->touches->next_scan_ns = now + LOOKS_SHARE * took;
    }
}

static void pass_begin(touches *t, bool backward) {
    t->backward = backward;
    t->pass++;
    t->pass_chunks = 0;
}

/* What a forward has touched last is seen in every step or in none: how many chunks it touched is the same each time. */
void touches_backward(store *s, bool begun) {
    touches *t = s->touches;
    if (!t || t->backward == begun)
        return;
    if (begun && !s->detached && on_main_thread())
        look(s);
    pass_begin(t, begun);
}

void touches_step(store *s) {
    if (s->touches)
        s->touches->stepping = true;
}

void touches_drop(store *s) {
    touches *t = s->touches;
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
