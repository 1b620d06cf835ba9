#include "fake_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"

#define DEVICES      64
#define STREAMS_MADE 1000 /* the first number of those that the driver makes */

typedef struct range {
    uintptr_t address;
    size_t bytes;
} range;

/* Pages live until they are released and nothing maps them; their number is their place in the list, from 1. */
typedef struct pages {
    device_tier tier;
    size_t bytes;
    uint64_t offset; /* in the one file; never used twice */
    int maps;
    bool released, gone;
    bool is_shared, is_taken; /* others may have its bytes; these are another's */
} pages;

typedef struct map {
    range at;
    uint64_t pages;
} map;

typedef enum operation_sort {
    OPERATION_OF_TEST,
    OPERATION_COPY,
    OPERATION_RECORD,
    OPERATION_WAIT,
    OPERATION_VALUE_WRITE,
    OPERATION_VALUE_WAIT
} operation_sort;

typedef struct operation {
    struct operation *next;
    operation_sort sort;
    uint64_t number; /* from 1 */
    void (*call)(void *argument);
    void *argument;
    uintptr_t to, from;
    size_t bytes;
    uint64_t record;     /* OPERATION_WAIT: the number of the record that must be done */
    uint64_t *at, value; /* of a value */
} operation;

typedef struct stream {
    uint64_t number;
    int device; /* -1: not used with one yet */
    bool captures, ended;
    operation *first, **last;
} stream;

typedef struct event {
    int device;
    bool ended;
    uint64_t record; /* the number of its last one; 0: it was never recorded */
} event;

struct fake_device {
    pthread_mutex_t lock; /* recursive: operations of tests may call functions of this file */
    fake_device_settings settings;
    int file; /* all pages */
    uint64_t file_bytes;
    uint64_t used[DEVICE_TIER_COUNT], others[DEVICE_TIER_COUNT];
    range *reserved;
    pages *pages;
    map *maps;
    stream **streams;
    event *events;
    bool *done; /* by an operation's number */
    size_t reserved_count, pages_count, map_count, stream_count, event_count, operations, made;
    uint64_t random, now_ns, drains;
    uint64_t calls, fail_at;
    bool fail_more, hangs;
    castor_status fail_with;
    const char *broken;
};

static void leave(fake_device **held) {
    pthread_mutex_unlock(&(*held)->lock);
}

/* The functions of the driver and of the test hold the lock until they return. */
#define HOLD(context)                                                                                        \
    fake_device *d __attribute__((cleanup(leave))) = (context);                                              \
    pthread_mutex_lock(&d->lock)
/* Those of the driver that may fail. `memory`: it makes or maps some. */
#define BEGIN(memory, what)                                                                                  \
    HOLD(context);                                                                                           \
    castor_status status = injected(d, memory, what);                                                        \
    if (status != CASTOR_OK)                                                                                 \
    return status

static castor_status injected(fake_device *d, bool memory, const char *what) {
    uint64_t call = ++d->calls;
    if (!d->fail_at || call < d->fail_at || (call > d->fail_at && !d->fail_more))
        return CASTOR_OK;
    castor_status status = d->fail_with;
    if (status == CASTOR_OK)
        status = memory ? CASTOR_ERR_MEMORY : CASTOR_ERR_SYSTEM;
    return error_set(status, "%s fails (injected)", what);
}

static void promise(fake_device *d, bool kept, const char *what) {
    if (!kept && !d->broken)
        d->broken = what;
}

static castor_status breaks(fake_device *d, const char *what) {
    promise(d, false, what);
    return error_set(CASTOR_ERR_SYSTEM, "%s", what);
}

/* One place more at the end of a list, of zeros. */
static void *grow(void *list, size_t *count, size_t each) {
    char *grown = realloc(list, (*count + 1) * each);
    if (!grown)
        abort();
    memset(grown + *count * each, 0, each);
    ++*count;
    return grown;
}

static uint64_t drawn(fake_device *d, uint64_t below) {
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random % below;
}

static bool overlaps(range a, uintptr_t address, size_t bytes) {
    return a.address < address + bytes && address < a.address + a.bytes;
}

static bool holds(range a, uintptr_t address, size_t bytes) {
    return address >= a.address && bytes <= a.bytes && address - a.address <= a.bytes - bytes;
}

/* ---- memory ---- */

static size_t granularity(void *context, int device) {
    HOLD(context);
    promise(d, device >= 0 && device < DEVICES, "there is no such device");
    size_t unit = d->settings.host == FAKE_HOST_NONE ? 0 : d->settings.unit_bytes;
    if (!unit)
        error_set(CASTOR_ERR_UNSUPPORTED, "the device takes no memory of the host");
    return unit;
}

static castor_status reserve(void *context, int device, size_t bytes, size_t alignment, uintptr_t *address) {
    (void)device;
    BEGIN(true, "reserve");
    size_t unit = d->settings.unit_bytes;
    if (!bytes || bytes % unit || alignment & (alignment - 1))
        return breaks(d, "addresses are reserved that are no whole units");
    alignment = alignment < unit ? unit : alignment;
    char *all = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return error_set(CASTOR_ERR_MEMORY, "no addresses are left for %zu bytes", bytes);
    size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
    if (before)
        munmap(all, before);
    if (alignment - before)
        munmap(all + before + bytes, alignment - before);
    d->reserved = grow(d->reserved, &d->reserved_count, sizeof *d->reserved);
    d->reserved[d->reserved_count - 1] = (range){(uintptr_t)all + before, bytes};
    *address = (uintptr_t)all + before;
    return CASTOR_OK;
}

static castor_status unreserve(void *context, uintptr_t address, size_t bytes) {
    BEGIN(false, "unreserve");
    for (size_t i = 0; i < d->map_count; i++)
        if (overlaps(d->maps[i].at, address, bytes))
            return breaks(d, "addresses are given back that have pages");
    for (size_t i = 0; i < d->reserved_count; i++)
        if (d->reserved[i].address == address && d->reserved[i].bytes == bytes) {
            munmap((void *)address, bytes);
            d->reserved[i] = d->reserved[--d->reserved_count];
            return CASTOR_OK;
        }
    return breaks(d, "addresses are given back that were not reserved");
}

static uint64_t free_bytes(const fake_device *d, device_tier tier) {
    uint64_t all = tier == DEVICE_TIER_DEVICE ? d->settings.device_bytes : d->settings.host_bytes;
    uint64_t taken = d->used[tier] + d->others[tier];
    return all > taken ? all - taken : 0;
}

/* Whoever counts on zeros shall see it. */
static void fill(const fake_device *d, const pages *p) {
    static const char filler[4096] = {[0 ... 4095] = (char)0xa5};
    for (size_t at = 0; at < p->bytes; at += sizeof filler)
        if (pwrite(d->file, filler, sizeof filler, (off_t)(p->offset + at)) != (ssize_t)sizeof filler)
            abort();
}

/* With the lock. */
static castor_status pages_make(fake_device *d, device_tier tier, size_t bytes, uint64_t *out) {
    if (!bytes || bytes % d->settings.unit_bytes || tier >= DEVICE_TIER_COUNT)
        return breaks(d, "pages are created that are no whole units");
    if (bytes > free_bytes(d, tier))
        return error_set(CASTOR_ERR_MEMORY, "%zu bytes are more than are free", bytes);
    d->pages = grow(d->pages, &d->pages_count, sizeof *d->pages);
    pages *p = &d->pages[d->pages_count - 1];
    *p = (pages){.tier = tier, .bytes = bytes, .offset = d->file_bytes};
    d->file_bytes += bytes;
    fill(d, p);
    d->used[tier] += bytes;
    *out = d->pages_count;
    return CASTOR_OK;
}

static castor_status create(void *context, int device, device_tier tier, size_t bytes, uint64_t *out) {
    (void)device;
    BEGIN(true, "create");
    if (tier == DEVICE_TIER_HOST && d->settings.host != FAKE_HOST_PAGES)
        return breaks(d, "pages of the host are created that there are not");
    return pages_make(d, tier, bytes, out);
}

/* The descriptor is a file with the number of the pages. What takes it is other pages with the same bytes. */
static castor_status create_shared(void *context, int device, size_t bytes, uint64_t *out, int *descriptor) {
    (void)device;
    BEGIN(true, "create_shared");
    status = pages_make(d, DEVICE_TIER_HOST, bytes, out);
    if (status != CASTOR_OK)
        return status;
    d->pages[*out - 1].is_shared = true;
    *descriptor = memfd_create("fake-pages", MFD_CLOEXEC);
    if (*descriptor < 0 || pwrite(*descriptor, out, sizeof *out, 0) != sizeof *out)
        abort();
    return CASTOR_OK;
}

static castor_status take_shared(void *context, int device, int descriptor, uint64_t *out) {
    (void)device;
    BEGIN(true, "take_shared");
    uint64_t number;
    if (pread(descriptor, &number, sizeof number, 0) != sizeof number)
        return breaks(d, "pages are taken by a descriptor that has none");
    d->pages = grow(d->pages, &d->pages_count, sizeof *d->pages);
    pages *p = &d->pages[d->pages_count - 1];
    *p = d->pages[number - 1];
    p->is_taken = true;
    p->released = p->gone = false;
    p->maps = 0;
    *out = d->pages_count;
    return CASTOR_OK;
}

static castor_status read_only(void *context, int device, uintptr_t address, size_t bytes) {
    (void)device;
    BEGIN(true, "read_only");
    bool found = false;
    for (size_t i = 0; i < d->map_count; i++)
        found |= d->maps[i].at.address == address && d->maps[i].at.bytes == bytes;
    if (!found)
        return breaks(d, "memory is made read-only that is no map");
    if (mprotect((void *)address, bytes, PROT_READ))
        abort();
    return CASTOR_OK;
}

static void pages_end(fake_device *d, pages *p) {
    if (!p->released || p->maps || p->gone)
        return;
    p->gone = true;
    if (p->is_taken)
        return;
    d->used[p->tier] -= p->bytes;
    if (!p->is_shared &&
        fallocate(d->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->bytes))
        abort();
}

static void release(void *context, uint64_t number) {
    HOLD(context);
    if (!number || number > d->pages_count || d->pages[number - 1].released) {
        promise(d, false, "pages are released that do not exist");
    } else {
        d->pages[number - 1].released = true;
        pages_end(d, &d->pages[number - 1]);
    }
}

static void map_add(fake_device *d, uintptr_t address, size_t bytes, uint64_t number) {
    d->maps = grow(d->maps, &d->map_count, sizeof *d->maps);
    d->maps[d->map_count - 1] = (map){{address, bytes}, number};
    d->pages[number - 1].maps++;
}

static void map_remove(fake_device *d, size_t number) {
    pages *p = &d->pages[d->maps[number].pages - 1];
    d->maps[number] = d->maps[--d->map_count];
    p->maps--;
    pages_end(d, p);
}

static castor_status map_pages(void *context, int device, uintptr_t address, size_t bytes, uint64_t number) {
    (void)device;
    BEGIN(true, "map");
    if (!number || number > d->pages_count || d->pages[number - 1].released)
        return breaks(d, "pages are mapped that do not exist");
    pages *p = &d->pages[number - 1];
    if (p->bytes != bytes || address % d->settings.unit_bytes)
        return breaks(d, "pages are mapped in part, or not at a unit");
    bool reserved = false;
    for (size_t i = 0; i < d->reserved_count; i++)
        reserved |= holds(d->reserved[i], address, bytes);
    if (!reserved)
        return breaks(d, "pages are mapped at addresses that are not reserved");
    for (size_t i = 0; i < d->map_count; i++)
        if (overlaps(d->maps[i].at, address, bytes))
            return breaks(d, "pages are mapped where others are");
    void *at = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, d->file,
                    (off_t)p->offset);
    if (at == MAP_FAILED)
        abort();
    map_add(d, address, bytes, number);
    return CASTOR_OK;
}

/* Whether a copy in a stream that has not run touches the range. */
static bool in_use(const fake_device *d, uintptr_t address, size_t bytes) {
    for (size_t i = 0; i < d->stream_count; i++)
        for (const operation *o = d->streams[i]->first; o; o = o->next)
            if (o->sort == OPERATION_COPY && (overlaps((range){o->to, o->bytes}, address, bytes) ||
                                              overlaps((range){o->from, o->bytes}, address, bytes)))
                return true;
    return false;
}

/* Whole maps, one or more. */
static castor_status unmap(void *context, uintptr_t address, size_t bytes) {
    BEGIN(false, "unmap");
    size_t found = 0;
    for (size_t i = 0; i < d->map_count; i++)
        if (overlaps(d->maps[i].at, address, bytes))
            found += holds((range){address, bytes}, d->maps[i].at.address, d->maps[i].at.bytes)
                         ? d->maps[i].at.bytes
                         : bytes + 1;
    if (!bytes || found != bytes)
        return breaks(d, "a range is unmapped that is not made of whole maps");
    promise(d, !in_use(d, address, bytes), "pages are unmapped that a copy in a stream needs");
    for (size_t i = d->map_count; i-- > 0;)
        if (overlaps(d->maps[i].at, address, bytes))
            map_remove(d, i);
    if (mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        abort();
    return CASTOR_OK;
}

/* How many bytes of a range are mapped. `tier`: whose pages lie there; DEVICE_TIER_COUNT: several tiers' or none. */
static size_t mapped_bytes(const fake_device *d, uintptr_t address, size_t bytes, device_tier *tier) {
    size_t found = 0;
    *tier = DEVICE_TIER_COUNT;
    for (size_t i = 0; i < d->map_count; i++) {
        range at = d->maps[i].at;
        if (!overlaps(at, address, bytes))
            continue;
        uintptr_t first = at.address > address ? at.address : address;
        uintptr_t last = at.address + at.bytes < address + bytes ? at.address + at.bytes : address + bytes;
        device_tier here = d->pages[d->maps[i].pages - 1].tier;
        *tier = !found || here == *tier ? here : DEVICE_TIER_COUNT;
        found += last - first;
    }
    return found;
}

static device_tier tier_of(const fake_device *d, uintptr_t address, size_t bytes) {
    device_tier tier;
    return mapped_bytes(d, address, bytes, &tier) == bytes ? tier : DEVICE_TIER_COUNT;
}

static bool mapped(const fake_device *d, uintptr_t address, size_t bytes) {
    device_tier tier;
    return mapped_bytes(d, address, bytes, &tier) == bytes;
}

/* Mapped pages, or memory of the process that is none of the device's. */
static bool accessible(const fake_device *d, uintptr_t address, size_t bytes) {
    bool own = true;
    for (size_t i = 0; i < d->reserved_count; i++)
        own &= !overlaps(d->reserved[i], address, bytes);
    return own || mapped(d, address, bytes);
}

static castor_status copy(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes) {
    (void)device;
    BEGIN(false, "copy");
    if (!accessible(d, to, bytes) || !accessible(d, from, bytes))
        return breaks(d, "a copy between addresses that are not mapped");
    memmove((void *)to, (const void *)from, bytes);
    return CASTOR_OK;
}

static castor_status drain(void *context, int device) {
    (void)device;
    HOLD(context);
    d->drains++;
    castor_status status = injected(d, false, "drain");
    if (status != CASTOR_OK)
        return status;
    if (d->hangs)
        return error_set(CASTOR_ERR_TIMEOUT, "the device does not come to rest");
    fake_device_run_all(d);
    return CASTOR_OK;
}

/* ---- memory of the host at its own address ---- */

static bool maps_host(void *context, int device) {
    HOLD(context);
    bool maps = d->settings.host == FAKE_HOST_PAGES;
    (void)device;
    if (!maps)
        error_set(CASTOR_ERR_UNSUPPORTED, "the device maps no pages of the host");
    return maps;
}

/* Far apart, and each time somewhere else. */
static void *somewhere(fake_device *d, size_t bytes) {
    for (int tries = 0; tries < 100; tries++) {
        uintptr_t wanted = (UINT64_C(1) << 32) + drawn(d, UINT64_C(1) << 46);
        wanted -= wanted % d->settings.unit_bytes;
        void *at = mmap((void *)wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                        d->file, (off_t)d->pages[d->pages_count - 1].offset);
        if (at == (void *)wanted)
            return at;
        if (at != MAP_FAILED)
            munmap(at, bytes);
    }
    abort();
}

static bool host_is_reached(void *context, int device) {
    (void)device;
    HOLD(context);
    return d->settings.host == FAKE_HOST_PAGES;
}

static castor_status host_make(void *context, int device, size_t bytes, uintptr_t *address, uint64_t *block) {
    (void)device;
    BEGIN(true, "host_make");
    if (d->settings.host == FAKE_HOST_NONE)
        return breaks(d, "memory of the host is made that there is not");
    if ((status = pages_make(d, DEVICE_TIER_HOST, bytes, block)) != CASTOR_OK)
        return status;
    d->pages[*block - 1].released = true; /* it ends with its map */
    *address = (uintptr_t)somewhere(d, bytes);
    map_add(d, *address, bytes, *block);
    return CASTOR_OK;
}

static castor_status host_end(void *context, int device, uint64_t block) {
    (void)device;
    BEGIN(false, "host_end");
    for (size_t i = 0; i < d->map_count; i++) {
        range at = d->maps[i].at;
        if (d->maps[i].pages != block)
            continue;
        promise(d, !in_use(d, at.address, at.bytes), "a block ends that a copy in a stream needs");
        map_remove(d, i);
        munmap((void *)at.address, at.bytes);
        return CASTOR_OK;
    }
    return breaks(d, "a block ends that does not exist");
}

static void room(void *context, int device, uint64_t *free_now, uint64_t *total) {
    HOLD(context);
    (void)device;
    *free_now = free_bytes(d, DEVICE_TIER_DEVICE);
    *total = d->settings.device_bytes;
}

static uint64_t host_room(void *context) {
    HOLD(context);
    return free_bytes(d, DEVICE_TIER_HOST);
}

static uint64_t now_ns(void *context) {
    HOLD(context);
    return d->now_ns += 1000;
}

/* ---- streams ---- */

static stream *stream_at(fake_device *d, uint64_t number, int device) {
    stream *s = NULL;
    for (size_t i = 0; i < d->stream_count; i++)
        if (d->streams[i]->number == number)
            s = d->streams[i];
    if (!s) {
        promise(d, number < STREAMS_MADE || number == STREAMS_MADE + d->made, "there is no such stream");
        s = calloc(1, sizeof *s);
        if (!s)
            abort();
        *s = (stream){.number = number, .device = -1, .last = NULL};
        s->last = &s->first;
        d->streams = grow(d->streams, &d->stream_count, sizeof(stream *));
        d->streams[d->stream_count - 1] = s;
    }
    /* Stream 0 is each device's own. */
    if (number && device >= 0) {
        promise(d, s->device < 0 || s->device == device, "a stream is used with another device");
        s->device = device;
    }
    promise(d, !s->ended, "a stream is used that was ended");
    return s;
}

static operation *enqueue(fake_device *d, stream *s, operation_sort sort) {
    operation *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    if (!d->operations)
        d->done = grow(d->done, &d->operations, sizeof *d->done); /* numbers begin at 1 */
    o->sort = sort;
    o->number = d->operations;
    d->done = grow(d->done, &d->operations, sizeof *d->done);
    *s->last = o;
    s->last = &o->next;
    return o;
}

static castor_status stream_make(void *context, int device, uint64_t *out) {
    BEGIN(false, "stream_make");
    *out = stream_at(d, STREAMS_MADE + d->made, device)->number;
    d->made++;
    return CASTOR_OK;
}

static void stream_end(void *context, uint64_t number) {
    HOLD(context);
    stream_at(d, number, -1)->ended = true; /* what is enqueued there runs all the same */
}

static bool captures_run(void *context) {
    HOLD(context);
    bool captures = false;
    for (size_t i = 0; i < d->stream_count; i++)
        captures |= d->streams[i]->captures;
    return captures;
}

static bool stream_captures(void *context, int device, uint64_t number) {
    HOLD(context);
    return stream_at(d, number, device)->captures;
}

static event *event_at(fake_device *d, uint64_t number, int device) {
    static event none;
    if (!number || number > d->event_count || d->events[number - 1].ended) {
        promise(d, false, "there is no such event");
        return &none;
    }
    event *e = &d->events[number - 1];
    promise(d, device < 0 || e->device == device, "an event is used with another device");
    return e;
}

static castor_status event_make(void *context, int device, uint64_t *out) {
    BEGIN(false, "event_make");
    d->events = grow(d->events, &d->event_count, sizeof *d->events);
    d->events[d->event_count - 1].device = device;
    *out = d->event_count;
    return CASTOR_OK;
}

static void event_end(void *context, uint64_t number) {
    HOLD(context);
    event_at(d, number, -1)->ended = true; /* waits for it stay */
}

/* The stream in which the driver's caller may enqueue: a capture would take it into its graph. */
static stream *open_stream(fake_device *d, uint64_t number, int device) {
    stream *s = stream_at(d, number, device);
    promise(d, !s->captures, "something is enqueued in a stream that captures");
    return s;
}

static castor_status event_record(void *context, int device, uint64_t number, uint64_t in) {
    BEGIN(false, "event_record");
    event_at(d, number, device)->record = enqueue(d, open_stream(d, in, device), OPERATION_RECORD)->number;
    return CASTOR_OK;
}

static castor_status event_wait(void *context, int device, uint64_t in, uint64_t number) {
    BEGIN(false, "event_wait");
    uint64_t record = event_at(d, number, device)->record;
    stream *s = open_stream(d, in, device);
    if (record)
        enqueue(d, s, OPERATION_WAIT)->record = record;
    return CASTOR_OK;
}

static bool event_done(void *context, uint64_t number) {
    HOLD(context);
    uint64_t record = event_at(d, number, -1)->record;
    return !record || d->done[record];
}

static castor_status copy_enqueue(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes,
                                  uint64_t in) {
    BEGIN(false, "copy_enqueue");
    if (!mapped(d, to, bytes) || !mapped(d, from, bytes))
        return breaks(d, "a copy in a stream between addresses that are not mapped");
    operation *o = enqueue(d, open_stream(d, in, device), OPERATION_COPY);
    o->to = to;
    o->from = from;
    o->bytes = bytes;
    return CASTOR_OK;
}

#define VALUE(name, sort)                                                                                    \
    static castor_status name(void *context, int device, uintptr_t address, uint64_t value, uint64_t in) {   \
        BEGIN(false, #name);                                                                                 \
        operation *o = enqueue(d, open_stream(d, in, device), sort);                                         \
        o->at = (uint64_t *)address;                                                                         \
        o->value = value;                                                                                    \
        return CASTOR_OK;                                                                                    \
    }
VALUE(value_write, OPERATION_VALUE_WRITE)
VALUE(value_wait, OPERATION_VALUE_WAIT)

static bool may_run(const fake_device *d, const stream *s) {
    const operation *o = s->first;
    if (!o)
        return false;
    if (o->sort == OPERATION_VALUE_WAIT)
        return __atomic_load_n(o->at, __ATOMIC_ACQUIRE) >= o->value;
    return o->sort != OPERATION_WAIT || d->done[o->record];
}

static void run_copy(fake_device *d, const operation *o) {
    if (!mapped(d, o->to, o->bytes) || !mapped(d, o->from, o->bytes)) {
        promise(d, false, "a copy in a stream runs when its addresses are not mapped");
        return;
    }
    memmove((void *)o->to, (const void *)o->from, o->bytes);
}

bool fake_device_run(fake_device *fake) {
    HOLD(fake);
    size_t able = 0;
    for (size_t i = 0; i < d->stream_count; i++)
        able += may_run(d, d->streams[i]);
    if (!able)
        return false;
    size_t chosen = drawn(d, able);
    stream *s = NULL;
    for (size_t i = 0; i < d->stream_count; i++)
        if (may_run(d, d->streams[i]) && chosen-- == 0)
            s = d->streams[i];
    operation *o = s->first;
    s->first = o->next;
    if (!s->first)
        s->last = &s->first;
    if (o->sort == OPERATION_OF_TEST)
        o->call(o->argument);
    else if (o->sort == OPERATION_COPY)
        run_copy(d, o);
    else if (o->sort == OPERATION_VALUE_WRITE)
        __atomic_store_n(o->at, o->value, __ATOMIC_RELEASE);
    d->done[o->number] = true;
    free(o);
    return true;
}

void fake_device_run_all(fake_device *fake) {
    while (fake_device_run(fake)) {
    }
}

void fake_device_captures(fake_device *fake, uint64_t number, bool captures) {
    HOLD(fake);
    stream_at(d, number, -1)->captures = captures;
}

/* ---- of the test ---- */

fake_device *fake_device_make(const fake_device_settings *settings, device_driver *driver) {
    fake_device *d = calloc(1, sizeof *d);
    pthread_mutexattr_t recursive;
    if (!d || pthread_mutexattr_init(&recursive))
        abort();
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&d->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    d->settings = *settings;
    if (!d->settings.unit_bytes)
        d->settings.unit_bytes = 64 << 10;
    d->random = settings->seed * 2654435761u + 88172645463325252u;
    d->file = memfd_create("fake-device", MFD_CLOEXEC);
    if (d->file < 0)
        abort();
    *driver = (device_driver){.context = d,
                              .granularity = granularity,
                              .reserve = reserve,
                              .unreserve = unreserve,
                              .maps_host = maps_host,
                              .host_is_reached = host_is_reached,
                              .host_make = host_make,
                              .host_end = host_end,
                              .create = create,
                              .create_shared = create_shared,
                              .take_shared = take_shared,
                              .read_only = read_only,
                              .release = release,
                              .map = map_pages,
                              .unmap = unmap,
                              .copy = copy,
                              .drain = drain,
                              .room = room,
                              .host_room = host_room,
                              .now_ns = now_ns,
                              .stream_make = stream_make,
                              .stream_end = stream_end,
                              .captures_run = captures_run,
                              .stream_captures = stream_captures,
                              .event_make = event_make,
                              .event_end = event_end,
                              .event_record = event_record,
                              .event_wait = event_wait,
                              .event_done = event_done,
                              .copy_enqueue = copy_enqueue,
                              .value_write = value_write,
                              .value_wait = value_wait};
    return d;
}

void fake_device_end(fake_device *d) {
    for (size_t i = 0; i < d->stream_count; i++) {
        for (operation *o = d->streams[i]->first, *next; o; o = next) {
            next = o->next;
            free(o);
        }
        free(d->streams[i]);
    }
    for (size_t i = 0; i < d->reserved_count; i++)
        munmap((void *)d->reserved[i].address, d->reserved[i].bytes);
    close(d->file);
    free(d->streams);
    free(d->events);
    free(d->done);
    free(d->reserved);
    free(d->pages);
    free(d->maps);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void fake_device_fail(fake_device *fake, uint64_t call, bool more) {
    HOLD(fake);
    d->fail_at = call;
    d->fail_more = more;
}

void fake_device_fail_with(fake_device *fake, castor_status status) {
    HOLD(fake);
    d->fail_with = status;
}

/* What a test reads of the device. */
#define READS(type, name, field)                                                                             \
    type fake_device_##name(fake_device *fake) {                                                             \
        HOLD(fake);                                                                                          \
        return d->field;                                                                                     \
    }
READS(uint64_t, calls, calls)
READS(uint64_t, drains, drains)
READS(uint64_t, maps, map_count)
READS(const char *, broken, broken)

void fake_device_drain_hangs(fake_device *fake, bool hangs) {
    HOLD(fake);
    d->hangs = hangs;
}

void fake_device_others(fake_device *fake, uint64_t device_bytes, uint64_t host_bytes) {
    HOLD(fake);
    d->others[DEVICE_TIER_DEVICE] = device_bytes;
    d->others[DEVICE_TIER_HOST] = host_bytes;
}

uint64_t fake_device_used(fake_device *fake, device_tier tier) {
    HOLD(fake);
    return d->used[tier];
}

device_tier fake_device_tier(fake_device *fake, uintptr_t address, size_t bytes) {
    HOLD(fake);
    return tier_of(d, address, bytes);
}

void fake_device_enqueue(fake_device *fake, uint64_t in, void (*call)(void *argument), void *argument) {
    HOLD(fake);
    operation *o = enqueue(d, stream_at(d, in, -1), OPERATION_OF_TEST);
    o->call = call;
    o->argument = argument;
}
