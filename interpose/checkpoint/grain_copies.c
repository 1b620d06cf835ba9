#include "grain_copies.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#define GRAINS 16u

typedef struct slab {
    char *grains, *mapping;
    uint32_t used; /* a bit for each grain */
    struct slab *next;
} slab;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slab *slabs;
static uint64_t bytes_now, bytes_most;

/* A grain more than it holds: they begin at a multiple of their size, and the record of the slab lies behind them. */
#define MAPPING_BYTES ((GRAINS + 1) * GRAIN_BYTES + 4096)

static slab *slab_new(void) {
    char *mapping =
        mmap(NULL, MAPPING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    char *grains = (char *)(((uintptr_t)mapping + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES);
    madvise(grains, GRAINS * GRAIN_BYTES, MADV_HUGEPAGE);
    slab *s = (slab *)(grains + GRAINS * GRAIN_BYTES);
    *s = (slab){grains, mapping, 0, slabs};
    slabs = s;
    return s;
}

char *copies_take(void) {
    char *found = NULL;
    pthread_mutex_lock(&lock);
    slab *s = slabs;
    while (s && s->used == (1u << GRAINS) - 1)
        s = s->next;
    if (s || (s = slab_new()) != NULL) {
        unsigned index = (unsigned)__builtin_ctz(~s->used);
        s->used |= 1u << index;
        found = s->grains + index * GRAIN_BYTES;
        bytes_now += GRAIN_BYTES;
        bytes_most = bytes_now > bytes_most ? bytes_now : bytes_most;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void copies_give(char *copy) {
    slab *empty = NULL;
    pthread_mutex_lock(&lock);
    for (slab **at = &slabs; *at; at = &(*at)->next) {
        slab *s = *at;
        if (copy < s->grains || copy >= s->grains + GRAINS * GRAIN_BYTES)
            continue;
        s->used &= ~(1u << (size_t)(copy - s->grains) / GRAIN_BYTES);
        bytes_now -= GRAIN_BYTES;
        if (!s->used) {
            *at = s->next;
            empty = s;
        }
        break;
    }
    pthread_mutex_unlock(&lock);
    if (empty)
        munmap(empty->mapping, MAPPING_BYTES);
}

void copies_bytes(uint64_t *now, uint64_t *most) {
    pthread_mutex_lock(&lock);
    *now = bytes_now;
    *most = bytes_most;
    pthread_mutex_unlock(&lock);
}

void copies_fork_child(void) {
    pthread_mutex_init(&lock, NULL);
    slabs = NULL;
    bytes_now = 0;
}
