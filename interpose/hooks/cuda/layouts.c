#include "layouts.h"

#include <sys/mman.h>

#define PROBES                                                                                               \
    16u /* of the table, from a kernel's place on; where none is free there, the layout is not kept */

/* Of one kernel, four cache lines; of a short layout the first one is read alone. */
typedef struct layouts_entry {
    uint32_t stamp; /* odd: the entry is being written */
    uint32_t generation;
    uint64_t kernel;
    uint16_t layout[1 + ARGUMENTS_MAX]; /* an arguments_layout, in words that are read one by one */
} __attribute__((aligned(64))) layouts_entry;

_Static_assert(sizeof(arguments_layout) == (1 + ARGUMENTS_MAX) * sizeof(uint16_t), "a layout is its words");

static layouts_entry *entries;  /* atomic; NULL: not mapped */
static uint32_t generation = 1; /* atomic; entries of others are free */

static layouts_entry *entries_map(void) {
    layouts_entry *mapped = __atomic_load_n(&entries, __ATOMIC_ACQUIRE), *none = NULL;
    if (mapped)
        return mapped;
    size_t bytes = LAYOUTS_MAX * sizeof *mapped;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    if (__atomic_compare_exchange_n(&entries, &none, mapped, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mapped;
    munmap(mapped, bytes);
    return none;
}

static uint32_t place_of(uint64_t kernel) {
    return (uint32_t)(kernel * UINT64_C(0x9e3779b97f4a7c15) >> 40) % LAYOUTS_MAX;
}

static bool entry_read(const layouts_entry *entry, uint32_t stamp, arguments_layout *layout) {
    uint16_t *words = &layout->count;
    uint32_t count = words[0] = __atomic_load_n(&entry->layout[0], __ATOMIC_RELAXED);
    for (uint32_t i = 1; count <= ARGUMENTS_MAX && i <= count; i++)
        words[i] = __atomic_load_n(&entry->layout[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&entry->stamp, __ATOMIC_RELAXED) == stamp;
}

/* False: it is not there. */
static bool find(const layouts_entry *table, uint64_t kernel, uint32_t now, arguments_layout *layout) {
    for (uint32_t i = 0; i < PROBES; i++) {
        const layouts_entry *entry = &table[(place_of(kernel) + i) % LAYOUTS_MAX];
        uint32_t stamp = __atomic_load_n(&entry->stamp, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&entry->generation, __ATOMIC_RELAXED) != now)
            return false; /* the first free one ends the search, as it would take the kernel */
        if (!(stamp & 1) && __atomic_load_n(&entry->kernel, __ATOMIC_RELAXED) == kernel)
            return entry_read(entry, stamp, layout);
    }
    return false;
}

static void keep(layouts_entry *table, uint64_t kernel, uint32_t now, const arguments_layout *layout) {
    for (uint32_t i = 0; i < PROBES; i++) {
        layouts_entry *entry = &table[(place_of(kernel) + i) % LAYOUTS_MAX];
        uint32_t stamp = __atomic_load_n(&entry->stamp, __ATOMIC_ACQUIRE);
        if (stamp & 1)
            return; /* another thread writes here: next time */
        if (__atomic_load_n(&entry->generation, __ATOMIC_RELAXED) == now) {
            if (__atomic_load_n(&entry->kernel, __ATOMIC_RELAXED) == kernel)
                return;
            continue;
        }
        if (!__atomic_compare_exchange_n(&entry->stamp, &stamp, stamp + 1, false, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            return;
        __atomic_thread_fence(__ATOMIC_RELEASE);
        __atomic_store_n(&entry->kernel, kernel, __ATOMIC_RELAXED);
        uint32_t count = layout->count <= ARGUMENTS_MAX ? layout->count : 0;
        __atomic_store_n(&entry->layout[0], layout->count, __ATOMIC_RELAXED);
        for (uint32_t word = 0; word < count; word++)
            __atomic_store_n(&entry->layout[1 + word], layout->parameters[word], __ATOMIC_RELAXED);
        __atomic_store_n(&entry->generation, now, __ATOMIC_RELAXED);
        __atomic_store_n(&entry->stamp, stamp + 2, __ATOMIC_RELEASE);
        return;
    }
}

void layouts_get(const void *kernel, layouts_ask *ask, arguments_layout *layout) {
    layouts_entry *table = entries_map();
    uint32_t now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (table && find(table, (uintptr_t)kernel, now, layout))
        return;
    layout->count = 0;
    if (!ask(kernel, layout)) {
        layout->count = ARGUMENTS_UNKNOWN;
        return;
    }
    /* `now` is from before the question: if kernels were forgotten meanwhile, nobody finds what is kept here. */
    if (table)
        keep(table, (uintptr_t)kernel, now, layout);
}

void layouts_forget(void) {
    __atomic_fetch_add(&generation, 1, __ATOMIC_ACQ_REL);
}
