#include "staging.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/error.h"
#include "base/log.h"

#define BUCKETS 4096u
/* Every piece may take a mapping of its own; the system has 65530 for a process (vm.max_map_count). */
#define PIECES_MAX 32768u

struct staging_block {
    char *address;
    size_t bytes;
    uint32_t pieces;
    uint32_t *slot;      /* by piece; STAGING_NO_SLOT: the pages are this process's own */
    staging_block *next; /* in its bucket, or of the freed ones */
};

static staging_index area;
static _Atomic bool joined, detached; /* detached: in a forked child */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is guarded by `lock`. */
static staging_block *buckets[BUCKETS];
static staging_block
    *freed; /* their memory goes back at the next sweep: no malloc's function is called inside free */
static uint32_t block_count, piece_count;

static staging_block **bucket_of(const void *address) {
    return &buckets[((uintptr_t)address / PAGE_BYTES) % BUCKETS];
}

static size_t piece_bytes(const staging_block *block, uint32_t piece) {
    size_t from = piece * STAGING_PIECE_BYTES;
    return block->bytes - from < STAGING_PIECE_BYTES ? block->bytes - from : STAGING_PIECE_BYTES;
}

castor_status staging_join(const int fds[2]) {
    if (!staging_index_open(fds, &area))
        return error_set(CASTOR_ERR_MEMORY, "no address space for the staging area of CASTOR_LAZY_INIT");
    atomic_store(&joined, true);
    return CASTOR_OK;
}

static bool usable(void) {
    return atomic_load(&joined) && !atomic_load(&detached);
}

bool staging_is_shared(void) {
    return usable() && staging_index_members(&area) > 1;
}

bool staging_in_use(void) {
    pthread_mutex_lock(&lock);
    bool any = block_count != 0;
    pthread_mutex_unlock(&lock);
    return any && usable();
}

/* ---- under the lock ---- */

static void block_remove(staging_block *block) {
    staging_block **at = bucket_of(block->address);
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    block_count--;
}

static void slots_leave(staging_block *block) {
    for (uint32_t piece = 0; piece < block->pieces; piece++) {
        if (block->slot[piece] == STAGING_NO_SLOT)
            continue;
        if (!atomic_load(&detached))
            staging_index_release(&area, block->slot[piece]);
        block->slot[piece] = STAGING_NO_SLOT;
        piece_count--;
    }
}

static void block_retire(staging_block *block) {
    block->next = freed;
    freed = block;
}

static void freed_give_back(void) {
    for (staging_block *block; (block = freed) != NULL;) {
        freed = block->next;
        free(block->slot);
        free(block);
    }
}

/* The arena frees the block. */
static void on_block_freed(void *context, void *address) {
    (void)address;
    staging_block *block = context;
    pthread_mutex_lock(&lock);
    block_remove(block);
    slots_leave(block);
    block_retire(block);
    pthread_mutex_unlock(&lock);
}

static staging_block *block_find(const void *address) {
    staging_block *block = *bucket_of(address);
    while (block && block->address != address)
        block = block->next;
    return block;
}

/* NULL: the arena has no such block, or it is mapped over already. */
static staging_block *block_make(void *address) {
    size_t bytes = arena_block_size(address);
    if (!bytes)
        return NULL;
    staging_block *block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    *block = (staging_block){.address = address,
                             .bytes = bytes,
                             .pieces = (uint32_t)((bytes + STAGING_PIECE_BYTES - 1) / STAGING_PIECE_BYTES)};
    block->slot = malloc(block->pieces * sizeof *block->slot);
    if (!block->slot || arena_adopt(address, on_block_freed, block) != CASTOR_OK) {
        free(block->slot);
        free(block);
        return NULL;
    }
    memset(block->slot, 0xff, block->pieces * sizeof *block->slot); /* STAGING_NO_SLOT */
    block->next = *bucket_of(address);
    *bucket_of(address) = block;
    block_count++;
    return block;
}

static bool mostly_edited(char *start, size_t bytes) {
    return pages_edited_bytes(start, bytes) * 2 > bytes;
}

/* The staging area's pages could not be mapped over it, and the system may have taken away what was there. */
static void piece_restore(char *start, size_t bytes, uint32_t slot) {
    unsigned char present[STAGING_PIECE_BYTES / PAGE_BYTES];
    if (mincore(start, bytes, present) == 0)
        return; /* it has not */
    if (pages_map_zero(start, bytes) != CASTOR_OK || !staging_index_read(&area, slot, start, bytes))
        LOG_E("the memory of a parameter at %p is lost: %s", (void *)start, error_text());
}

/* Returns the bytes that became the staging area's. */
static size_t piece_sweep(staging_block *block, uint32_t piece) {
    char *start = block->address + piece * STAGING_PIECE_BYTES;
    size_t bytes = piece_bytes(block, piece);
    uint32_t before = block->slot[piece];
    if (!mostly_edited(start, bytes) || (before == STAGING_NO_SLOT && piece_count >= PIECES_MAX))
        return 0;
    uint32_t slot = staging_index_acquire(&area, start, bytes);
    if (slot == STAGING_NO_SLOT)
        return 0;
    if (pages_map_view(area.bytes_fd, slot * STAGING_PIECE_BYTES, bytes, start, NULL) != CASTOR_OK) {
        piece_restore(start, bytes, slot);
        staging_index_release(&area, slot);
        slot = STAGING_NO_SLOT;
    }
    if (before != STAGING_NO_SLOT)
        staging_index_release(&area, before);
    piece_count += (slot != STAGING_NO_SLOT) - (before != STAGING_NO_SLOT);
    block->slot[piece] = slot;
    return slot != STAGING_NO_SLOT ? bytes : 0;
}

uint64_t staging_sweep(void *const *blocks, uint32_t count) {
    uint64_t swept = 0;
    if (!usable())
        return 0;
    pthread_mutex_lock(&lock);
    freed_give_back();
    for (uint32_t i = 0; i < count; i++) {
        staging_block *block = arena_owns(blocks[i]) ? block_find(blocks[i]) : NULL;
        if (!block && arena_owns(blocks[i]))
            block = block_make(blocks[i]);
        for (uint32_t piece = 0; block && piece < block->pieces; piece++)
            swept += piece_sweep(block, piece);
    }
    pthread_mutex_unlock(&lock);
    return swept;
}

void staging_await_others(void) {
    if (usable())
        staging_index_await_others(&area);
}

staging_block *staging_take_out(const void *address) {
    pthread_mutex_lock(&lock);
    staging_block *block = usable() ? block_find(address) : NULL;
    if (block) {
        block_remove(block);
        arena_release(block->address);
    }
    pthread_mutex_unlock(&lock);
    return block;
}

void staging_leave(staging_block *block) {
    if (!block)
        return;
    pthread_mutex_lock(&lock);
    slots_leave(block);
    block_retire(block);
    pthread_mutex_unlock(&lock);
}

void staging_get_figures(staging_figures *out) {
    *out = (staging_figures){0};
    if (usable())
        staging_index_figures(&area, out);
}

void staging_fork_prepare(void) {
    pthread_mutex_lock(&lock);
    if (!usable())
        return;
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++)
        for (const staging_block *block = buckets[bucket]; block; block = block->next)
            for (uint32_t piece = 0; piece < block->pieces; piece++)
                if (block->slot[piece] != STAGING_NO_SLOT)
                    staging_index_pin(&area, block->slot[piece]);
}

void staging_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child's only thread is the one that holds the lock. */
void staging_fork_child(void) {
    atomic_store(&detached, true);
    pthread_mutex_unlock(&lock);
}
