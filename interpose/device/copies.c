#include "copies.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "trace/trace.h"

typedef struct open_copy {
    uint64_t event, enqueued_ns, bytes;
    bool made; /* the event exists */
} open_copy;

/* Those of a kind that are not found done, in their order. */
typedef struct track {
    open_copy ring[COPIES_MAX];
    uint32_t first, count;
    uint64_t done_ns; /* when the last one was found done */
} track;

struct copies {
    pthread_mutex_t lock; /* of the tracks */
    device_driver driver;
    int device;
    _Atomic uint32_t open; /* in all tracks */
    _Atomic uint64_t looked_ns;
    track tracks[COPY_KIND_COUNT];
};

copies *copies_create(const device_driver *driver, int device) {
    copies *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->driver = *driver;
    c->device = device;
    trace_name_set(TRACE_COPY, COPY_SLOT, "copy into a slot");
    trace_name_set(TRACE_COPY, COPY_PART_IN, "part of a step, to the device");
    trace_name_set(TRACE_COPY, COPY_PART_OUT, "part of a step, to the host");
    return c;
}

void copies_destroy(copies *c) {
    if (!c)
        return;
    for (int kind = 0; kind < COPY_KIND_COUNT; kind++)
        for (uint32_t i = 0; i < COPIES_MAX; i++)
            if (c->tracks[kind].ring[i].made)
                c->driver.event_end(c->driver.context, c->tracks[kind].ring[i].event);
    pthread_mutex_destroy(&c->lock);
    munmap(c, sizeof *c);
}

static open_copy *copy_at(track *l, uint32_t number) {
    return &l->ring[(l->first + number) % COPIES_MAX];
}

/* The first `count` of a track are done. */
static void records_write(const copies *c, copy_kind kind, track *l, uint32_t count, uint64_t now_ns) {
    uint64_t all = 0, passed = 0, end_ns = l->done_ns;
    for (uint32_t i = 0; i < count; i++)
        all += copy_at(l, i)->bytes;
    uint64_t enqueued_ns = copy_at(l, 0)->enqueued_ns, start_ns = enqueued_ns > end_ns ? enqueued_ns : end_ns;
    for (uint32_t i = 0; i < count; i++) {
        const open_copy *copy = copy_at(l, i);
        passed += copy->bytes;
        uint64_t begin_ns = copy->enqueued_ns > end_ns ? copy->enqueued_ns : end_ns;
        double share = all ? (double)passed / (double)all : 1;
        end_ns = start_ns + (uint64_t)((double)(now_ns - start_ns) * share);
        end_ns = end_ns > begin_ns ? end_ns : begin_ns;
        trace_record_write(TRACE_COPY, kind, begin_ns, end_ns, copy->bytes, (uint64_t)c->device,
                           copy->enqueued_ns, 0);
    }
    l->done_ns = end_ns;
}

static void track_look(copies *c, copy_kind kind) {
    track *l = &c->tracks[kind];
    uint32_t done = 0;
    while (done < l->count && c->driver.event_done(c->driver.context, copy_at(l, done)->event))
        done++;
    if (!done)
        return;
    records_write(c, kind, l, done, c->driver.now_ns(c->driver.context));
    l->first = (l->first + done) % COPIES_MAX;
    l->count -= done;
    atomic_fetch_sub(&c->open, done);
}

void copies_look(copies *c, bool now) {
    if (!c || !atomic_load_explicit(&c->open, memory_order_relaxed))
        return;
    uint64_t now_ns = c->driver.now_ns(c->driver.context);
    if (!now && now_ns - atomic_load_explicit(&c->looked_ns, memory_order_relaxed) < COPIES_LOOK_NS)
        return;
    atomic_store_explicit(&c->looked_ns, now_ns, memory_order_relaxed);
    pthread_mutex_lock(&c->lock);
    for (int kind = 0; kind < COPY_KIND_COUNT; kind++)
        track_look(c, kind);
    pthread_mutex_unlock(&c->lock);
}

void copies_note(copies *c, copy_kind kind, uint64_t bytes, uint64_t stream) {
    if (!c)
        return;
    const device_driver *d = &c->driver;
    copies_look(c, false);
    pthread_mutex_lock(&c->lock);
    track *l = &c->tracks[kind];
    if (l->count == COPIES_MAX)
        track_look(c, kind);
    open_copy *copy = l->count < COPIES_MAX ? copy_at(l, l->count) : NULL;
    if (copy && !copy->made)
        copy->made = d->event_make(d->context, c->device, &copy->event) == CASTOR_OK;
    if (copy && copy->made && d->event_record(d->context, c->device, copy->event, stream) == CASTOR_OK) {
        copy->enqueued_ns = d->now_ns(d->context);
        copy->bytes = bytes;
        l->count++;
        atomic_fetch_add(&c->open, 1);
    }
    pthread_mutex_unlock(&c->lock);
}
