#include "arena.h"
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "extent.h"
#include "pages.h"

arena_range arena_region;

/* Guards all that follows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned page_shift;

static void *page_address(uint32_t page) {
    return (void *)(arena_region.base + ((uintptr_t)page << page_shift));
}

/* Loans: pages of a file as room for blocks, while the file's owner does not need them.
 *
 * A loan has pages of the region at which its file is mapped, shared. Its owner offers it when its bytes mean nothing, and recalls
 * it before they do again. From the first recall after an offer no more blocks are made, as the owner will go on recalling. A block
 * that is still there gets pages of its own, at the same address.
 *
 *   held      the owner needs the pages, or may; also the freed pages of a loan that was recalled
 *   offered   nobody needs them as soon as the loan is idle
 *   lent      blocks may be made there
 *   ended     no loan any more, but for the blocks that still lie there; each has pages of its own */

#define LOANS_MAX 262144u
#define PAUSE_MAX 64u /* rounds */

typedef enum loan_state { LOAN_UNUSED, LOAN_HELD, LOAN_OFFERED, LOAN_LENT, LOAN_ENDED } loan_state;

typedef struct loan {
    loan_state state;
    uint32_t page, pages;
    uint32_t live; /* pages of blocks */
    arena_loan terms;
} loan;

static loan *loans; /* [0] is not used */
static uint32_t loans_made, unused_count;
static uint32_t *page_loan; /* of each page of the region; 0: none */
static uint32_t region_pages;
static uint32_t inherited; /* in a forked child: so many are the parent's, and over */

/* A round goes from the first offer to the first recall, and until the next offer. */
static bool round_open;
static uint32_t offered_pages, pending; /* pages of loans that are offered or lent; loans that are offered */
static uint32_t offered_most;           /* in this round */
static uint32_t used_pages;
/* What of the offered pages is counted on: less than all, for some rounds, after a round in which blocks found no room there; none, if
 * most blocks still lay there at the recall. */
static uint32_t cap = UINT32_MAX, round_pause, pause_left;
static uint32_t used_most, missed, moved; /* in this round; moved: by recalls */
static uint64_t moved_pages;              /* of blocks that were moved out, ever */

static bool is_inherited(const loan *l) {
    return l - loans <= (ptrdiff_t)inherited;
}

static bool book_start(void) {
    if (region_pages)
        return true;
    uint32_t pages = (uint32_t)(arena_region.size / PAGE_BYTES);
    loans = loans ? loans : extent_book_map((LOANS_MAX + 1) * sizeof *loans);
    page_loan = page_loan ? page_loan : extent_book_map(pages * sizeof *page_loan);
    if (loans && page_loan)
        region_pages = pages;
    return region_pages != 0;
}

static bool loan_covers(uint32_t page) {
    return page < region_pages && page_loan[page];
}

/* Pages of loans that the rest of the round is expected to need beside those of lent blocks. */
static uint32_t loan_expected_pages(void) {
    uint32_t counted = offered_pages < cap ? offered_pages : cap;
    return round_open && counted > used_pages ? counted - used_pages : 0;
}

/* ---- the pages of a loan in the book of extents */

/* The first page, at or before `page`, at which an extent starts. */
static uint32_t extent_start_before(uint32_t page) {
    while (!extent_at(page)) {
        uint32_t before = page_loan[page - 1];
        if (!before)
            break;
        page = loans[before].page;
    }
    return page;
}

/* Turns the free pages of a loan from one state to another one. CASTOR_ERR_MEMORY when the book is full: some may be turned. */
static castor_status pages_turn(const loan *l, extent_state from, extent_state to) {
    uint32_t end = l->page + l->pages;
    for (uint32_t at = extent_start_before(l->page); at < end;) {
        extent_id id = extent_at(at);
        uint32_t start = at, stop = at + extent_get(id)->pages;
        at = stop;
        if (extent_get(id)->state != from || stop <= l->page)
            continue;
        stop = stop < end ? stop : end;
        if (!(id = extent_take(id, stop - start, false)))
            return CASTOR_ERR_MEMORY;
        if (start < l->page) {
            extent_id rest = extent_split(id, l->page - start);
            extent_put(id, from);
            if (!rest)
                return CASTOR_ERR_MEMORY;
            id = rest;
        }
        extent_put(id, to);
        at = stop;
    }
    return CASTOR_OK;
}

/* ---- blocks */

/* Of the loans that a block covers: the first one, or the one after `l`; with the block's pages on it. */
static loan *block_loan_next(const extent_t *e, const loan *l, uint32_t *page, uint32_t *pages) {
    uint32_t from = l ? l->page + l->pages : e->page, end = e->page + e->pages;
    if (from >= end)
        return NULL;
    loan *next = &loans[page_loan[from]];
    uint32_t stop = next->page + next->pages;
    *page = from;
    *pages = (stop < end ? stop : end) - from;
    return next;
}

static void confirm_idle(void) {
    for (uint32_t id = 1; pending && id <= loans_made; id++) {
        loan *l = &loans[id];
        if (l->state != LOAN_OFFERED || !l->terms.idle(l->terms.context))
            continue;
        l->state = LOAN_LENT;
        pending--;
        pages_turn(l, EXTENT_HELD, EXTENT_LENT); /* what cannot be turned is not lent */
    }
}

/* A free extent for so many pages; 0: none, or none is wanted. */
static extent_id loan_find(uint32_t pages) {
    if (!round_open)
        return 0;
    if (pending)
        confirm_idle();
    return extent_find(EXTENT_LENT, pages);
}

/* The block was just made of an extent that loan_find has returned. */
static void loan_taken(extent_id block) {
    extent_t *e = extent_get(block);
    uint32_t page = 0, pages = 0;
    for (loan *l = NULL; (l = block_loan_next(e, l, &page, &pages));)
        l->live += pages;
    e->lent = 1;
    used_pages += e->pages;
    if (used_pages > used_most)
        used_most = used_pages;
}

/* The pages were made elsewhere: there was no room on the loans for them. */
static void loan_missed(uint32_t pages) {
    uint32_t room = loan_expected_pages();
    missed += pages < room ? pages : room;
}

/* A lent block gets pages of its own. CASTOR_ERR_MEMORY: it may still lie on the loan. */
static castor_status loan_move_out(extent_id block) {
    extent_t *e = extent_get(block);
    castor_status status = CASTOR_OK;
    uint32_t page = 0, pages = 0;
    /* A private mapping shows what the shared one did, and the kernel copies each page when it is written: other threads may use the
     * block meanwhile. */
    for (loan *l = NULL; !status && (l = block_loan_next(e, l, &page, &pages));) {
        uint64_t offset = l->terms.offset + (uint64_t)(page - l->page) * PAGE_BYTES;
        status = pages_map_view(l->terms.fd, offset, (size_t)pages * PAGE_BYTES, page_address(page), NULL);
    }
    if (status == CASTOR_OK)
        status = pages_privatize(page_address(e->page), (size_t)e->pages * PAGE_BYTES);
    if (status == CASTOR_OK) {
        e->lent = 0;
        used_pages -= e->pages;
        moved_pages += e->pages;
    }
    return status;
}

/* All lent blocks that touch the loan; an error is that of the last one that could not be moved. */
static castor_status blocks_move_out(const loan *l) {
    castor_status status = CASTOR_OK;
    uint32_t end = l->page + l->pages;
    for (uint32_t at = l->live ? extent_start_before(l->page) : end; at < end;) {
        extent_id block = extent_at(at);
        at += extent_get(block)->pages;
        castor_status moving = at > l->page && extent_get(block)->lent ? loan_move_out(block) : CASTOR_OK;
        status = moving ? moving : status;
    }
    return status;
}

/* What a loan's pages have when no block lies there. */
static bool pages_restore(const loan *l, uint32_t page, uint32_t pages) {
    size_t bytes = (size_t)pages * PAGE_BYTES;
    if (is_inherited(l) || l->state == LOAN_ENDED)
        return pages_map_zero(page_address(page), bytes) == CASTOR_OK;
    uint64_t offset = l->terms.offset + (uint64_t)(page - l->page) * PAGE_BYTES;
    return pages_map_alias(l->terms.fd, offset, bytes, page_address(page), NULL) == CASTOR_OK;
}

/* An ended loan without blocks: its pages are the region's again, in the order that keeps extent_start_before right. */
static void loan_drop(loan *l) {
    if (pages_turn(l, EXTENT_HELD, EXTENT_CLEAN) != CASTOR_OK)
        return;
    for (uint32_t page = l->page; page < l->page + l->pages; page++)
        page_loan[page] = 0;
    l->state = LOAN_UNUSED;
    unused_count++;
}

/* Frees a block where loan_covers. */
static void loan_put(extent_id block) {
    bool lent = extent_get(block)->lent;
    if (lent)
        used_pages -= extent_get(block)->pages;
    while (block) {
        extent_t *e = extent_get(block);
        uint32_t page = 0, pages = 0;
        loan *l = block_loan_next(e, NULL, &page, &pages);
        extent_id rest = pages < e->pages ? extent_split(block, pages) : 0;
        if (pages < e->pages && !rest) { /* the book is full: the pages are not used again */
            for (; l; l = block_loan_next(e, l, &page, &pages))
                l->live -= pages;
            extent_put(block, EXTENT_LOST);
            return;
        }
        bool good = (lent && !is_inherited(l) && l->state != LOAN_ENDED) || pages_restore(l, page, pages);
        l->live -= pages;
        extent_put(block, !good ? EXTENT_LOST : l->state == LOAN_LENT ? EXTENT_LENT : EXTENT_HELD);
        if (l->state == LOAN_ENDED && !l->live)
            loan_drop(l);
        block = rest;
    }
}

/* ---- the owner */

static uint32_t loan_entry(void) {
    if (unused_count)
        for (uint32_t id = inherited + 1; id <= loans_made; id++)
            if (loans[id].state == LOAN_UNUSED) {
                unused_count--;
                return id;
            }
    return loans_made < LOANS_MAX ? ++loans_made : 0;
}

/* Functions of arena.h, without the lock. */
static castor_status loans_add(arena_loan *terms, uint32_t count, uint32_t page) {
    castor_status status = book_start() ? CASTOR_OK : CASTOR_ERR_MEMORY;
    uint32_t first = page, added = 0;
    for (; added < count && !status; added++) {
        arena_loan *t = &terms[added];
        if (!(t->id = loan_entry())) {
            status = CASTOR_ERR_MEMORY;
            break;
        }
        loan *l = &loans[t->id];
        *l = (loan){LOAN_HELD, page, (uint32_t)(t->bytes / PAGE_BYTES), 0, *t};
        status = pages_map_alias(t->fd, t->offset, t->bytes, page_address(page), NULL);
        for (; page < l->page + l->pages; page++)
            page_loan[page] = t->id;
    }
    if (!status)
        return CASTOR_OK;
    pages_map_zero(page_address(first), (size_t)(page - first) * PAGE_BYTES);
    for (uint32_t i = 0; i < added; i++) {
        loans[terms[i].id].state = LOAN_UNUSED;
        unused_count++;
        terms[i].id = 0;
    }
    for (; page-- > first;)
        page_loan[page] = 0;
    return status;
}

static void round_begin(void) {
    round_open = true;
    if (moved * 2 > used_most)
        missed = UINT32_MAX;
    if (missed) {
        uint32_t counted = offered_most < cap ? offered_most : cap;
        cap = counted > missed ? counted - missed : 0;
        round_pause = round_pause * 2 + 1 < PAUSE_MAX ? round_pause * 2 + 1 : PAUSE_MAX;
        pause_left = round_pause;
    } else if (cap == UINT32_MAX) {
        round_pause /= 2;
    } else if (--pause_left == 0) {
        cap = UINT32_MAX;
    }
    missed = moved = offered_most = 0;
    used_most = used_pages;
}

static void loan_offer(uint32_t id) {
    loan *l = &loans[id];
    if (l->state != LOAN_HELD || is_inherited(l))
        return;
    if (!round_open)
        round_begin();
    l->state = LOAN_OFFERED;
    offered_pages += l->pages;
    if (offered_pages > offered_most)
        offered_most = offered_pages;
    pending++;
}

static castor_status loan_recall(uint32_t id) {
    loan *l = &loans[id];
    castor_status status = CASTOR_OK;
    if (l->state != LOAN_OFFERED && l->state != LOAN_LENT)
        return CASTOR_OK;
    round_open = false;
    uint64_t before = moved_pages;
    if (l->state == LOAN_LENT)
        status = pages_turn(l, EXTENT_LENT, EXTENT_HELD);
    if (status == CASTOR_OK)
        status = blocks_move_out(l);
    moved += (uint32_t)(moved_pages - before);
    if (status)
        return status;
    pending -= l->state == LOAN_OFFERED;
    offered_pages -= l->pages;
    l->state = LOAN_HELD;
    return CASTOR_OK;
}

static void loan_end(uint32_t id) {
    loan *l = &loans[id];
    if (loan_recall(id) != CASTOR_OK)
        return; /* the pages stay as they are: nothing else is mapped there */
    l->state = LOAN_ENDED;
    uint32_t end = l->page + l->pages;
    for (uint32_t at = extent_start_before(l->page); at < end;) {
        const extent_t *e = extent_get(extent_at(at));
        uint32_t from = at > l->page ? at : l->page, stop = at + e->pages;
        at = stop;
        stop = stop < end ? stop : end;
        if (e->state == EXTENT_HELD && stop > from && !pages_restore(l, from, stop - from))
            return;
    }
    if (!l->live)
        loan_drop(l);
}

/* ---- forks */

/* Before a fork: no block shares pages with anybody. In the child: loans are over. */
static void loan_fork_prepare(void) {
    for (uint32_t id = 1; used_pages && id <= loans_made; id++)
        if (blocks_move_out(&loans[id]) != CASTOR_OK)
            LOG_W("no memory for a copy of what a forked process will see: some of its tensors may change "
                  "in it");
}

static void loan_fork_child(void) {
    inherited = loans_made;
    for (uint32_t id = 1; id <= inherited; id++) {
        loan *l = &loans[id];
        if (l->state == LOAN_LENT && pages_turn(l, EXTENT_LENT, EXTENT_HELD) != CASTOR_OK)
            inherited = UINT32_MAX; /* some can still be found: this process lends nothing */
        if (l->state == LOAN_LENT || l->state == LOAN_OFFERED)
            l->state = LOAN_HELD;
        if (inherited == UINT32_MAX)
            break;
    }
    offered_pages = pending = unused_count = 0;
    round_open = false;
}

/* ---- checks */

static bool loan_check(void) {
    uint32_t offered = 0, waiting = 0, used = 0;
    for (uint32_t id = 1; id <= loans_made; id++) {
        const loan *l = &loans[id];
        if (l->state == LOAN_UNUSED)
            continue;
        bool is_open = l->state == LOAN_OFFERED || l->state == LOAN_LENT;
        offered += is_open ? l->pages : 0;
        waiting += l->state == LOAN_OFFERED;
        uint32_t live = 0, end = l->page + l->pages;
        for (uint32_t at = extent_start_before(l->page); at < end;) {
            const extent_t *e = extent_get(extent_at(at));
            uint32_t from = at > l->page ? at : l->page, stop = at + e->pages < end ? at + e->pages : end;
            bool block = e->state == EXTENT_BLOCK;
            if (stop > from && block)
                live += stop - from;
            if (stop > from && block && e->lent) {
                used += stop - from;
                if (!is_open)
                    return false;
            }
            if (stop > from && !block && e->state != EXTENT_LOST &&
                e->state != (l->state == LOAN_LENT ? EXTENT_LENT : EXTENT_HELD))
                return false;
            at += e->pages;
        }
        if (live != l->live)
            return false;
    }
    return offered == offered_pages && waiting == pending && used == used_pages;
}

#define REGION_BYTES_MAX (1ull << 40)
#define REGION_BYTES_MIN (1ull << 30)
#define COMMIT_BYTES     (64u << 20) /* the region is made accessible in steps of this size */
#define PURGE_BYTES_MIN  (1u << 20)  /* pages are given back in pieces of at least this size */
/* The recent past is the current and the last period; a period ends when this many times the peak was
 * allocated. */
#define PERIOD_PEAKS     8
#define PERIOD_BYTES_MIN (64u << 20)

static uint64_t retain_limit;
static uint32_t committed_pages; /* accessible from the base of the region */
static uint64_t period_peak, last_period_peak, period_allocated;
static uint64_t step_peak; /* since nothing was lent, that is since the step began */
static uint64_t held_peak; /* since arena_peak_take */
static arena_peaks peaks;  /* since arena_peaks_take */
static uint64_t retain_most = UINT64_MAX;
/* While no block may be made on loans, what is made needs anonymous memory, beyond what there was at the recall: such memory is left
 * free before. */
static uint64_t closed_level = UINT64_MAX, closed_growth, last_closed_growth;
static uint64_t round_peak,
    last_round_peak; /* of blocks that are not adopted; from an offer to the next one after a recall */
static arena_stats stats;

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
    return (uint64_t)used_pages << page_shift;
}

/* Bytes of blocks that are not adopted. */
static uint64_t own_bytes(void) {
    return stats.live_bytes - stats.adopted_bytes;
}

/* Bytes of blocks whose pages are anonymous memory. */
static uint64_t anonymous_bytes(void) {
    return own_bytes() - loan_used_bytes();
}

static void peaks_note(void) {
    uint64_t own = own_bytes(), anonymous = anonymous_bytes();
    peaks.own_bytes = own > peaks.own_bytes ? own : peaks.own_bytes;
    peaks.anonymous_bytes = anonymous > peaks.anonymous_bytes ? anonymous : peaks.anonymous_bytes;
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
    if (!round_open && anonymous > closed_level + closed_growth)
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
    peaks_note();
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
        peaks.start_bytes = peaks.own_bytes > peaks.start_bytes ? peaks.own_bytes : peaks.start_bytes;
        peaks.own_bytes = peaks.anonymous_bytes = 0; /* it counted in them */
        peaks_note();
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
    bool begins = !round_open;
    loan_offer(id);
    if (begins && round_open) {
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
    bool was_open = round_open;
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

arena_peaks arena_peaks_take(void) {
    pthread_mutex_lock(&lock);
    peaks_note();
    arena_peaks found = peaks;
    peaks.own_bytes = peaks.anonymous_bytes = 0;
    peaks_note();
    pthread_mutex_unlock(&lock);
    return found;
}

void arena_get_stats(arena_stats *out) {
    pthread_mutex_lock(&lock);
    *out = stats;
    out->loan_bytes = loan_used_bytes();
    out->moved_bytes = moved_pages << page_shift;
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
