#include "loan.h"

#include <stddef.h>
#include "base/log.h"
#include "pages.h"

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
static bool open;
static uint32_t offered_pages, pending; /* pages of loans that are offered or lent; loans that are offered */
static uint32_t offered_most;           /* in this round */
static uint32_t used_pages;
/* What of the offered pages is counted on: less than all, for some rounds, after a round in which blocks found no room there; none, if
 * most blocks still lay there at the recall. */
static uint32_t cap = UINT32_MAX, pause, pause_left;
static uint32_t used_most, missed, moved; /* in this round; moved: by recalls */
static uint64_t moved_pages;              /* ever */

static bool is_inherited(const loan *l) {
    return l - loans <= (ptrdiff_t)inherited;
}

static char *address_of(uint32_t page) {
    return (char *)arena_region.base + (size_t)page * PAGE_BYTES;
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

bool loan_covers(uint32_t page) {
    return page < region_pages && page_loan[page];
}

uint32_t loan_used_pages(void) {
    return used_pages;
}
uint64_t loan_moved_pages(void) {
    return moved_pages;
}

bool loan_open(void) {
    return open;
}

uint32_t loan_expected_pages(void) {
    uint32_t counted = offered_pages < cap ? offered_pages : cap;
    return open && counted > used_pages ? counted - used_pages : 0;
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

extent_id loan_find(uint32_t pages) {
    if (!open)
        return 0;
    if (pending)
        confirm_idle();
    return extent_find(EXTENT_LENT, pages);
}

void loan_taken(extent_id block) {
    extent_t *e = extent_get(block);
    uint32_t page = 0, pages = 0;
    for (loan *l = NULL; (l = block_loan_next(e, l, &page, &pages));)
        l->live += pages;
    e->lent = 1;
    used_pages += e->pages;
    if (used_pages > used_most)
        used_most = used_pages;
}

void loan_missed(uint32_t pages) {
    uint32_t room = loan_expected_pages();
    missed += pages < room ? pages : room;
}

castor_status loan_move_out(extent_id block) {
    extent_t *e = extent_get(block);
    castor_status status = CASTOR_OK;
    uint32_t page = 0, pages = 0;
    /* A private mapping shows what the shared one did, and the kernel copies each page when it is written: other threads may use the
     * block meanwhile. */
    for (loan *l = NULL; !status && (l = block_loan_next(e, l, &page, &pages));) {
        uint64_t offset = l->terms.offset + (uint64_t)(page - l->page) * PAGE_BYTES;
        status = pages_map_view(l->terms.fd, offset, (size_t)pages * PAGE_BYTES, address_of(page), NULL);
    }
    if (status == CASTOR_OK)
        status = pages_privatize(address_of(e->page), (size_t)e->pages * PAGE_BYTES);
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
        return pages_map_zero(address_of(page), bytes) == CASTOR_OK;
    uint64_t offset = l->terms.offset + (uint64_t)(page - l->page) * PAGE_BYTES;
    return pages_map_alias(l->terms.fd, offset, bytes, address_of(page), NULL) == CASTOR_OK;
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

void loan_put(extent_id block) {
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

castor_status loans_add(arena_loan *terms, uint32_t count, uint32_t page) {
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
        status = pages_map_alias(t->fd, t->offset, t->bytes, address_of(page), NULL);
        for (; page < l->page + l->pages; page++)
            page_loan[page] = t->id;
    }
    if (!status)
        return CASTOR_OK;
    pages_map_zero(address_of(first), (size_t)(page - first) * PAGE_BYTES);
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
    open = true;
    if (moved * 2 > used_most)
        missed = UINT32_MAX;
    if (missed) {
        uint32_t counted = offered_most < cap ? offered_most : cap;
        cap = counted > missed ? counted - missed : 0;
        pause = pause * 2 + 1 < PAUSE_MAX ? pause * 2 + 1 : PAUSE_MAX;
        pause_left = pause;
    } else if (cap == UINT32_MAX) {
        pause /= 2;
    } else if (--pause_left == 0) {
        cap = UINT32_MAX;
    }
    missed = moved = offered_most = 0;
    used_most = used_pages;
}

void loan_offer(uint32_t id) {
    loan *l = &loans[id];
    if (l->state != LOAN_HELD || is_inherited(l))
        return;
    if (!open)
        round_begin();
    l->state = LOAN_OFFERED;
    offered_pages += l->pages;
    if (offered_pages > offered_most)
        offered_most = offered_pages;
    pending++;
}

castor_status loan_recall(uint32_t id) {
    loan *l = &loans[id];
    castor_status status = CASTOR_OK;
    if (l->state != LOAN_OFFERED && l->state != LOAN_LENT)
        return CASTOR_OK;
    open = false;
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

void loan_end(uint32_t id) {
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

void loan_fork_prepare(void) {
    for (uint32_t id = 1; used_pages && id <= loans_made; id++)
        if (blocks_move_out(&loans[id]) != CASTOR_OK)
            LOG_W("no memory for a copy of what a forked process will see: some of its tensors may change "
                  "in it");
}

void loan_fork_child(void) {
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
    open = false;
}

/* ---- checks */

bool loan_check(void) {
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
