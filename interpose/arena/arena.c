#include "arena.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "extent.h"
#include "loan.h"

#define REGION_BYTES_MAX (1ull << 40)
#define REGION_BYTES_MIN (1ull << 30)
#define COMMIT_BYTES     (64u << 20) /* the region is made accessible in steps of this size */
#define PURGE_BYTES_MIN  (1u << 20)  /* pages are given back in pieces of at least this size */
/* The recent past is the current and the last period; a period ends when this many times the peak was
 * allocated. */
#define PERIOD_PEAKS     8
#define PERIOD_BYTES_MIN (64u << 20)

arena_range arena_region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is guarded by `lock`. */
static unsigned page_shift;
static uint64_t retain_limit;
static uint32_t committed_pages; /* accessible from the base of the region */
static uint64_t period_peak, last_period_peak, period_allocated;
static uint64_t step_peak; /* since nothing was lent, that is since the step began */
static uint64_t held_peak; /* since arena_peak_take */
static uint64_t retain_most = UINT64_MAX;
/* While no block may be made on loans, what is made needs anonymous memory, beyond what there was at the recall: such memory is left
 * free before. */
static uint64_t closed_level = UINT64_MAX, closed_growth, last_closed_growth;
static uint64_t round_peak,
    last_round_peak; /* of blocks that are not adopted; from an offer to the next one after a recall */
static arena_stats stats;

static void *page_address(uint32_t page) {
    return (void *)(arena_region.base + ((uintptr_t)page << page_shift));
}

static uint32_t page_of(const void *address) {
    return (uint32_t)(((uintptr_t)address - arena_region.base) >> page_shift);
}

static uint64_t extent_bytes(extent_id id) {
    return (uint64_t)extent_get(id)->pages << page_shift;
}
static uint64_t dirty_bytes(void) {
    return extent_pages(EXTENT_DIRTY) << page_shift;
}

static uint64_t loan_used_bytes(void) {
    return (uint64_t)loan_used_pages() << page_shift;
}

/* Bytes of blocks that are not adopted. */
static uint64_t own_bytes(void) {
    return stats.live_bytes - stats.adopted_bytes;
}

/* Bytes of blocks whose pages are anonymous memory. */
static uint64_t anonymous_bytes(void) {
    return own_bytes() - loan_used_bytes();
}

castor_status arena_start(uint64_t retain_bytes) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&lock);
    if (arena_region.size)
        goto done;
    status = CASTOR_ERR_MEMORY;
    page_shift = (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE));
    for (uint64_t size = REGION_BYTES_MAX; size >= REGION_BYTES_MIN; size /= 2) {
        void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
            continue;
        if (extent_start((uint32_t)(size >> page_shift)) != CASTOR_OK) {
            munmap(base, size);
            continue;
        }
        retain_limit = retain_bytes;
        __atomic_store_n(&arena_region.base, (uintptr_t)base, __ATOMIC_RELAXED);
        /* Last: arena_owns reads it without the lock, and no block exists before. */
        __atomic_store_n(&arena_region.size, size, __ATOMIC_RELEASE);
        status = CASTOR_OK;
        break;
    }
done:
    pthread_mutex_unlock(&lock);
    return status;
}

/* Makes the region accessible up to `pages`. */
static bool region_commit(uint32_t pages) {
    if (pages <= committed_pages)
        return true;
    uint32_t step = COMMIT_BYTES >> page_shift, all = (uint32_t)(arena_region.size >> page_shift);
    uint32_t wanted = all - pages < step ? all : (pages + step - 1) / step * step;
    for (;; wanted = pages) {
        size_t size = (size_t)(wanted - committed_pages) << page_shift;
        if (mprotect(page_address(committed_pages), size, PROT_READ | PROT_WRITE) == 0)
            break;
        if (wanted == pages)
            return false;
    }
    committed_pages = wanted;
    return true;
}

static void period_advance(uint64_t allocated) {
    uint64_t own = own_bytes(), anonymous = anonymous_bytes();
    if (own > period_peak)
        period_peak = own;
    if (own > step_peak)
        step_peak = own;
    if (own > round_peak)
        round_peak = own;
    if (anonymous + dirty_bytes() > held_peak)
        held_peak = anonymous + dirty_bytes();
    if (!loan_open() && anonymous > closed_level + closed_growth)
        closed_growth = anonymous - closed_level;
    period_allocated += allocated;
    if (period_allocated < PERIOD_BYTES_MIN || period_allocated / PERIOD_PEAKS < period_peak)
        return;
    last_period_peak = period_peak;
    period_peak = own;
    period_allocated = 0;
}

/* Dirty bytes that are left for the time after the recall. */
static uint64_t loan_reserve(void) {
    return closed_growth > last_closed_growth ? closed_growth : last_closed_growth;
}

/* Bytes that dirty extents may hold now. */
static uint64_t dirty_limit(void) {
    uint64_t peak = period_peak > last_period_peak ? period_peak : last_period_peak;
    if (stats.yielded_bytes && peak > step_peak)
        peak = step_peak;
    uint64_t room = retain_limit + peak - own_bytes();
    uint64_t expected = (uint64_t)loan_expected_pages() << page_shift;
    if (expected) {
        uint64_t least = retain_limit > loan_reserve() ? retain_limit : loan_reserve();
        uint64_t need = own_bytes() + expected;
        uint64_t round = round_peak > last_round_peak ? round_peak : last_round_peak;
        uint64_t wanted = round > need + least ? round - need : least;
        room = wanted < room ? wanted : room;
    }
    room = room > stats.yielded_bytes ? room - stats.yielded_bytes : 0;
    return room < retain_most ? room : retain_most;
}

/* Gives pages back, those that were freed longest ago first, until the dirty extents are within their limit. */
static void dirty_purge(void) {
    uint64_t limit = dirty_limit();
    while (dirty_bytes() > limit) {
        uint64_t excess = dirty_bytes() - limit;
        extent_id oldest = extent_oldest();
        uint64_t size = extent_bytes(oldest);
        if (excess < PURGE_BYTES_MIN)
            excess = PURGE_BYTES_MIN;
        if (size > excess)
            size = (excess + (1ull << page_shift) - 1) >> page_shift << page_shift;
        extent_id id = extent_take(oldest, (uint32_t)(size >> page_shift), true);
        if (!id) /* the book is full: the whole extent needs no new entry */
            id = extent_take(oldest, extent_get(oldest)->pages, true);
        size = extent_bytes(id);
        madvise(page_address(extent_get(id)->page), size, MADV_DONTNEED);
        extent_put(id, EXTENT_CLEAN);
        stats.purges++;
        stats.purged_bytes += size;
    }
}

/* A free extent for so many pages: freed ones first, then loans, but for what is left for the time after the recall. */
static extent_id room_find(uint32_t pages) {
    extent_id id = 0;
    bool spare = dirty_bytes() >= loan_reserve() + ((uint64_t)pages << page_shift);
    if (!spare)
        id = loan_find(pages);
    if (!id)
        id = extent_find(EXTENT_DIRTY, pages);
    if (!id && spare)
        id = loan_find(pages);
    return id ? id : extent_find(EXTENT_CLEAN, pages);
}

void *arena_alloc(size_t size) {
    if (!arena_region.size || size > arena_region.size)
        return NULL;
    uint32_t pages = (uint32_t)((size + (1ull << page_shift) - 1) >> page_shift);
    if (!pages)
        pages = 1;
    void *block = NULL;
    pthread_mutex_lock(&lock);
    extent_id id = room_find(pages);
    if (!id || (extent_get(id)->state == EXTENT_CLEAN && !region_commit(extent_get(id)->page + pages)))
        goto done;
    extent_state state = extent_get(id)->state;
    id = extent_take(id, pages, false);
    if (!id)
        goto done;
    if (state == EXTENT_LENT)
        loan_taken(id);
    else if (state == EXTENT_CLEAN)
        loan_missed(pages);
    block = page_address(extent_get(id)->page);
    uint64_t bytes = extent_bytes(id);
    stats.live_bytes += bytes;
    if (stats.live_bytes > stats.live_peak_bytes)
        stats.live_peak_bytes = stats.live_bytes;
    stats.blocks++;
    stats.allocations++;
    stats.reuses += state == EXTENT_DIRTY;
    if (loan_used_bytes() > stats.loan_peak_bytes)
        stats.loan_peak_bytes = loan_used_bytes();
    period_advance(bytes);
    dirty_purge();
done:
    pthread_mutex_unlock(&lock);
    return block;
}

/* The block that starts at the address; 0 when none does. */
static extent_id block_at(const void *address) {
    if (!arena_owns(address) || ((uintptr_t)address & ((1ull << page_shift) - 1)))
        return 0;
    extent_id id = extent_at(page_of(address));
    return id && extent_get(id)->state == EXTENT_BLOCK ? id : 0;
}

/* Puts anonymous memory over an adopted block. */
static bool block_restore(void *block, size_t size) {
    void *memory = mmap(block, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (memory != MAP_FAILED)
        return true;
    LOG_W("no memory could be mapped over a freed parameter of %B; its address range stays unused "
          "(is vm.max_map_count reached?)",
          (uint64_t)size);
    return false;
}

void arena_free(void *block) {
    if (!block)
        return;
    pthread_mutex_lock(&lock);
    extent_id id = block_at(block);
    if (!id) {
        pthread_mutex_unlock(&lock);
        LOG_W("free of %p: no block of the arena starts there (freed twice?)", block);
        return;
    }
    extent_t *e = extent_get(id);
    uint64_t size = extent_bytes(id);
    extent_state state = EXTENT_DIRTY;
    bool on_loan = loan_covers(e->page);
    if (e->adopted) {
        void (*on_free)(void *, void *) = e->on_free;
        void *context = e->context;
        e->on_free = NULL;
        pthread_mutex_unlock(&lock);
        if (on_free)
            on_free(context, block);
        if (!on_loan)
            state = block_restore(block, size) ? EXTENT_CLEAN : EXTENT_LOST;
        pthread_mutex_lock(&lock);
        stats.adopted_bytes -= size;
    }
    stats.live_bytes -= size;
    stats.blocks--;
    if (on_loan)
        loan_put(id);
    else
        extent_put(id, state);
    dirty_purge();
    pthread_mutex_unlock(&lock);
}

size_t arena_block_size(const void *address) {
    pthread_mutex_lock(&lock);
    extent_id id = arena_region.size ? block_at(address) : 0;
    size_t size = id ? extent_bytes(id) : 0;
    pthread_mutex_unlock(&lock);
    return size;
}

castor_status arena_adopt(void *block, void (*on_free)(void *context, void *block), void *context) {
    castor_status status = CASTOR_ERR_ARGUMENT;
    pthread_mutex_lock(&lock);
    extent_id id = block_at(block);
    extent_t *e = extent_get(id);
    if (id && !e->adopted)
        status = e->lent ? loan_move_out(id) : CASTOR_OK;
    if (!status) {
        e->adopted = 1;
        e->on_free = on_free;
        e->context = context;
        stats.adopted_bytes += extent_bytes(id);
        dirty_purge();
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void arena_release(void *block) {
    pthread_mutex_lock(&lock);
    extent_id id = block_at(block);
    if (id && extent_get(id)->adopted) {
        extent_get(id)->adopted = 0;
        stats.adopted_bytes -= extent_bytes(id);
        period_advance(0);
        dirty_purge();
    }
    pthread_mutex_unlock(&lock);
}

void *arena_adopted(const void *address, void (*on_free)(void *context, void *block)) {
    pthread_mutex_lock(&lock);
    extent_id id = arena_region.size ? block_at(address) : 0;
    const extent_t *e = extent_get(id);
    void *context = id && e->adopted && e->on_free == on_free ? e->context : NULL;
    pthread_mutex_unlock(&lock);
    return context;
}

void arena_yield(int64_t bytes) {
    pthread_mutex_lock(&lock);
    if (bytes < 0 && (uint64_t)-bytes > stats.yielded_bytes)
        stats.yielded_bytes = 0;
    else
        stats.yielded_bytes += (uint64_t)bytes;
    if (!stats.yielded_bytes)
        step_peak = own_bytes();
    dirty_purge();
    pthread_mutex_unlock(&lock);
}

castor_status arena_loans_add(arena_loan *loans, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += loans[i].bytes;
        loans[i].id = 0;
    }
    castor_status status = CASTOR_ERR_MEMORY;
    pthread_mutex_lock(&lock);
    if (!arena_region.size || bytes > arena_region.size)
        goto done;
    uint32_t pages = (uint32_t)(bytes >> page_shift);
    extent_id id = extent_find(EXTENT_CLEAN, pages);
    if (!id || !region_commit(extent_get(id)->page + pages) || !(id = extent_take(id, pages, false)))
        goto done;
    status = loans_add(loans, count, extent_get(id)->page);
    round_peak = own_bytes();
    extent_put(id, status ? EXTENT_CLEAN : EXTENT_HELD);
done:
    pthread_mutex_unlock(&lock);
    return status;
}

void arena_loan_offer(uint32_t id) {
    pthread_mutex_lock(&lock);
    bool begins = !loan_open();
    loan_offer(id);
    if (begins && loan_open()) {
        last_closed_growth = closed_growth;
        last_round_peak = round_peak;
        closed_growth = 0;
        round_peak = own_bytes();
    }
    dirty_purge();
    pthread_mutex_unlock(&lock);
}

castor_status arena_loan_recall(uint32_t id) {
    pthread_mutex_lock(&lock);
    bool was_open = loan_open();
    castor_status status = loan_recall(id);
    if (was_open)
        closed_level = anonymous_bytes();
    period_advance(0);
    pthread_mutex_unlock(&lock);
    return status;
}

void arena_loan_end(uint32_t id) {
    pthread_mutex_lock(&lock);
    loan_end(id);
    pthread_mutex_unlock(&lock);
}

void arena_retain_most(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    retain_most = bytes;
    dirty_purge();
    pthread_mutex_unlock(&lock);
}

uint64_t arena_peak_take(void) {
    pthread_mutex_lock(&lock);
    uint64_t now = anonymous_bytes() + dirty_bytes(), peak = held_peak > now ? held_peak : now;
    held_peak = now;
    pthread_mutex_unlock(&lock);
    return peak;
}

void arena_get_stats(arena_stats *out) {
    pthread_mutex_lock(&lock);
    *out = stats;
    out->loan_bytes = loan_used_bytes();
    out->moved_bytes = loan_moved_pages() << page_shift;
    out->dirty_bytes = dirty_bytes();
    out->anonymous_peak_bytes = period_peak > last_period_peak ? period_peak : last_period_peak;
    pthread_mutex_unlock(&lock);
}

bool arena_check(void) {
    bool good = true;
    pthread_mutex_lock(&lock);
    if (arena_region.size)
        good = extent_check() && loan_check() && dirty_bytes() <= dirty_limit() &&
               stats.adopted_bytes <= stats.live_bytes &&
               extent_pages(EXTENT_BLOCK) << page_shift == stats.live_bytes;
    pthread_mutex_unlock(&lock);
    return good;
}

void arena_fork_prepare(void) {
    pthread_mutex_lock(&lock);
    loan_fork_prepare();
    dirty_purge();
}
void arena_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}
/* The child's only thread is the one that holds the lock. */
void arena_fork_child(void) {
    loan_fork_child();
    pthread_mutex_unlock(&lock);
}
