#include "extent.h"
#include <string.h>
#include <sys/mman.h>

/* Bins: one for each size up to 32 pages, then eight per doubling. */
#define BIN_EXACT   32u
#define BIN_COUNT   256u
#define BIN_WORDS   (BIN_COUNT / 64)
#define SCAN_MAX    64u /* entries of a bin that a search looks at */
#define EXTENTS_MAX (4u << 20)

static extent_t *extents; /* [0] is not used */
static extent_id extents_made, extents_max, unused_head;
static extent_id *page_extent; /* at the first and the last page of each extent */
static uint32_t region_pages;
static extent_id bins[EXTENT_FREE_STATES][BIN_COUNT];
static uint64_t bin_bits[EXTENT_FREE_STATES][BIN_WORDS];
static uint64_t state_pages[EXTENT_UNUSED + 1];
static extent_id age_oldest, age_youngest;

void *extent_book_map(size_t size) {
    void *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

extent_t *extent_get(extent_id id) {
    return &extents[id];
}
extent_id extent_oldest(void) {
    return age_oldest;
}
uint64_t extent_pages(extent_state state) {
    return state_pages[state];
}

static unsigned bin_of(uint32_t pages) {
    if (pages <= BIN_EXACT)
        return pages - 1;
    unsigned power = 31 - (unsigned)__builtin_clz(pages);
    return BIN_EXACT + (power - 5) * 8 + ((pages >> (power - 3)) & 7);
}

static void bin_insert(extent_id id) {
    extent_t *e = &extents[id];
    unsigned bin = bin_of(e->pages);
    extent_id *head = &bins[e->state][bin];
    e->bin_previous = 0;
    e->bin_next = *head;
    if (*head)
        extents[*head].bin_previous = id;
    *head = id;
    bin_bits[e->state][bin / 64] |= 1ull << (bin % 64);
}

static void bin_remove(extent_id id) {
    extent_t *e = &extents[id];
    unsigned bin = bin_of(e->pages);
    if (e->bin_previous)
        extents[e->bin_previous].bin_next = e->bin_next;
    else
        bins[e->state][bin] = e->bin_next;
    if (e->bin_next)
        extents[e->bin_next].bin_previous = e->bin_previous;
    if (!bins[e->state][bin])
        bin_bits[e->state][bin / 64] &= ~(1ull << (bin % 64));
}

static void age_insert(extent_id id) {
    extents[id].age_previous = age_youngest;
    extents[id].age_next = 0;
    if (age_youngest)
        extents[age_youngest].age_next = id;
    else
        age_oldest = id;
    age_youngest = id;
}

static void age_remove(extent_id id) {
    extent_t *e = &extents[id];
    if (e->age_previous)
        extents[e->age_previous].age_next = e->age_next;
    else
        age_oldest = e->age_next;
    if (e->age_next)
        extents[e->age_next].age_previous = e->age_previous;
    else
        age_youngest = e->age_previous;
}

static void free_insert(extent_id id) {
    extent_t *e = &extents[id];
    state_pages[e->state] += e->pages;
    bin_insert(id);
    if (e->state == EXTENT_DIRTY)
        age_insert(id);
}

static void free_remove(extent_id id) {
    extent_t *e = &extents[id];
    state_pages[e->state] -= e->pages;
    bin_remove(id);
    if (e->state == EXTENT_DIRTY)
        age_remove(id);
}

static extent_id entry_new(void) {
    extent_id id = unused_head;
    if (id)
        unused_head = extents[id].bin_next;
    else if (extents_made + 1 < extents_max)
        id = ++extents_made;
    return id;
}

static void entry_drop(extent_id id) {
    extents[id].state = EXTENT_UNUSED;
    extents[id].bin_next = unused_head;
    unused_head = id;
}

static void pages_mark(extent_id id) {
    page_extent[extents[id].page] = id;
    page_extent[extents[id].page + extents[id].pages - 1] = id;
}

castor_status extent_start(uint32_t pages) {
    region_pages = pages;
    extents_max = pages + 1 < EXTENTS_MAX ? pages + 2 : EXTENTS_MAX;
    extents = extent_book_map((size_t)extents_max * sizeof *extents);
    page_extent = extent_book_map((size_t)pages * sizeof *page_extent);
    if (!extents || !page_extent) {
        if (extents)
            munmap(extents, (size_t)extents_max * sizeof *extents);
        if (page_extent)
            munmap(page_extent, (size_t)pages * sizeof *page_extent);
        extents = NULL;
        page_extent = NULL;
        region_pages = 0;
        return CASTOR_ERR_MEMORY;
    }
    extent_id id = entry_new();
    extents[id] = (extent_t){.page = 0, .pages = pages, .state = EXTENT_CLEAN};
    pages_mark(id);
    free_insert(id);
    return CASTOR_OK;
}

extent_id extent_at(uint32_t page) {
    extent_id id = page < region_pages ? page_extent[page] : 0;
    /* Marks inside an extent are left over from earlier ones. */
    if (!id || extents[id].state == EXTENT_UNUSED || extents[id].page != page)
        return 0;
    return id;
}

/* The extent that ends right before `page`. */
static extent_id extent_before(uint32_t page) {
    return page ? page_extent[page - 1] : 0;
}

static extent_id bin_best(extent_state state, unsigned bin, uint32_t pages) {
    extent_id best = 0;
    unsigned looked = 0;
    for (extent_id id = bins[state][bin]; id && looked < SCAN_MAX; id = extents[id].bin_next, looked++) {
        if (extents[id].pages < pages || (best && extents[id].pages >= extents[best].pages))
            continue;
        best = id;
        if (extents[id].pages == pages)
            break;
    }
    return best;
}

extent_id extent_find(extent_state state, uint32_t pages) {
    unsigned bin = bin_of(pages);
    extent_id id = bin_best(state, bin, pages);
    if (id || ++bin == BIN_COUNT)
        return id;
    uint64_t bits = bin_bits[state][bin / 64] & (~0ull << (bin % 64));
    for (unsigned word = bin / 64;; bits = bin_bits[state][word]) {
        if (bits)
            return bin_best(state, word * 64 + (unsigned)__builtin_ctzll(bits), pages);
        if (++word == BIN_WORDS)
            return 0;
    }
}

extent_id extent_take(extent_id id, uint32_t pages, bool from_end) {
    extent_t *e = &extents[id];
    extent_id block = id;
    if (e->pages > pages) {
        block = entry_new();
        if (!block)
            return 0;
    }
    /* The rest keeps its age: it is not younger for having lost a part. */
    extent_id older = e->age_previous, younger = e->age_next;
    extent_state state = e->state;
    free_remove(id);
    if (block != id) {
        uint32_t rest = e->pages - pages;
        extents[block] = (extent_t){.page = from_end ? e->page + rest : e->page, .pages = pages};
        if (!from_end)
            e->page += pages;
        e->pages = rest;
        pages_mark(id);
        state_pages[state] += rest;
        bin_insert(id);
        if (state == EXTENT_DIRTY) {
            e->age_previous = older;
            e->age_next = younger;
            *(older ? &extents[older].age_next : &age_oldest) = id;
            *(younger ? &extents[younger].age_previous : &age_youngest) = id;
        }
    }
    extents[block].state = EXTENT_BLOCK;
    extents[block].adopted = extents[block].lent = 0;
    state_pages[EXTENT_BLOCK] += pages;
    pages_mark(block);
    return block;
}

extent_id extent_split(extent_id id, uint32_t pages) {
    extent_id rest = entry_new();
    if (!rest)
        return 0;
    extent_t *e = &extents[id];
    extents[rest] = (extent_t){.page = e->page + pages, .pages = e->pages - pages, .state = EXTENT_BLOCK};
    e->pages = pages;
    pages_mark(id);
    pages_mark(rest);
    return rest;
}

void extent_put(extent_id id, extent_state state) {
    extent_t *e = &extents[id];
    state_pages[EXTENT_BLOCK] -= e->pages;
    e->state = state;
    e->lent = 0; /* walks over a loan's extents look at it alone */
    if (state == EXTENT_LOST) {
        state_pages[EXTENT_LOST] += e->pages;
        return;
    }
    extent_id before = extent_before(e->page);
    if (before && extents[before].state == state) {
        free_remove(before);
        e->page = extents[before].page;
        e->pages += extents[before].pages;
        entry_drop(before);
    }
    uint32_t end = e->page + e->pages;
    extent_id after = end < region_pages ? page_extent[end] : 0;
    if (after && extents[after].state == state) {
        free_remove(after);
        e->pages += extents[after].pages;
        entry_drop(after);
    }
    pages_mark(id);
    free_insert(id);
}

bool extent_check(void) {
    uint64_t pages_seen[EXTENT_UNUSED + 1] = {0};
    uint32_t free_seen = 0, dirty_seen = 0;
    extent_state previous = EXTENT_UNUSED;
    for (uint32_t page = 0; page < region_pages;) {
        extent_id id = extent_at(page);
        if (!id || !extents[id].pages || page_extent[page + extents[id].pages - 1] != id)
            return false;
        extent_state state = extents[id].state;
        if (state < EXTENT_FREE_STATES && state == previous)
            return false; /* not merged */
        free_seen += state < EXTENT_FREE_STATES;
        dirty_seen += state == EXTENT_DIRTY;
        pages_seen[state] += extents[id].pages;
        previous = state;
        page += extents[id].pages;
        if (page > region_pages)
            return false;
    }
    if (memcmp(pages_seen, state_pages, sizeof pages_seen) != 0)
        return false;
    for (unsigned state = 0; state < EXTENT_FREE_STATES; state++)
        for (unsigned bin = 0; bin < BIN_COUNT; bin++) {
            if (!bins[state][bin] != !(bin_bits[state][bin / 64] >> (bin % 64) & 1))
                return false;
            extent_id last = 0;
            for (extent_id id = bins[state][bin]; id; last = id, id = extents[id].bin_next, free_seen--)
                if (!free_seen || extents[id].state != state || bin_of(extents[id].pages) != bin ||
                    extents[id].bin_previous != last)
                    return false;
        }
    extent_id last = 0;
    for (extent_id id = age_oldest; id; last = id, id = extents[id].age_next, dirty_seen--)
        if (!dirty_seen || extents[id].state != EXTENT_DIRTY || extents[id].age_previous != last)
            return false;
    return !free_seen && !dirty_seen && last == age_youngest;
}
