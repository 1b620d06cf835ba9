#include "staging.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file_bytes.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "job/offers.h"
#include "job/rendezvous.h"
#include "job/token.h"

/* The memory of the staging area: pieces of parameters under construction. All processes of a job on a node that have equal
 * pieces share one copy.
 *
 * Vocabulary
 *   area     two memory files, the index and the bytes; the first process that needs it makes it
 *   place     room for one piece in the bytes, at place * STAGING_PIECE_BYTES
 *   piece    up to STAGING_PIECE_BYTES of a parameter's block; looked up by its contents alone
 *   holder   a process that maps a place; it counts once for each mapping
 *
 * Invariants
 *   - the bytes of a place never change from the moment that another process can find it until its last holder has
 *     released it. Where a holder has forked, they never change: the child's views show them too
 *   - two pieces are one only after all their bytes were compared
 */
#define STAGING_PIECE_BYTES (2ul << 20)
#define STAGING_NO_PLACE    UINT32_MAX

struct staging_shared;
typedef struct staging_index {
    struct staging_shared *shared; /* NULL: there is none */
    int index_fd, bytes_fd;
    uint32_t member; /* this process, among those that have the staging area */
    uint64_t
        gave_up_at; /* bytes that others had found when the last wait for them failed; UINT64_MAX: none did */
} staging_index;

#define PLACES        (1u << 19) /* of the bytes' file, 1 TiB; sparse */
#define CHAINS        (1u << 16)
#define MEMBERS       256u
#define LOOK_NS       100000l
#define WRITE_SECONDS 1.0 /* a piece is written in a fraction of it */

/* How far a process may be ahead of those that bring the same, and how long it waits for one that makes no progress. */
#define LEAD_BYTES       (32ul << 20)
#define PATIENCE_SECONDS 0.5

enum place_state { PLACE_FREE, PLACE_WRITING, PLACE_READY };

struct place {
    uint64_t hash;
    uint32_t bytes, next; /* next: in its chain, or of the free ones; index + 1 */
    uint32_t holders, state;
    uint32_t maker; /* the member that made it, while nobody else has found it; else MEMBERS */
    uint32_t pinned;
};

struct staging_shared {
    pthread_mutex_t lock; /* robust; guards all below but the atomic words */
    bool broken; /* a process ended while it held the lock: nothing is looked up or given back any more */
    uint32_t place_count, free_first;
    _Atomic uint32_t members;
    _Atomic uint64_t held_bytes;
    _Atomic uint64_t progress; /* bytes that any member has looked up */
    struct member {
        _Atomic uint64_t found_bytes, made_bytes, alone_bytes; /* alone: made, and found by nobody yet */
    } member[MEMBERS + 1]; /* the last one: of those for whom there was no room */
    uint32_t chain[CHAINS];
    struct place places[PLACES];
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
    fds[1] = sparse_file("castor-staging", PLACES * STAGING_PIECE_BYTES);
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

static bool staging_index_open(const int fds[2], staging_index *out) {
    struct staging_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds[0], 0);
    if (shared == MAP_FAILED)
        return false;
    uint32_t member = atomic_fetch_add(&shared->members, 1);
    *out = (staging_index){shared, fds[0], fds[1], member < MEMBERS ? member : MEMBERS, UINT64_MAX};
    return true;
}

static uint32_t staging_index_members(const staging_index *index) {
    return atomic_load(&index->shared->members);
}

/* False: the staging area is broken, and the lock is not held. */
static bool area_lock(struct staging_shared *shared) {
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

static uint64_t place_offset(uint32_t place) {
    return place * (uint64_t)STAGING_PIECE_BYTES;
}

static bool place_write(const staging_index *index, uint32_t place, const char *contents, size_t bytes) {
    return file_bytes_write(index->bytes_fd, contents, bytes, place_offset(place)) == 0;
}

static bool staging_index_read(const staging_index *index, uint32_t place, void *out, size_t bytes) {
    return file_bytes_read(index->bytes_fd, out, bytes, place_offset(place)) == 0;
}

static bool place_equals(const staging_index *index, uint32_t place, const char *contents, size_t bytes) {
    char piece[32768];
    for (size_t at = 0; at < bytes;) {
        size_t size = bytes - at < sizeof piece ? bytes - at : sizeof piece;
        if (file_bytes_read(index->bytes_fd, piece, size, place_offset(place) + at) != 0 ||
            memcmp(piece, contents + at, size) != 0)
            return false;
        at += size;
    }
    return true;
}

/* ---- under the lock ---- */

static uint32_t *chain_of(struct staging_shared *shared, uint64_t h) {
    return &shared->chain[h % CHAINS];
}

static void chain_remove(struct staging_shared *shared, uint32_t place) {
    uint32_t *at = chain_of(shared, shared->places[place].hash);
    while (*at && *at != place + 1)
        at = &shared->places[*at - 1].next;
    if (*at)
        *at = shared->places[place].next;
}

/* Another process has found it, or nobody holds it any more. */
static void alone_end(struct staging_shared *shared, struct place *s) {
    if (s->maker == MEMBERS)
        return;
    atomic_fetch_sub(&shared->member[s->maker].alone_bytes, s->bytes);
    s->maker = MEMBERS;
}

static void place_give_back(const staging_index *index, uint32_t place) {
    struct staging_shared *shared = index->shared;
    struct place *s = &shared->places[place];
    chain_remove(shared, place);
    fallocate(index->bytes_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place_offset(place),
              STAGING_PIECE_BYTES);
    atomic_fetch_sub(&shared->held_bytes, s->bytes);
    alone_end(shared, s);
    *s = (struct place){.next = shared->free_first, .state = PLACE_FREE};
    shared->free_first = place + 1;
}

static uint32_t place_take(const staging_index *index, uint64_t h, size_t bytes) {
    struct staging_shared *shared = index->shared;
    uint32_t place = STAGING_NO_PLACE;
    if (shared->place_count <
        PLACES) { /* in order, so that neighbours in a block are neighbours here: one mapping */
        place = shared->place_count++;
    } else if (shared->free_first) {
        place = shared->free_first - 1;
        shared->free_first = shared->places[place].next;
    } else {
        return STAGING_NO_PLACE;
    }
    uint32_t *chain = chain_of(shared, h);
    shared->places[place] = (struct place){h, (uint32_t)bytes, *chain, 1, PLACE_WRITING, index->member, 0};
    *chain = place + 1;
    atomic_fetch_add(&shared->held_bytes, bytes);
    atomic_fetch_add(&shared->member[index->member].alone_bytes, bytes);
    return place;
}

/* The place with this hash; it stays, because this process counts as a holder. STAGING_NO_PLACE: there is none. */
static uint32_t place_find(struct staging_shared *shared, uint64_t h, size_t bytes) {
    for (uint32_t at = *chain_of(shared, h); at; at = shared->places[at - 1].next) {
        struct place *s = &shared->places[at - 1];
        if (s->hash != h || s->bytes != bytes)
            continue;
        s->holders++;
        return at - 1;
    }
    return STAGING_NO_PLACE;
}

/* ---- */

/* Whether its contents are there. The other process may have ended in the middle. */
static bool await_written(struct staging_shared *shared, uint32_t place) {
    double until = clock_seconds() + WRITE_SECONDS;
    for (;;) {
        if (!area_lock(shared))
            return false;
        bool ready = shared->places[place].state == PLACE_READY;
        pthread_mutex_unlock(&shared->lock);
        if (ready)
            return true;
        if (clock_seconds() > until)
            return false;
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
}

/* The contents of a place that this process holds. */
static void staging_index_release(const staging_index *index, uint32_t place) {
    struct staging_shared *shared = index->shared;
    if (!area_lock(shared))
        return;
    struct place *s = &shared->places[place];
    if (--s->holders == 0 && !s->pinned)
        place_give_back(index, place);
    pthread_mutex_unlock(&shared->lock);
}

/* Its bytes stay until the end of the job. */
static void staging_index_pin(const staging_index *index, uint32_t place) {
    if (!area_lock(index->shared))
        return;
    index->shared->places[place].pinned = 1;
    pthread_mutex_unlock(&index->shared->lock);
}

static uint32_t found(const staging_index *index, uint32_t place, const void *contents, size_t bytes) {
    struct staging_shared *shared = index->shared;
    if (!await_written(shared, place) || !place_equals(index, place, contents, bytes) || !area_lock(shared)) {
        staging_index_release(index, place);
        return STAGING_NO_PLACE;
    }
    struct place *s = &shared->places[place];
    if (s->maker != index->member)
        alone_end(shared, s);
    pthread_mutex_unlock(&shared->lock);
    atomic_fetch_add(&shared->member[index->member].found_bytes, bytes);
    return place;
}

/* This process becomes a holder of the place with these contents, an existing or a new one. STAGING_NO_PLACE: there is no memory,
 * or another process takes too long to write the same contents. */
static uint32_t staging_index_acquire(const staging_index *index, const void *contents, size_t bytes) {
    struct staging_shared *shared = index->shared;
    uint64_t h = hash(contents, bytes);
    atomic_fetch_add(&shared->progress, bytes);
    if (!area_lock(shared))
        return STAGING_NO_PLACE;
    uint32_t place = place_find(shared, h, bytes);
    if (place != STAGING_NO_PLACE) {
        pthread_mutex_unlock(&shared->lock);
        return found(index, place, contents, bytes);
    }
    place = place_take(index, h, bytes);
    pthread_mutex_unlock(&shared->lock);
    if (place == STAGING_NO_PLACE)
        return place;
    bool written = place_write(index, place, contents, bytes);
    if (!area_lock(shared))
        return STAGING_NO_PLACE;
    struct place *s = &shared->places[place];
    if (written) {
        s->state = PLACE_READY;
        atomic_fetch_add(&shared->member[index->member].made_bytes, bytes);
    } else {
        chain_remove(shared, place);
        if (--s->holders == 0) /* others may wait for it yet: the last of them gives it back */
            place_give_back(index, place);
    }
    pthread_mutex_unlock(&shared->lock);
    return written ? place : STAGING_NO_PLACE;
}

/* Waits while the other processes have yet to find many of the pieces that this process was the first to add: until then they
 * keep their own copies. Ends when the others make no progress; then it does not wait again before they have found some. */
static void staging_index_await_others(staging_index *index) {
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

static void staging_index_figures(const staging_index *index, staging_figures *out) {
    *out = (staging_figures){.held_bytes = atomic_load(&index->shared->held_bytes)};
    for (uint32_t member = 0; member <= MEMBERS; member++) {
        out->found_bytes += atomic_load(&index->shared->member[member].found_bytes);
        out->made_bytes += atomic_load(&index->shared->member[member].made_bytes);
    }
}

#define LOOK_MS       2
#define RETRY_NS      10000000l
#define RETRY_SECONDS 0.05
#define ASK_SECONDS   1.0
#define MEETING       "the staging area"

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is guarded by `watch_lock`. */
static bool started, running;
static int (*call_later)(int (*)(void *), void *);
static int (*call_sweep)(void *);
static bool scheduled;
static double not_before;
static uint64_t most_bytes, base_bytes; /* this process's own bytes after the last sweep, or fewer */

/* Set before the thread starts. */
static char job[TOKEN_MAX];
static int statm = -1, resumed = -1; /* resumed: an eventfd */

/* Bytes of this process's memory that are no file's: of private pages. */
static uint64_t own_bytes_now(void) {
    char text[128];
    ssize_t got = pread(statm, text, sizeof text - 1, 0);
    if (got <= 0)
        return 0;
    text[got] = 0;
    char *at = text;
    strtoul(at, &at, 10);
    unsigned long resident = strtoul(at, &at, 10), of_files = strtoul(at, &at, 10);
    return resident > of_files ? (resident - of_files) * PAGE_BYTES : 0;
}

static void look(void) {
    uint64_t now = own_bytes_now();
    pthread_mutex_lock(&watch_lock);
    if (now < base_bytes || !base_bytes)
        base_bytes = now;
    if (running && !scheduled && now - base_bytes > most_bytes && clock_seconds() >= not_before)
        scheduled = call_later(call_sweep, NULL) == 0;
    pthread_mutex_unlock(&watch_lock);
}

/* Others get the two files from this process. */
static bool staging_offer(offer *claimed, int fds[2]) {
    if (!staging_index_make(fds))
        return false;
    int given[2] = {fcntl(fds[0], F_DUPFD_CLOEXEC, 0), fcntl(fds[1], F_DUPFD_CLOEXEC, 0)};
    if (offer_give(claimed, given, 2, UINT32_MAX) == CASTOR_OK)
        return true;
    close(fds[0]);
    close(fds[1]);
    return false;
}

static void staging_find(int fds[2]) {
    for (;;) {
        offer *claimed = offer_claim(job, MEETING);
        if (claimed ? staging_offer(claimed, fds) : rendezvous_ask(job, MEETING, fds, 2, ASK_SECONDS))
            return;
        offer_end(claimed);
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
}

static void *watch_main(void *context) {
    (void)context;
    prctl(PR_SET_NAME, "castor-staging");
    int fds[2];
    staging_find(fds);
    if (staging_join(fds) != CASTOR_OK) {
        LOG_W("CASTOR_LAZY_INIT: %s; parameters are made as without it", error_text());
        return NULL;
    }
    for (;;) {
        struct pollfd polled = {.fd = resumed, .events = POLLIN};
        pthread_mutex_lock(&watch_lock);
        bool idle = !running;
        pthread_mutex_unlock(&watch_lock);
        uint64_t count;
        if (poll(&polled, 1, idle ? -1 : LOOK_MS) > 0 && read(resumed, &count, sizeof count) < 0)
            idle = true;
        if (!idle && staging_is_shared())
            look();
    }
    return NULL;
}

castor_status staging_watch_start(const char *token, uint64_t own_bytes,
                                  int (*schedule)(int (*)(void *), void *), int (*sweep)(void *)) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&watch_lock);
    call_later = schedule;
    call_sweep = sweep;
    most_bytes = own_bytes;
    if (!running)
        base_bytes = 0;
    running = true;
    if (!started) {
        token_copy(job, token);
        statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        resumed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        int failed = thread_start(watch_main, NULL);
        started = !failed;
        if (failed)
            status =
                error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-staging (error %d)", failed);
    } else if (write(resumed, &(uint64_t){1}, sizeof(uint64_t)) < 0) {
        LOG_D("castor-staging goes on with its next look");
    }
    pthread_mutex_unlock(&watch_lock);
    return status;
}

void staging_watch_stop(void) {
    pthread_mutex_lock(&watch_lock);
    running = false;
    pthread_mutex_unlock(&watch_lock);
}

void staging_watch_done(int swept) {
    uint64_t now = swept ? own_bytes_now() : 0;
    pthread_mutex_lock(&watch_lock);
    scheduled = false;
    if (swept)
        base_bytes = now;
    else
        not_before = clock_seconds() + RETRY_SECONDS;
    pthread_mutex_unlock(&watch_lock);
}

#define BUCKETS 4096u
/* Every piece may take a mapping of its own; the system has 65530 for a process (vm.max_map_count). */
#define PIECES_MAX 32768u

struct staging_block {
    char *address;
    size_t bytes;
    uint32_t pieces;
    uint32_t *place;     /* by piece; STAGING_NO_PLACE: the pages are this process's own */
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
        if (block->place[piece] == STAGING_NO_PLACE)
            continue;
        if (!atomic_load(&detached))
            staging_index_release(&area, block->place[piece]);
        block->place[piece] = STAGING_NO_PLACE;
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
        free(block->place);
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
    block->place = malloc(block->pieces * sizeof *block->place);
    if (!block->place || arena_adopt(address, on_block_freed, block) != CASTOR_OK) {
        free(block->place);
        free(block);
        return NULL;
    }
    memset(block->place, 0xff, block->pieces * sizeof *block->place); /* STAGING_NO_PLACE */
    block->next = *bucket_of(address);
    *bucket_of(address) = block;
    block_count++;
    return block;
}

static bool mostly_edited(char *start, size_t bytes) {
    return pages_edited_bytes(start, bytes) * 2 > bytes;
}

/* The staging area's pages could not be mapped over it, and the system may have taken away what was there. */
static void piece_restore(char *start, size_t bytes, uint32_t place) {
    unsigned char present[STAGING_PIECE_BYTES / PAGE_BYTES];
    if (mincore(start, bytes, present) == 0)
        return; /* it has not */
    if (pages_map_zero(start, bytes) != CASTOR_OK || !staging_index_read(&area, place, start, bytes))
        LOG_E("the memory of a parameter at %p is lost: %s", (void *)start, error_text());
}

/* Returns the bytes that became the staging area's. */
static size_t piece_sweep(staging_block *block, uint32_t piece) {
    char *start = block->address + piece * STAGING_PIECE_BYTES;
    size_t bytes = piece_bytes(block, piece);
    uint32_t before = block->place[piece];
    if (!mostly_edited(start, bytes) || (before == STAGING_NO_PLACE && piece_count >= PIECES_MAX))
        return 0;
    uint32_t place = staging_index_acquire(&area, start, bytes);
    if (place == STAGING_NO_PLACE)
        return 0;
    if (pages_map_view(area.bytes_fd, place * STAGING_PIECE_BYTES, bytes, start, NULL) != CASTOR_OK) {
        piece_restore(start, bytes, place);
        staging_index_release(&area, place);
        place = STAGING_NO_PLACE;
    }
    if (before != STAGING_NO_PLACE)
        staging_index_release(&area, before);
    piece_count += (place != STAGING_NO_PLACE) - (before != STAGING_NO_PLACE);
    block->place[piece] = place;
    return place != STAGING_NO_PLACE ? bytes : 0;
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
                if (block->place[piece] != STAGING_NO_PLACE)
                    staging_index_pin(&area, block->place[piece]);
}

void staging_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child's only thread is the one that holds the lock. */
void staging_fork_child(void) {
    atomic_store(&detached, true);
    pthread_mutex_unlock(&lock);
}
