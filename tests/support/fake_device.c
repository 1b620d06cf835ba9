#include "fake_device_inside.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"

fake_device *fake_enter(void *context) {
    fake_device *d = context;
    pthread_mutex_lock(&d->lock);
    return d;
}

void fake_leave(fake_device *d) {
    pthread_mutex_unlock(&d->lock);
}

void fake_promise(fake_device *d, bool kept, const char *what) {
    if (!kept && !d->broken)
        d->broken = what;
}

void *fake_grow(void *list, size_t *count, size_t each) {
    char *grown = realloc(list, (*count + 1) * each);
    if (!grown)
        abort();
    memset(grown + *count * each, 0, each);
    ++*count;
    return grown;
}

castor_status fake_begin(void *context, fake_device **out, bool memory, const char *what) {
    fake_device *d = *out = fake_enter(context);
    uint64_t call = ++d->calls;
    if (!d->fail_at || call < d->fail_at || (call > d->fail_at && !d->fail_more))
        return CASTOR_OK;
    castor_status status = d->fail_with;
    if (status == CASTOR_OK)
        status = memory ? CASTOR_ERR_MEMORY : CASTOR_ERR_SYSTEM;
    return error_set(status, "%s fails (injected)", what);
}

castor_status fake_end(fake_device *d, castor_status status) {
    fake_leave(d);
    return status;
}

castor_status fake_breaks(fake_device *d, const char *what) {
    fake_promise(d, false, what);
    return error_set(CASTOR_ERR_SYSTEM, "%s", what);
}

static bool holds(range a, uintptr_t address, size_t bytes) {
    return address >= a.address && bytes <= a.bytes && address - a.address <= a.bytes - bytes;
}

/* ---- memory ---- */

static size_t granularity(void *context, int device) {
    fake_device *d = fake_enter(context);
    fake_promise(d, device >= 0 && device < DEVICES, "there is no such device");
    size_t unit = d->settings.host == FAKE_HOST_NONE ? 0 : d->settings.unit_bytes;
    if (!unit)
        error_set(CASTOR_ERR_UNSUPPORTED, "the device takes no memory of the host");
    fake_leave(d);
    return unit;
}

static castor_status reserve(void *context, int device, size_t bytes, size_t alignment, uintptr_t *address) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, true, "reserve");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    size_t unit = d->settings.unit_bytes;
    if (!bytes || bytes % unit || alignment & (alignment - 1))
        return fake_end(d, fake_breaks(d, "addresses are reserved that are no whole units"));
    alignment = alignment < unit ? unit : alignment;
    char *all = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return fake_end(d, error_set(CASTOR_ERR_MEMORY, "no addresses are left for %zu bytes", bytes));
    size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
    if (before)
        munmap(all, before);
    if (alignment - before)
        munmap(all + before + bytes, alignment - before);
    d->reserved = fake_grow(d->reserved, &d->reserved_count, sizeof *d->reserved);
    d->reserved[d->reserved_count - 1] = (range){(uintptr_t)all + before, bytes};
    *address = (uintptr_t)all + before;
    return fake_end(d, CASTOR_OK);
}

static castor_status unreserve(void *context, uintptr_t address, size_t bytes) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "unreserve");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    for (size_t i = 0; i < d->map_count; i++)
        if (fake_overlaps(d->maps[i].at, address, bytes))
            return fake_end(d, fake_breaks(d, "addresses are given back that have pages"));
    for (size_t i = 0; i < d->reserved_count; i++)
        if (d->reserved[i].address == address && d->reserved[i].bytes == bytes) {
            munmap((void *)address, bytes);
            d->reserved[i] = d->reserved[--d->reserved_count];
            return fake_end(d, CASTOR_OK);
        }
    return fake_end(d, fake_breaks(d, "addresses are given back that were not reserved"));
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
        return fake_breaks(d, "pages are created that are no whole units");
    if (bytes > free_bytes(d, tier))
        return error_set(CASTOR_ERR_MEMORY, "%zu bytes are more than are free", bytes);
    d->pages = fake_grow(d->pages, &d->pages_count, sizeof *d->pages);
    pages *p = &d->pages[d->pages_count - 1];
    *p = (pages){.tier = tier, .bytes = bytes, .offset = d->file_bytes};
    d->file_bytes += bytes;
    fill(d, p);
    d->used[tier] += bytes;
    *out = d->pages_count;
    return CASTOR_OK;
}

static castor_status create(void *context, int device, device_tier tier, size_t bytes, uint64_t *out) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, true, "create");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (tier == DEVICE_TIER_HOST && d->settings.host != FAKE_HOST_PAGES)
        return fake_end(d, fake_breaks(d, "pages of the host are created that there are not"));
    return fake_end(d, pages_make(d, tier, bytes, out));
}

static void pages_end(fake_device *d, pages *p) {
    if (!p->released || p->maps || p->gone)
        return;
    p->gone = true;
    d->used[p->tier] -= p->bytes;
    if (fallocate(d->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->bytes))
        abort();
}

static void release(void *context, uint64_t number) {
    fake_device *d = fake_enter(context);
    if (!number || number > d->pages_count || d->pages[number - 1].released) {
        fake_promise(d, false, "pages are released that do not exist");
    } else {
        d->pages[number - 1].released = true;
        pages_end(d, &d->pages[number - 1]);
    }
    fake_leave(d);
}

static castor_status map_pages(void *context, int device, uintptr_t address, size_t bytes, uint64_t number) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, true, "map");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (!number || number > d->pages_count || d->pages[number - 1].released)
        return fake_end(d, fake_breaks(d, "pages are mapped that do not exist"));
    pages *p = &d->pages[number - 1];
    if (p->bytes != bytes || address % d->settings.unit_bytes)
        return fake_end(d, fake_breaks(d, "pages are mapped in part, or not at a unit"));
    bool reserved = false;
    for (size_t i = 0; i < d->reserved_count; i++)
        reserved |= holds(d->reserved[i], address, bytes);
    if (!reserved)
        return fake_end(d, fake_breaks(d, "pages are mapped at addresses that are not reserved"));
    for (size_t i = 0; i < d->map_count; i++)
        if (fake_overlaps(d->maps[i].at, address, bytes))
            return fake_end(d, fake_breaks(d, "pages are mapped where others are"));
    void *at = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, d->file,
                    (off_t)p->offset);
    if (at == MAP_FAILED)
        abort();
    p->maps++;
    d->maps = fake_grow(d->maps, &d->map_count, sizeof *d->maps);
    d->maps[d->map_count - 1] = (map){{address, bytes}, number};
    return fake_end(d, CASTOR_OK);
}

/* Whole maps, one or more. */
static castor_status unmap(void *context, uintptr_t address, size_t bytes) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "unmap");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    size_t found = 0;
    for (size_t i = 0; i < d->map_count; i++)
        if (fake_overlaps(d->maps[i].at, address, bytes))
            found += holds((range){address, bytes}, d->maps[i].at.address, d->maps[i].at.bytes)
                         ? d->maps[i].at.bytes
                         : bytes + 1;
    if (!bytes || found != bytes)
        return fake_end(d, fake_breaks(d, "a range is unmapped that is not made of whole maps"));
    fake_promise(d, !fake_in_use(d, address, bytes), "pages are unmapped that a copy in a stream needs");
    for (size_t i = 0; i < d->map_count;) {
        if (!fake_overlaps(d->maps[i].at, address, bytes)) {
            i++;
            continue;
        }
        pages *p = &d->pages[d->maps[i].pages - 1];
        p->maps--;
        d->maps[i] = d->maps[--d->map_count];
        pages_end(d, p);
    }
    if (mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        abort();
    return fake_end(d, CASTOR_OK);
}

/* How many bytes of a range are mapped. `tier`: whose pages lie there; DEVICE_TIER_COUNT: several tiers' or none. */
static size_t mapped_bytes(const fake_device *d, uintptr_t address, size_t bytes, device_tier *tier) {
    size_t found = 0;
    *tier = DEVICE_TIER_COUNT;
    for (size_t i = 0; i < d->map_count; i++) {
        range at = d->maps[i].at;
        if (!fake_overlaps(at, address, bytes))
            continue;
        uintptr_t first = at.address > address ? at.address : address;
        uintptr_t last = at.address + at.bytes < address + bytes ? at.address + at.bytes : address + bytes;
        device_tier here = d->pages[d->maps[i].pages - 1].tier;
        *tier = !found || here == *tier ? here : DEVICE_TIER_COUNT;
        found += last - first;
    }
    return found;
}

device_tier fake_tier_of(const fake_device *d, uintptr_t address, size_t bytes) {
    device_tier tier;
    return mapped_bytes(d, address, bytes, &tier) == bytes ? tier : DEVICE_TIER_COUNT;
}

bool fake_mapped(const fake_device *d, uintptr_t address, size_t bytes) {
    device_tier tier;
    return mapped_bytes(d, address, bytes, &tier) == bytes;
}

/* Mapped pages, or memory of the process that is none of the device's. */
static bool accessible(const fake_device *d, uintptr_t address, size_t bytes) {
    bool own = true;
    for (size_t i = 0; i < d->reserved_count; i++)
        own &= !fake_overlaps(d->reserved[i], address, bytes);
    return own || fake_mapped(d, address, bytes);
}

static castor_status copy(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "copy");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (!accessible(d, to, bytes) || !accessible(d, from, bytes))
        return fake_end(d, fake_breaks(d, "a copy between addresses that are not mapped"));
    memmove((void *)to, (const void *)from, bytes);
    return fake_end(d, CASTOR_OK);
}

static castor_status drain(void *context, int device) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "drain");
    (void)device;
    d->drains++;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (d->hangs)
        return fake_end(d, error_set(CASTOR_ERR_TIMEOUT, "the device does not come to rest"));
    fake_device_run_all(d);
    return fake_end(d, CASTOR_OK);
}

/* ---- memory of the host at its own address ---- */

static bool maps_host(void *context, int device) {
    fake_device *d = fake_enter(context);
    bool maps = d->settings.host == FAKE_HOST_PAGES;
    (void)device;
    if (!maps)
        error_set(CASTOR_ERR_UNSUPPORTED, "the device maps no pages of the host");
    fake_leave(d);
    return maps;
}

/* Far apart, and each time somewhere else. */
static void *somewhere(fake_device *d, size_t bytes) {
    for (int tries = 0; tries < 100; tries++) {
        d->random ^= d->random << 13, d->random ^= d->random >> 7, d->random ^= d->random << 17;
        uintptr_t wanted = (UINT64_C(1) << 32) + d->random % (UINT64_C(1) << 46);
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

static castor_status host_make(void *context, int device, size_t bytes, uintptr_t *address, uint64_t *block) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, true, "host_make");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (d->settings.host != FAKE_HOST_BLOCKS)
        return fake_end(d, fake_breaks(d, "memory of the host is made that there is not"));
    status = pages_make(d, DEVICE_TIER_HOST, bytes, block);
    if (status != CASTOR_OK)
        return fake_end(d, status);
    void *at = somewhere(d, bytes);
    d->pages[*block - 1].released = true; /* it ends with its map */
    d->pages[*block - 1].maps = 1;
    d->maps = fake_grow(d->maps, &d->map_count, sizeof *d->maps);
    d->maps[d->map_count - 1] = (map){{(uintptr_t)at, bytes}, *block};
    *address = (uintptr_t)at;
    return fake_end(d, CASTOR_OK);
}

static castor_status host_end(void *context, int device, uint64_t block) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "host_end");
    (void)device;
    if (status != CASTOR_OK)
        return fake_end(d, status);
    for (size_t i = 0; i < d->map_count; i++) {
        range at = d->maps[i].at;
        if (d->maps[i].pages != block)
            continue;
        fake_promise(d, !fake_in_use(d, at.address, at.bytes), "a block ends that a copy in a stream needs");
        d->maps[i] = d->maps[--d->map_count];
        d->pages[block - 1].maps = 0;
        pages_end(d, &d->pages[block - 1]);
        munmap((void *)at.address, at.bytes);
        return fake_end(d, CASTOR_OK);
    }
    return fake_end(d, fake_breaks(d, "a block ends that does not exist"));
}

static void room(void *context, int device, uint64_t *free_now, uint64_t *total) {
    fake_device *d = fake_enter(context);
    (void)device;
    *free_now = free_bytes(d, DEVICE_TIER_DEVICE);
    *total = d->settings.device_bytes;
    fake_leave(d);
}

static uint64_t host_room(void *context) {
    fake_device *d = fake_enter(context);
    uint64_t bytes = free_bytes(d, DEVICE_TIER_HOST);
    fake_leave(d);
    return bytes;
}

static uint64_t now_ns(void *context) {
    fake_device *d = fake_enter(context);
    uint64_t now = d->now_ns += 1000;
    fake_leave(d);
    return now;
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
                              .host_make = host_make,
                              .host_end = host_end,
                              .create = create,
                              .release = release,
                              .map = map_pages,
                              .unmap = unmap,
                              .copy = copy,
                              .drain = drain,
                              .room = room,
                              .host_room = host_room,
                              .now_ns = now_ns};
    fake_streams_init(driver);
    return d;
}

void fake_device_end(fake_device *d) {
    fake_streams_end(d);
    for (size_t i = 0; i < d->reserved_count; i++)
        munmap((void *)d->reserved[i].address, d->reserved[i].bytes);
    close(d->file);
    free(d->reserved);
    free(d->pages);
    free(d->maps);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void fake_device_fail(fake_device *d, uint64_t call, bool more) {
    fake_enter(d);
    d->fail_at = call;
    d->fail_more = more;
    fake_leave(d);
}

void fake_device_fail_with(fake_device *d, castor_status status) {
    fake_enter(d);
    d->fail_with = status;
    fake_leave(d);
}

/* What a test reads of the device. */
#define READS(type, name, field)                                                                             \
    type fake_device_##name(fake_device *d) {                                                                \
        fake_enter(d);                                                                                       \
        type found = d->field;                                                                               \
        fake_leave(d);                                                                                       \
        return found;                                                                                        \
    }
READS(uint64_t, calls, calls)
READS(uint64_t, drains, drains)
READS(uint64_t, copied, copied)
READS(uint64_t, maps, map_count)
READS(const char *, broken, broken)

void fake_device_drain_hangs(fake_device *d, bool hangs) {
    fake_enter(d);
    d->hangs = hangs;
    fake_leave(d);
}

void fake_device_others(fake_device *d, uint64_t device_bytes, uint64_t host_bytes) {
    fake_enter(d);
    d->others[DEVICE_TIER_DEVICE] = device_bytes;
    d->others[DEVICE_TIER_HOST] = host_bytes;
    fake_leave(d);
}

uint64_t fake_device_used(fake_device *d, device_tier tier) {
    fake_enter(d);
    uint64_t used = d->used[tier];
    fake_leave(d);
    return used;
}

device_tier fake_device_tier(fake_device *d, uintptr_t address, size_t bytes) {
    fake_enter(d);
    device_tier tier = fake_tier_of(d, address, bytes);
    fake_leave(d);
    return tier;
}
