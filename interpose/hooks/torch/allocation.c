/* posix_memalign, free, realloc and malloc_usable_size.
 *
 * Only calls of posix_memalign that come from libc10.so, for whole pages, are served by the arena. Everything
 * else, and every block that the arena does not own, belongs to the next allocator in line (glibc's, or a
 * preloaded one). */
#include <errno.h>
#include <string.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "budget/budget.h"
#include "events/held.h"
#include "events/life.h"
#include "hooks/lookup/wrapper.h"
#include "trace/sampled.h"
#include "caller.h"

#define LOOK_SIZE_MIN   65536      /* of an activation: what is smaller comes with others */
#define RECORD_SIZE_MIN (1u << 20) /* smaller allocations are counted, and timed by sample */

/* Serves what the look-up of the real functions itself allocates. Never given back. */
static struct {
    _Alignas(64) char bytes[16384];
    size_t used;
} early;

static bool early_owns(const void *block) {
    return (uintptr_t)block - (uintptr_t)early.bytes < sizeof early.bytes;
}

/* Frees what the arena does not own. Becomes the real function itself once that is known, unless the early
 * memory was ever used. */
static void free_foreign(void *block);
static void (*free_next)(void *) = free_foreign;

static void free_foreign(void *block) {
    void (*real)(void *) = hooks_next(HOOK_FREE);
    if (!real ||
        early_owns(block)) /* without a real function, the look-up of it is freeing something: keep it */
        return;
    if (!__atomic_load_n(&early.used, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&free_next, real, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&early.used, __ATOMIC_SEQ_CST))
            __atomic_store_n(&free_next, free_foreign, __ATOMIC_SEQ_CST);
    }
    real(block);
}

static void *early_alloc(size_t alignment, size_t size) {
    if (alignment > 64 || size > sizeof early.bytes)
        return NULL;
    size_t at = __atomic_fetch_add(&early.used, (size + 63) / 64 * 64, __ATOMIC_SEQ_CST);
    __atomic_store_n(&free_next, free_foreign, __ATOMIC_SEQ_CST);
    return at + size <= sizeof early.bytes ? early.bytes + at : NULL;
}

/* When the allocation begins; 0: it is not timed. */
static uint64_t allocation_begin(size_t size) {
    HOOK_THREAD_LOCAL unsigned left = SAMPLED_FIRST;
    return size >= RECORD_SIZE_MIN || sampled_due(&left) ? trace_now_ns() : 0;
}

static void allocation_end(uint64_t begin_ns, size_t size, const void *block) {
    if (size < RECORD_SIZE_MIN) {
        sampled_add(SAMPLED_POSIX_MEMALIGN, HOOK_POSIX_MEMALIGN, begin_ns, size);
        return;
    }
    trace_record_write(TRACE_CALL, HOOK_POSIX_MEMALIGN, begin_ns, trace_now_ns(), size, (uintptr_t)block, 0,
                       0);
    sampled_recorded(SAMPLED_POSIX_MEMALIGN);
}

static int next_alloc(void **out, size_t alignment, size_t size) {
    int (*real)(void **, size_t, size_t) = hooks_next(HOOK_POSIX_MEMALIGN);
    if (real)
        return real(out, alignment, size);
    *out = early_alloc(alignment, size);
    return *out ? 0 : ENOMEM;
}

/* For libc10: from the arena, else from the next allocator. Nothing is traced before the library is awake. */
static int torch_alloc(void **out, size_t alignment, size_t size) {
    bool traced = life_is_awake();
    uint64_t begin_ns = traced ? allocation_begin(size) : 0;
    void *block = NULL;
    int error = 0;
    if (pages_own(size) && alignment <= PAGE_BYTES && arena_serves())
        block = arena_alloc(size);
    if (size >= LOOK_SIZE_MIN)
        touches_collect();
    if (block)
        *out = block;
    else
        error = next_alloc(out, alignment, size);
    if (traced)
        allocation_end(begin_ns, size, error ? NULL : *out);
    return error;
}

int wrap_posix_memalign(void **out, size_t alignment, size_t size) {
    return caller_is_c10(__builtin_return_address(0)) ? torch_alloc(out, alignment, size)
                                                      : next_alloc(out, alignment, size);
}
HOOK_LIBC(posix_memalign);

/* A save may still need the bytes of a block that another allocator is about to write to or give back. */
static void foreign_announce(void *block) {
    if (!held_any() || !block || early_owns(block))
        return;
    size_t (*size)(void *) = hooks_next(HOOK_MALLOC_USABLE_SIZE);
    size_t bytes = size ? size(block) : 0;
    if (bytes >= HELD_BYTES_MIN)
        held_before_replacing(block, bytes);
}

void wrap_free(void *block) {
    if (arena_owns(block)) {
        int saved_errno = errno;
        size_t held = held_any() ? arena_block_size(block) : 0;
        if (held >= HELD_BYTES_MIN)
            held_before_replacing(block, held);
        arena_free(block);
        errno = saved_errno;
        return;
    }
    foreign_announce(block);
    __atomic_load_n(&free_next, __ATOMIC_RELAXED)(block);
}
HOOK_LIBC(free);

/* Moves a block of `held` bytes, which no other allocator knows, to the next allocator. */
static void *block_move(void *block, size_t held, size_t size) {
    void *(*real)(void *, size_t) = hooks_next(HOOK_REALLOC);
    void *copy = real ? real(NULL, size) : early_alloc(1, size);
    if (!copy)
        return NULL;
    memcpy(copy, block, held < size ? held : size);
    wrap_free(block);
    return copy;
}

void *wrap_realloc(void *block, size_t size) {
    if (block && arena_owns(block)) {
        if (size)
            return block_move(block, arena_block_size(block), size);
        wrap_free(block);
        return NULL;
    }
    if (block && early_owns(block))
        return block_move(block, (size_t)(early.bytes + sizeof early.bytes - (char *)block), size);
    foreign_announce(block);
    void *(*real)(void *, size_t) = hooks_next(HOOK_REALLOC);
    if (real)
        return real(block, size);
    return block ? NULL : early_alloc(16, size);
}
HOOK_LIBC(realloc);

size_t wrap_malloc_usable_size(void *block) {
    if (arena_owns(block))
        return arena_block_size(block);
    size_t (*real)(void *) = early_owns(block) ? NULL : hooks_next(HOOK_MALLOC_USABLE_SIZE);
    return real ? real(block) : 0;
}
HOOK_LIBC(malloc_usable_size);
