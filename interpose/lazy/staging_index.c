#include "staging_index.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file_bytes.h"

#define SLOTS         (1u << 19) /* of the bytes' file, 1 TiB; sparse */
#define CHAINS        (1u << 16)
#define MEMBERS       256u
#define LOOK_NS       100000l
#define WRITE_SECONDS 1.0 /* a piece is written in a fraction of it */

/* How far a process may be ahead of those that bring the same, and how long it waits for one that makes no progress. */
#define LEAD_BYTES       (32ul << 20)
#define PATIENCE_SECONDS 0.5

enum slot_state { SLOT_FREE, SLOT_WRITING, SLOT_READY };

struct slot {
    uint64_t hash;
    uint32_t bytes, next; /* next: in its chain, or of the free ones; index + 1 */
    uint32_t holders, state;
    uint32_t maker; /* the member that made it, while nobody else has found it; else MEMBERS */
    uint32_t pinned;
};

struct staging_shared {
    pthread_mutex_t lock; /* robust; guards all below but the atomic words */
    bool broken; /* a process ended while it held the lock: nothing is looked up or given back any more */
    uint32_t slot_count, free_first;
    _Atomic uint32_t members;
    _Atomic uint64_t held_bytes;
    _Atomic uint64_t progress; /* bytes that any member has looked up */
    struct member {
        _Atomic uint64_t found_bytes, made_bytes, alone_bytes; /* alone: made, and found by nobody yet */
    } member[MEMBERS + 1]; /* the last one: of those for whom there was no place */
    uint32_t chain[CHAINS];
    struct slot slots[SLOTS];
};

static int sparse_file(const char *name, uint64_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool staging_index_make(int fds[2]) {
    fds[0] = sparse_file("castor-staging-index", sizeof(struct staging_shared));
    fds[1] = sparse_file("castor-staging", SLOTS * STAGING_PIECE_BYTES);
    struct staging_shared *shared = MAP_FAILED;
    if (fds[0] >= 0 && fds[1] >= 0)
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (shared == MAP_FAILED) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return false;
    }
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &robust);
    pthread_mutexattr_destroy(&robust);
    munmap(shared, sizeof *shared);
    return true;
}

bool staging_index_open(const int fds[2], staging_index *out) {
    struct staging_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds[0], 0);
    if (shared == MAP_FAILED)
        return false;
    uint32_t member = atomic_fetch_add(&shared->members, 1);
    *out = (staging_index){shared, fds[0], fds[1], member < MEMBERS ? member : MEMBERS, UINT64_MAX};
    return true;
}

uint32_t staging_index_members(const staging_index *index) {
    return atomic_load(&index->shared->members);
}

/* False: the staging area is broken, and the lock is not held. */
static bool lock(struct staging_shared *shared) {
    int error = pthread_mutex_lock(&shared->lock);
    if (error == EOWNERDEAD) {
        shared->broken = true;
        pthread_mutex_consistent(&shared->lock);
    } else if (error) {
        return false;
    }
    if (shared->broken)
        pthread_mutex_unlock(&shared->lock);
    return !shared->broken;
}

/* Four sums of words, so that their multiplications overlap. Only a hint: contents are compared. */
static uint64_t hash(const void *contents, size_t bytes) {
    const uint64_t factor = 0x9e3779b97f4a7c15ull;
    uint64_t sum[4] = {bytes, 1, 2, 3}, word[4];
    size_t at = 0;
    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(word, (const char *)contents + at, sizeof word);
        for (int i = 0; i < 4; i++) {
            sum[i] = (sum[i] ^ word[i]) * factor;
            sum[i] ^= sum[i] >> 29;
        }
    }
    for (; at < bytes; at++)
        sum[0] = (sum[0] ^ ((const unsigned char *)contents)[at]) * factor;
    for (int i = 1; i < 4; i++)
        sum[0] = (sum[0] ^ (sum[0] >> 31) ^ sum[i]) * factor;
    return sum[0] ^ (sum[0] >> 32);
}

static uint64_t slot_offset(uint32_t slot) {
    return slot * (uint64_t)STAGING_PIECE_BYTES;
}

static bool slot_write(const staging_index *index, uint32_t slot, const char *contents, size_t bytes) {
    return file_bytes_write(index->bytes_fd, contents, bytes, slot_offset(slot)) == 0;
}

bool staging_index_read(const staging_index *index, uint32_t slot, void *out, size_t bytes) {
    return file_bytes_read(index->bytes_fd, out, bytes, slot_offset(slot)) == 0;
}

static bool slot_equals(const staging_index *index, uint32_t slot, const char *contents, size_t bytes) {
    char part[32768];
    for (size_t at = 0; at < bytes;) {
        size_t size = bytes - at < sizeof part ? bytes - at : sizeof part;
        if (file_bytes_read(index->bytes_fd, part, size, slot_offset(slot) + at) != 0 ||
            memcmp(part, contents + at, size) != 0)
            return false;
        at += size;
    }
    return true;
}

/* ---- under the lock ---- */

static uint32_t *chain_of(struct staging_shared *shared, uint64_t h) {
    return &shared->chain[h % CHAINS];
}

static void chain_remove(struct staging_shared *shared, uint32_t slot) {
    uint32_t *at = chain_of(shared, shared->slots[slot].hash);
    while (*at && *at != slot + 1)
        at = &shared->slots[*at - 1].next;
    if (*at)
        *at = shared->slots[slot].next;
}

/* Another process has found it, or nobody holds it any more. */
static void alone_end(struct staging_shared *shared, struct slot *s) {
    if (s->maker == MEMBERS)
        return;
    atomic_fetch_sub(&shared->member[s->maker].alone_bytes, s->bytes);
    s->maker = MEMBERS;
}

static void slot_give_back(const staging_index *index, uint32_t slot) {
    struct staging_shared *shared = index->shared;
    struct slot *s = &shared->slots[slot];
    chain_remove(shared, slot);
    fallocate(index->bytes_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)slot_offset(slot),
              STAGING_PIECE_BYTES);
    atomic_fetch_sub(&shared->held_bytes, s->bytes);
    alone_end(shared, s);
    *s = (struct slot){.next = shared->free_first, .state = SLOT_FREE};
    shared->free_first = slot + 1;
}

static uint32_t slot_take(const staging_index *index, uint64_t h, size_t bytes) {
    struct staging_shared *shared = index->shared;
    uint32_t slot = STAGING_NO_SLOT;
    if (shared->slot_count <
        SLOTS) { /* in order, so that neighbours in a block are neighbours here: one mapping */
        slot = shared->slot_count++;
    } else if (shared->free_first) {
        slot = shared->free_first - 1;
        shared->free_first = shared->slots[slot].next;
    } else {
        return STAGING_NO_SLOT;
    }
    uint32_t *chain = chain_of(shared, h);
    shared->slots[slot] = (struct slot){h, (uint32_t)bytes, *chain, 1, SLOT_WRITING, index->member, 0};
    *chain = slot + 1;
    atomic_fetch_add(&shared->held_bytes, bytes);
    atomic_fetch_add(&shared->member[index->member].alone_bytes, bytes);
    return slot;
}

/* The slot with this hash; it stays, because this process counts as a holder. STAGING_NO_SLOT: there is none. */
static uint32_t slot_find(struct staging_shared *shared, uint64_t h, size_t bytes) {
    for (uint32_t at = *chain_of(shared, h); at; at = shared->slots[at - 1].next) {
        struct slot *s = &shared->slots[at - 1];
        if (s->hash != h || s->bytes != bytes)
            continue;
        s->holders++;
        return at - 1;
    }
    return STAGING_NO_SLOT;
}

/* ---- */

/* Whether its contents are there. The other process may have ended in the middle. */
static bool await_written(struct staging_shared *shared, uint32_t slot) {
    double until = clock_seconds() + WRITE_SECONDS;
    for (;;) {
        if (!lock(shared))
            return false;
        bool ready = shared->slots[slot].state == SLOT_READY;
        pthread_mutex_unlock(&shared->lock);
        if (ready)
            return true;
        if (clock_seconds() > until)
            return false;
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
}

void staging_index_release(const staging_index *index, uint32_t slot) {
    struct staging_shared *shared = index->shared;
    if (!lock(shared))
        return;
    struct slot *s = &shared->slots[slot];
    if (--s->holders == 0 && !s->pinned)
        slot_give_back(index, slot);
    pthread_mutex_unlock(&shared->lock);
}

void staging_index_pin(const staging_index *index, uint32_t slot) {
    if (!lock(index->shared))
        return;
    index->shared->slots[slot].pinned = 1;
    pthread_mutex_unlock(&index->shared->lock);
}

static uint32_t found(const staging_index *index, uint32_t slot, const void *contents, size_t bytes) {
    struct staging_shared *shared = index->shared;
    if (!await_written(shared, slot) || !slot_equals(index, slot, contents, bytes) || !lock(shared)) {
        staging_index_release(index, slot);
        return STAGING_NO_SLOT;
    }
    struct slot *s = &shared->slots[slot];
    if (s->maker != index->member)
        alone_end(shared, s);
    pthread_mutex_unlock(&shared->lock);
    atomic_fetch_add(&shared->member[index->member].found_bytes, bytes);
    return slot;
}

uint32_t staging_index_acquire(const staging_index *index, const void *contents, size_t bytes) {
    struct staging_shared *shared = index->shared;
    uint64_t h = hash(contents, bytes);
    atomic_fetch_add(&shared->progress, bytes);
    if (!lock(shared))
        return STAGING_NO_SLOT;
    uint32_t slot = slot_find(shared, h, bytes);
    if (slot != STAGING_NO_SLOT) {
        pthread_mutex_unlock(&shared->lock);
        return found(index, slot, contents, bytes);
    }
    slot = slot_take(index, h, bytes);
    pthread_mutex_unlock(&shared->lock);
    if (slot == STAGING_NO_SLOT)
        return slot;
    bool written = slot_write(index, slot, contents, bytes);
    if (!lock(shared))
        return STAGING_NO_SLOT;
    struct slot *s = &shared->slots[slot];
    if (written) {
        s->state = SLOT_READY;
        atomic_fetch_add(&shared->member[index->member].made_bytes, bytes);
    } else {
        chain_remove(shared, slot);
        if (--s->holders == 0) /* others may wait for it yet: the last of them gives it back */
            slot_give_back(index, slot);
    }
    pthread_mutex_unlock(&shared->lock);
    return written ? slot : STAGING_NO_SLOT;
}

void staging_index_await_others(staging_index *index) {
    struct staging_shared *shared = index->shared;
    struct member *own = &shared->member[index->member];
    uint64_t alone, seen = atomic_load(&shared->progress);
    double until = clock_seconds() + PATIENCE_SECONDS;
    while (index->member != MEMBERS && (alone = atomic_load(&own->alone_bytes)) > LEAD_BYTES) {
        uint64_t left =
            atomic_load(&own->made_bytes) - alone; /* by this process alone: to others, or for good */
        if (left == index->gave_up_at)
            return;
        uint64_t now = atomic_load(&shared->progress);
        if (now != seen)
            until = clock_seconds() + PATIENCE_SECONDS;
        else if (clock_seconds() > until)
            index->gave_up_at = left;
        seen = now;
        nanosleep(&(struct timespec){0, 10 * LOOK_NS}, NULL);
    }
}

void staging_index_figures(const staging_index *index, staging_figures *out) {
    *out = (staging_figures){.held_bytes = atomic_load(&index->shared->held_bytes)};
    for (uint32_t member = 0; member <= MEMBERS; member++) {
        out->found_bytes += atomic_load(&index->shared->member[member].found_bytes);
        out->made_bytes += atomic_load(&index->shared->member[member].made_bytes);
    }
}
