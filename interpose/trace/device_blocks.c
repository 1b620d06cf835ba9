#include "device_blocks.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "counters.h"

#define ENTRIES_MIN 4096u /* a power of two; half of them may be taken */

_Static_assert((int)DEVICE_PART_COUNT <= 8, "an id has three bits for the part");

/* Open addressing; a freed entry closes the gap behind it, so that no search passes a free one. */
typedef struct block {
    uint64_t address; /* 0: free */
    uint64_t bytes;
    uint64_t number; /* blocks are numbered in the order in which they are given out */
    uint8_t device, part;
} block;

typedef struct device_blocks {
    uint64_t bytes, peak_bytes;
    uint64_t peak_number;                /* of the last block of the peak */
    uint64_t gone[DEVICE_PARTS_OF_PEAK]; /* bytes of the peak that are freed */
    uint64_t reserved_bytes, needed_bytes, used_bytes;
} device_blocks;

static struct {
    pthread_mutex_t lock;
    block *entries;
    uint64_t capacity, count, last_number;
    device_blocks devices[DEVICE_PARTS_DEVICES];
    bool risen;
} blocks = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* lock guards all others */

static uint64_t place_of(uint64_t address, uint64_t capacity) {
    return (address * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (capacity - 1);
}

static block *find(block *entries, uint64_t capacity, uint64_t address) {
    uint64_t at = place_of(address, capacity);
    while (entries[at].address != 0 && entries[at].address != address)
        at = (at + 1) & (capacity - 1);
    return &entries[at];
}

/* Called in allocations: memory comes from the kernel. */
static bool grow(void) {
    uint64_t capacity = blocks.capacity > 0 ? 2 * blocks.capacity : ENTRIES_MIN;
    block *entries =
        mmap(NULL, capacity * sizeof *entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (entries == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < blocks.capacity; i++)
        if (blocks.entries[i].address != 0)
            *find(entries, capacity, blocks.entries[i].address) = blocks.entries[i];
    if (blocks.capacity > 0)
        munmap(blocks.entries, blocks.capacity * sizeof *entries);
    blocks.entries = entries;
    blocks.capacity = capacity;
    return true;
}

static void forget(block *entry) {
    uint64_t gap = (uint64_t)(entry - blocks.entries), mask = blocks.capacity - 1;
    blocks.count--;
    for (uint64_t at = (gap + 1) & mask; blocks.entries[at].address != 0; at = (at + 1) & mask) {
        uint64_t wanted = place_of(blocks.entries[at].address, blocks.capacity);
        if (((at - wanted) & mask) < ((at - gap) & mask))
            continue; /* it is not searched for at the gap */
        blocks.entries[gap] = blocks.entries[at];
        gap = at;
    }
    blocks.entries[gap] = (block){0};
}

static void give(int device, uint64_t address, uint64_t bytes) {
    device_blocks *d = &blocks.devices[device];
    if (2 * (blocks.count + 1) > blocks.capacity && !grow())
        return;
    block *entry = find(blocks.entries, blocks.capacity, address);
    if (entry->address != 0) /* its end was not seen */
        blocks.devices[entry->device].bytes -= entry->bytes;
    else
        blocks.count++;
    *entry = (block){address, bytes, ++blocks.last_number, (uint8_t)device, DEVICE_PART_OTHER};
    d->bytes += bytes;
    if (d->bytes > d->peak_bytes) {
        d->peak_bytes = d->bytes;
        d->peak_number = blocks.last_number;
        memset(d->gone, 0, sizeof d->gone);
        blocks.risen = true;
    }
}

static void take(uint64_t address) {
    block *entry = blocks.capacity > 0 ? find(blocks.entries, blocks.capacity, address) : NULL;
    if (!entry || entry->address == 0)
        return;
    device_blocks *d = &blocks.devices[entry->device];
    d->bytes -= entry->bytes;
    if (entry->number <= d->peak_number)
        d->gone[entry->part] += entry->bytes;
    forget(entry);
}

void device_blocks_note(int device, uint64_t address, int64_t bytes, uint64_t reserved) {
    if (device < 0 || device >= DEVICE_PARTS_DEVICES || address == 0)
        return;
    pthread_mutex_lock(&blocks.lock);
    if (bytes > 0)
        give(device, address, (uint64_t)bytes);
    else
        take(address);
    if (reserved > blocks.devices[device].reserved_bytes)
        blocks.devices[device].reserved_bytes = reserved;
    pthread_mutex_unlock(&blocks.lock);
}

/* The segment that PyTorch's allocator makes for a block: 2 MiB, 20 MiB, or whole 2 MiB. */
static uint64_t segment_bytes(uint64_t bytes) {
    const uint64_t mib = UINT64_C(1) << 20;
    return bytes <= mib       ? 2 * mib
           : bytes < 10 * mib ? 20 * mib
                              : (bytes + 2 * mib - 1) / (2 * mib) * (2 * mib);
}

void device_blocks_note_shortage(int device, uint64_t bytes, uint64_t reserved) {
    if (device < 0 || device >= DEVICE_PARTS_DEVICES)
        return;
    uint64_t needed = reserved + segment_bytes(bytes);
    pthread_mutex_lock(&blocks.lock);
    if (needed > blocks.devices[device].needed_bytes)
        blocks.devices[device].needed_bytes = needed;
    pthread_mutex_unlock(&blocks.lock);
}

void device_blocks_note_used(int device, uint64_t bytes) {
    if (device < 0 || device >= DEVICE_PARTS_DEVICES)
        return;
    pthread_mutex_lock(&blocks.lock);
    blocks.devices[device].used_bytes = bytes;
    pthread_mutex_unlock(&blocks.lock);
}

void device_blocks_tell(uint64_t address, device_part part) {
    pthread_mutex_lock(&blocks.lock);
    block *entry =
        blocks.capacity > 0 && address != 0 ? find(blocks.entries, blocks.capacity, address) : NULL;
    /* A view of a buffer lies inside of a block. */
    for (uint64_t i = 0; entry && entry->address == 0 && i < blocks.capacity; i++)
        if (address - blocks.entries[i].address < blocks.entries[i].bytes)
            entry = &blocks.entries[i];
    if (entry && entry->address != 0)
        entry->part = (uint8_t)part;
    pthread_mutex_unlock(&blocks.lock);
}

bool device_blocks_risen(void) {
    pthread_mutex_lock(&blocks.lock);
    bool risen = blocks.risen;
    blocks.risen = false;
    pthread_mutex_unlock(&blocks.lock);
    return risen;
}

void device_blocks_write(void) {
    uint64_t bytes[DEVICE_PARTS_DEVICES][DEVICE_PART_COUNT] = {{0}};
    pthread_mutex_lock(&blocks.lock);
    for (uint64_t i = 0; i < blocks.capacity; i++) {
        const block *b = &blocks.entries[i];
        if (b->address != 0 && b->number <= blocks.devices[b->device].peak_number)
            bytes[b->device][b->part] += b->bytes;
    }
    bool any = false;
    for (int device = 0; device < DEVICE_PARTS_DEVICES; device++) {
        for (int part = 0; part < DEVICE_PARTS_OF_PEAK; part++)
            bytes[device][part] += blocks.devices[device].gone[part];
        bytes[device][DEVICE_PART_RESERVED] = blocks.devices[device].reserved_bytes;
        bytes[device][DEVICE_PART_NEEDED] = blocks.devices[device].needed_bytes;
        bytes[device][DEVICE_PART_USED] = blocks.devices[device].used_bytes;
        any |= blocks.devices[device].reserved_bytes > 0;
    }
    pthread_mutex_unlock(&blocks.lock);
    trace_counters *counters = any ? counters_get() : NULL;
    for (int device = 0; counters && device < DEVICE_PARTS_DEVICES; device++)
        for (int part = 0; part < DEVICE_PART_COUNT; part++) {
            trace_counter *counter =
                &counters->counters[trace_slot(TRACE_PEAK, device_part_id(device, (device_part)part))];
            __atomic_store_n(&counter->bytes, bytes[device][part], __ATOMIC_RELAXED);
        }
}

void device_blocks_reset(void) {
    pthread_mutex_init(&blocks.lock, NULL);
    if (blocks.capacity > 0)
        munmap(blocks.entries, blocks.capacity * sizeof *blocks.entries);
    blocks.entries = NULL;
    blocks.capacity = blocks.count = 0;
    memset(blocks.devices, 0, sizeof blocks.devices);
    blocks.risen = false;
}
