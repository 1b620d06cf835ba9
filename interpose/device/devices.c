#include "devices.h"

#include <pthread.h>
#include "base/error.h"
#include "base/machine.h"

/* Of a budget: an eighth for slots, and as much for each of the three parts that are on the device at a time while an optimizer
 * steps; homes get the rest. Without a budget these are smaller shares of the device's memory, and nothing of it is taken before a
 * home lies on the host. */
#define REGION_SHARE        8
#define PART_SHARE          8
#define REGION_SHARE_OF_ALL 16
#define PART_SHARE_OF_ALL   32
#define REGION_LEAST        (UINT64_C(2) << 20)
#define REGION_MOST         (UINT64_C(4) << 30)
#define PART_LEAST          (UINT64_C(1) << 20)
#define PART_MOST           (UINT64_C(512) << 20)
#define STEP_FACTOR         4 /* parameters, with their gradients and two states each */
/* Of the memory, left to what a pass computes: nobody knows how much that is, and a home costs one copy. */
#define ACTIVATIONS_SHARE 2
#define RESERVED_LEAST    (UINT64_C(16) << 30)
#define RESERVED_FACTOR   2 /* of the memory that homes can have: a range with holes still has room */

typedef struct started_device {
    homes *homes;
    slots *slots;
    copies *copies;
    updates *updates; /* atomic */
    uintptr_t first, end;
    bool fixed;                          /* homes lie outside of the range as well */
    bool bounded, divided;               /* by a budget; by shares for the host */
    uint64_t homes_bytes, outside_bytes; /* guarded by `starting`, as are changes of the next two */
    uint64_t region_bytes, part_bytes;   /* atomic */
} started_device;

static started_device started[DEVICES_MAX]; /* each is complete before `end`, atomic, is set */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static device_driver driver; /* written once, before driver_known */
static device_driver given;  /* what it stands on: without updates */
static const device_driver *driver_known;
uintptr_t devices_first;
uint64_t devices_bytes;

static uint64_t clamped(uint64_t bytes, uint64_t least, uint64_t most) {
    return bytes < least ? least : bytes > most ? most : bytes;
}

static uint64_t units(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static void range_widen(uintptr_t first, uintptr_t end) {
    uintptr_t known_first = devices_first, known_end = devices_first + devices_bytes;
    if (!devices_bytes)
        known_first = first, known_end = end;
    if (first < known_first)
        known_first = first;
    if (end > known_end)
        known_end = end;
    __atomic_store_n(&devices_bytes, known_end - known_first, __ATOMIC_RELAXED);
    __atomic_store_n(&devices_first, known_first, __ATOMIC_RELEASE);
}

/* What a device's memory is divided into. */
typedef struct division {
    uint64_t homes, region, part;
} division;

static uint64_t addresses_for(uint64_t device_bytes) {
    uint64_t host = 0;
    machine_meminfo("", "MemTotal", &host);
    return clamped(RESERVED_FACTOR * (device_bytes + host), RESERVED_LEAST, UINT64_MAX / 4);
}

static division divide(uint64_t budget_bytes, uint64_t unit, uint64_t total_bytes) {
    bool bounded = budget_bytes != UINT64_MAX;
    uint64_t whole = bounded ? budget_bytes : total_bytes;
    division d = {
        .region = units(
            clamped(whole / (bounded ? REGION_SHARE : REGION_SHARE_OF_ALL), REGION_LEAST, REGION_MOST), unit),
        .part = clamped(whole / (bounded ? PART_SHARE : PART_SHARE_OF_ALL), PART_LEAST, PART_MOST),
        .homes = UINT64_MAX,
    };
    if (bounded) {
        uint64_t others = d.region + DEVICES_PARTS_AT_A_TIME * d.part;
        d.homes = whole > others ? whole - others : 0;
    }
    return d;
}

/* Homes do not move under updates. */
static castor_status drain(void *context, int device) {
    updates *u = devices_updates(device);
    castor_status status = u && updates_matter() ? updates_settle(u) : CASTOR_OK;
    return status ? status : given.drain(context, device);
}

/* Nor is a copy made of what they have not written. */
static castor_status copy_enqueue(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes,
                                  uint64_t stream) {
    updates *u = devices_updates(device);
    if (u && updates_matter())
        updates_wait(u, from, bytes, device, stream);
    return given.copy_enqueue(context, device, to, from, bytes, stream);
}

static castor_status start(int device, const devices_settings *settings) {
    uint64_t unit = driver.granularity(driver.context, device);
    if (!unit)
        return CASTOR_ERR_UNSUPPORTED;
    uint64_t free_bytes = 0, total_bytes = 0;
    driver.room(driver.context, device, &free_bytes, &total_bytes);
    division d = divide(settings->budget_bytes, unit, total_bytes);
    uint64_t reserved =
        units(settings->reserved_bytes ? settings->reserved_bytes : addresses_for(total_bytes), unit);
    started_device *s = &started[device];
    castor_status status = driver.reserve(driver.context, device, reserved, unit, &s->first);
    if (status)
        return status;
    s->copies = copies_create(&driver, device);
    status = homes_create(&s->homes, &driver, device, s->first, reserved, d.homes);
    if (!status) {
        homes_placement_set(s->homes, &settings->placement);
        status = slots_create(&s->slots, s->homes, &driver, device, d.region);
    }
    if (status) {
        if (s->homes)
            homes_destroy(s->homes);
        copies_destroy(s->copies);
        driver.unreserve(driver.context, s->first, reserved);
        *s = (started_device){0};
        return status;
    }
    slots_copies_set(s->slots, s->copies);
    s->bounded = settings->budget_bytes != UINT64_MAX;
    s->divided = placement_offloads(&settings->placement);
    s->homes_bytes = d.homes;
    s->region_bytes = d.region;
    s->part_bytes = d.part;
    s->fixed = homes_are_fixed(s->homes);
    range_widen(s->first, s->first + reserved);
    __atomic_store_n(&s->end, s->first + reserved, __ATOMIC_RELEASE);
    return CASTOR_OK;
}

castor_status devices_start(const device_driver *with, int device, const devices_settings *settings) {
    if (device < 0 || device >= DEVICES_MAX)
        return error_set(CASTOR_ERR_ARGUMENT, "device %d: Castor knows devices 0 to %d", device,
                         DEVICES_MAX - 1);
    pthread_mutex_lock(&starting);
    castor_status status = CASTOR_OK;
    if (!driver_known) {
        driver = given = *with;
        driver.drain = drain;
        driver.copy_enqueue = copy_enqueue;
        __atomic_store_n(&driver_known, &driver, __ATOMIC_RELEASE);
    }
    if (started[device].end)
        status = error_set(CASTOR_ERR_ARGUMENT, "device %d was started before", device);
    else
        status = start(device, settings);
    pthread_mutex_unlock(&starting);
    return status;
}

static const started_device *started_of(int device) {
    if (device < 0 || device >= DEVICES_MAX || !__atomic_load_n(&started[device].end, __ATOMIC_ACQUIRE))
        return NULL;
    return &started[device];
}

castor_status devices_home_create(int device, chunk_kind kind, size_t bytes, home *out) {
    castor_status status = home_create(devices_homes(device), kind, bytes, out);
    if (status == CASTOR_OK && started[device].fixed) {
        pthread_mutex_lock(&starting);
        range_widen(out->address, out->address + out->bytes);
        pthread_mutex_unlock(&starting);
    }
    return status;
}

homes *devices_homes(int device) {
    const started_device *s = started_of(device);
    return s ? s->homes : NULL;
}

slots *devices_slots(int device) {
    const started_device *s = started_of(device);
    return s ? s->slots : NULL;
}

copies *devices_copies(int device) {
    const started_device *s = started_of(device);
    return s ? s->copies : NULL;
}

updates *devices_updates(int device) {
    const started_device *s = started_of(device);
    return s ? __atomic_load_n(&s->updates, __ATOMIC_ACQUIRE) : NULL;
}

castor_status devices_updates_make(int device, updates **out) {
    if (!started_of(device))
        return error_set(CASTOR_ERR_ARGUMENT, "device %d has no homes yet", device);
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&starting);
    *out = started[device].updates;
    if (!*out)
        status = updates_create(out, started[device].homes, &given, device);
    if (!status)
        __atomic_store_n(&started[device].updates, *out, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&starting);
    return status;
}

uint64_t devices_part_bytes(int device) {
    const started_device *s = started_of(device);
    return s ? __atomic_load_n(&s->part_bytes, __ATOMIC_RELAXED) : 0;
}

void devices_shares(int device, uint64_t *slots_bytes, uint64_t *parts_bytes) {
    const started_device *s = started_of(device);
    *slots_bytes = s ? __atomic_load_n(&s->region_bytes, __ATOMIC_RELAXED) : 0;
    *parts_bytes = DEVICES_PARTS_AT_A_TIME * devices_part_bytes(device);
}

uint64_t devices_budget_for(int device, uint64_t slots_bytes, uint64_t parts_bytes) {
    uint64_t free_bytes = 0, total_bytes = 0;
    uint64_t part_bytes = (parts_bytes + DEVICES_PARTS_AT_A_TIME - 1) / DEVICES_PARTS_AT_A_TIME;
    if (slots_bytes > REGION_MOST || part_bytes > PART_MOST)
        return 0;
    uint64_t budget = REGION_SHARE * slots_bytes;
    if (PART_SHARE * part_bytes > budget)
        budget = PART_SHARE * part_bytes;
    driver.room(driver.context, device, &free_bytes, &total_bytes);
    return budget < total_bytes ? budget : 0;
}

bool devices_short(int device, uint64_t outside_bytes) {
    const started_device *s = started_of(device);
    uint64_t free_bytes = 0, total_bytes = 0;
    if (!s)
        return false;
    if (s->bounded || s->divided || homes_were_short(s->homes))
        return true;
    if (!outside_bytes)
        return false;
    driver.room(driver.context, device, &free_bytes, &total_bytes);
    /* The data itself is there already. */
    return free_bytes < (STEP_FACTOR - 1) * outside_bytes + total_bytes / ACTIVATIONS_SHARE;
}

static void homes_bound(const started_device *s) {
    homes_budget_set(s->homes, s->outside_bytes < s->homes_bytes ? s->homes_bytes - s->outside_bytes : 0);
}

void devices_outside_set(int device, uint64_t bytes) {
    if (!started_of(device) || !started[device].bounded)
        return;
    pthread_mutex_lock(&starting);
    started[device].outside_bytes = bytes;
    homes_bound(&started[device]);
    pthread_mutex_unlock(&starting);
}

void devices_budget_set(int device, uint64_t budget_bytes) {
    if (!started_of(device) || !started[device].bounded)
        return;
    started_device *s = &started[device];
    division d = divide(budget_bytes, driver.granularity(driver.context, device), budget_bytes);
    pthread_mutex_lock(&starting);
    s->homes_bytes = d.homes;
    __atomic_store_n(&s->region_bytes, d.region, __ATOMIC_RELAXED);
    __atomic_store_n(&s->part_bytes, d.part, __ATOMIC_RELAXED);
    slots_region_limit(s->slots, d.region);
    homes_bound(s);
    pthread_mutex_unlock(&starting);
}

const device_driver *devices_driver(void) {
    return __atomic_load_n(&driver_known, __ATOMIC_ACQUIRE);
}

int devices_find(uintptr_t address) {
    if (!devices_may_hold(address))
        return -1;
    for (int device = 0; device < DEVICES_MAX; device++) {
        const started_device *s = started_of(device);
        if (s && (address - s->first < s->end - s->first ||
                  (s->fixed && homes_unit(s->homes, address) != HOMES_NO_UNIT)))
            return device;
    }
    return -1;
}
