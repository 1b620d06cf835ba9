#include "probe.h"

#include <string.h>
#include <sys/mman.h>
#include "base/error.h"

#define PATTERN_BYTES ((size_t)1 << 16)

/* Pages of one tier, mapped in one range; or a block of the driver's. */
typedef struct probed_pages {
    uintptr_t address; /* 0: there is no range */
    size_t bytes;
    uint64_t pages;
    bool created, mapped, block;
} probed_pages;

typedef struct probing {
    const device_driver *driver;
    int device;
    uint64_t copy_bytes;
    bool maps_host;
    uint8_t *written, *read; /* of the process, PATTERN_BYTES each */
} probing;

static castor_status pages_make(const probing *p, device_tier tier, size_t bytes, size_t unit,
                                probed_pages *out) {
    const device_driver *v = p->driver;
    *out = (probed_pages){.bytes = bytes};
    if (tier == DEVICE_TIER_HOST && !p->maps_host) {
        castor_status status = v->host_make(v->context, p->device, bytes, &out->address, &out->pages);
        out->block = status == CASTOR_OK;
        return status;
    }
    castor_status status = v->reserve(v->context, p->device, bytes, unit, &out->address);
    if (status != CASTOR_OK) {
        out->address = 0;
        return status;
    }
    status = v->create(v->context, p->device, tier, bytes, &out->pages);
    out->created = status == CASTOR_OK;
    if (status == CASTOR_OK)
        status = v->map(v->context, p->device, out->address, bytes, out->pages);
    out->mapped = status == CASTOR_OK;
    return status;
}

static void pages_end(const probing *p, probed_pages *pages) {
    const device_driver *v = p->driver;
    if (pages->block) {
        if (v->host_end(v->context, p->device, pages->pages) != CASTOR_OK)
            v->host_end(v->context, p->device, pages->pages); /* once more; else it is left to the process */
        return;
    }
    /* Once more; a range that is still mapped then is left to the process. */
    if (pages->mapped && v->unmap(v->context, pages->address, pages->bytes) != CASTOR_OK &&
        v->unmap(v->context, pages->address, pages->bytes) != CASTOR_OK)
        return;
    if (pages->created)
        v->release(v->context, pages->pages);
    if (pages->address)
        v->unreserve(v->context, pages->address, pages->bytes);
}

static castor_status pattern_write(const probing *p, uintptr_t address, uint8_t seed) {
    for (size_t i = 0; i < PATTERN_BYTES; i++)
        p->written[i] = (uint8_t)(seed + i * 7 + i / 251);
    return p->driver->copy(p->driver->context, p->device, address, (uintptr_t)p->written, PATTERN_BYTES);
}

static castor_status pattern_check(const probing *p, uintptr_t address, const char *where) {
    memset(p->read, 0, PATTERN_BYTES);
    castor_status status =
        p->driver->copy(p->driver->context, p->device, (uintptr_t)p->read, address, PATTERN_BYTES);
    if (status == CASTOR_OK && memcmp(p->written, p->read, PATTERN_BYTES) != 0)
        status = error_set(CASTOR_ERR_MISMATCH, "device %d: %s do not hold the bytes that were written",
                           p->device, where);
    return status;
}

static castor_status pages_try(const probing *p, const probed_pages *pages, const char *where) {
    uintptr_t last = pages->address + pages->bytes - PATTERN_BYTES;
    castor_status status = pattern_write(p, last, 1);
    return status == CASTOR_OK ? pattern_check(p, last, where) : status;
}

/* One copy, after one that is not timed: the first one may set up things. */
static castor_status copy_time(const probing *p, const probed_pages *to, const probed_pages *from,
                               uint64_t *ns) {
    const device_driver *v = p->driver;
    castor_status status = CASTOR_OK;
    for (int round = 0; round < 2 && status == CASTOR_OK; round++) {
        uint64_t begin_ns = v->now_ns(v->context);
        status = v->copy(v->context, p->device, to->address, from->address, from->bytes);
        *ns = v->now_ns(v->context) - begin_ns;
    }
    return status;
}

static castor_status flips_try(const probing *p, homes *h, const home *made) {
    castor_status status = pattern_write(p, made->address, 3);
    if (status == CASTOR_OK && made->tier == DEVICE_TIER_HOST)
        status = error_set(CASTOR_ERR_MEMORY, "device %d has no %B left for a home", p->device,
                           (uint64_t)made->bytes);
    for (int tier = DEVICE_TIER_COUNT - 1; tier >= 0 && status == CASTOR_OK; tier--) {
        status = home_flip(h, made->address, (device_tier)tier);
        if (status == CASTOR_OK)
            status = pattern_check(p, made->address,
                                   tier == DEVICE_TIER_HOST ? "a home that moved to the host's pages"
                                                            : "a home that moved back to the device's pages");
    }
    return status;
}

static castor_status fixed_try(const probing *p, const home *made) {
    castor_status status = pattern_write(p, made->address, 3);
    return status == CASTOR_OK ? pattern_check(p, made->address, "a home in the host's memory") : status;
}

static castor_status homes_try(const probing *p, size_t unit) {
    const device_driver *v = p->driver;
    uintptr_t address;
    homes *h;
    home made;
    bool gone = true;
    castor_status status = v->reserve(v->context, p->device, 4 * unit, unit, &address);
    if (status != CASTOR_OK)
        return status;
    status = homes_create(&h, v, p->device, address, 4 * unit, p->maps_host ? UINT64_MAX : 0);
    if (status == CASTOR_OK) {
        status = home_create(h, CHUNK_PARAM, unit, &made);
        if (status == CASTOR_OK) {
            status = p->maps_host ? flips_try(p, h, &made) : fixed_try(p, &made);
            gone = home_destroy(h, made.address) == CASTOR_OK;
            if (!gone) /* once more; else the range is left to the process */
                gone = home_destroy(h, made.address) == CASTOR_OK;
        }
        homes_destroy(h);
    }
    if (gone)
        v->unreserve(v->context, address, 4 * unit);
    return status;
}

static castor_status levels_try(probing *p, device_probe *out) {
    const device_driver *v = p->driver;
    size_t unit = v->granularity(v->context, p->device);
    if (!unit)
        return CASTOR_ERR_UNSUPPORTED;
    if (unit < PATTERN_BYTES)
        unit = PATTERN_BYTES;
    out->unit_bytes = unit;
    out->copy_bytes = (p->copy_bytes + unit - 1) / unit * unit;
    v->room(v->context, p->device, &out->free_bytes, &out->total_bytes);
    out->host_bytes = v->host_room(v->context);
    p->maps_host = v->maps_host(v->context, p->device);
    probed_pages device = {0}, host = {0};
    castor_status status = pages_make(p, DEVICE_TIER_DEVICE, out->copy_bytes, unit, &device);
    if (status == CASTOR_OK)
        status = pages_try(p, &device, "pages of the device");
    if (status != CASTOR_OK)
        goto end;
    out->level = DEVICE_LEVEL_PAGES;
    status = pages_make(p, DEVICE_TIER_HOST, out->copy_bytes, unit, &host);
    if (status == CASTOR_OK)
        status = pages_try(p, &host, p->maps_host ? "pages of the host" : "memory of the host");
    if (status == CASTOR_OK)
        status = copy_time(p, &device, &host, &out->copy_ns[DEVICE_TIER_DEVICE]);
    if (status == CASTOR_OK)
        status = copy_time(p, &host, &device, &out->copy_ns[DEVICE_TIER_HOST]);
    if (status == CASTOR_OK && p->maps_host)
        out->level = DEVICE_LEVEL_HOST_PAGES;
end:
    pages_end(p, &host);
    pages_end(p, &device);
    if (status == CASTOR_OK)
        status = homes_try(p, unit);
    if (status != CASTOR_OK)
        return status;
    out->level = p->maps_host ? DEVICE_LEVEL_FLIPS : DEVICE_LEVEL_HOST_MEMORY;
    /* Says why. */
    return v->maps_host(v->context, p->device) ? CASTOR_OK : CASTOR_ERR_UNSUPPORTED;
}

castor_status device_probe_run(const device_driver *driver, int device, uint64_t copy_bytes,
                               device_probe *out) {
    *out = (device_probe){0};
    probing p = {.driver = driver, .device = device, .copy_bytes = copy_bytes};
    p.written = mmap(NULL, 2 * PATTERN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p.written == MAP_FAILED)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a probe of device %d", device);
    p.read = p.written + PATTERN_BYTES;
    castor_status status = levels_try(&p, out);
    munmap(p.written, 2 * PATTERN_BYTES);
    return status;
}
