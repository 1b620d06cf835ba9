#include "device_memory.h"

#include <pthread.h>
#include <string.h>

#define ENTRIES 32768u /* a power of two; half of them may be taken */

/* Open addressing; a freed entry closes the gap behind it, so that no search passes a free one. */
typedef struct allocation {
    uint64_t object; /* 0: free */
    uint64_t bytes;
} allocation;

static allocation allocations[ENTRIES]; /* lock */
static uint32_t count;                  /* lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t live_bytes; /* atomic */

static uint32_t place_of(uint64_t object) {
    return (uint32_t)(object * UINT64_C(0x9e3779b97f4a7c15) >> 49) % ENTRIES;
}

static allocation *find(uint64_t object) {
    uint32_t at = place_of(object);
    while (allocations[at].object != 0 && allocations[at].object != object)
        at = (at + 1) % ENTRIES;
    return &allocations[at];
}

static void forget(allocation *entry) {
    uint32_t gap = (uint32_t)(entry - allocations);
    count--;
    for (uint32_t at = (gap + 1) % ENTRIES; allocations[at].object != 0; at = (at + 1) % ENTRIES) {
        uint32_t wanted = place_of(allocations[at].object);
        if ((at - wanted) % ENTRIES < (at - gap) % ENTRIES)
            continue; /* it is not searched for at the gap */
        allocations[gap] = allocations[at];
        gap = at;
    }
    allocations[gap] = (allocation){0};
}

void device_memory_note(device_memory_action action, uint64_t object, uint64_t bytes) {
    if (object == 0)
        return;
    pthread_mutex_lock(&lock);
    allocation *entry = find(object);
    uint64_t before = entry->object != 0 ? entry->bytes : 0, after = 0;
    if (action == DEVICE_MEMORY_ALLOCATE && (entry->object != 0 || count < ENTRIES / 2)) {
        count += entry->object == 0;
        *entry = (allocation){object, bytes};
        after = bytes;
    } else if (action == DEVICE_MEMORY_FREE && entry->object != 0) {
        forget(entry);
    }
    __atomic_store_n(&live_bytes, live_bytes - before + after, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

uint64_t device_memory_bytes(void) {
    return __atomic_load_n(&live_bytes, __ATOMIC_RELAXED);
}

void device_memory_reset(void) {
    pthread_mutex_init(&lock, NULL);
    if (count > 0) /* else its pages stay untouched */
        memset(allocations, 0, sizeof allocations);
    count = 0;
    live_bytes = 0;
}
