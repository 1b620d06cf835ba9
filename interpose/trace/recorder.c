#include "recorder.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/log.h"
#include "counters.h"
#include "file.h"
#include "trace.h"

/* Segments hold the records of a thread.
 *
 * A thread's first segment is small, the next ones large, so that threads that hardly record anything cost
 * little disk. The segment of a thread that has ended is handed to the next thread that starts recording.
 *
 * Invariant: only the owning thread writes a segment, and only it unmaps it. */
#define SEGMENT_FIRST_BYTES 65536u
#define SEGMENT_BYTES       1048576u

/* The recording state of one thread. */
typedef struct segment_cursor {
    trace_segment *segment;
    uint32_t generation; /* of the recorder, when `segment` was taken: an older one belongs to the parent */
    uint32_t count, thread, entry;
    bool busy; /* a record is being written: a signal handler must not write another */
} segment_cursor;

/* Adds the record that was returned last to the trace. */
static inline void segment_commit(segment_cursor *cursor) {
    __atomic_store_n(&cursor->segment->committed, ++cursor->count, __ATOMIC_RELEASE);
}

#define SEGMENT_THREADS    1024 /* threads that record at the same time */
#define SEGMENT_SCAN       128  /* owners looked at for one that has ended, at most */
#define SEGMENT_NAME_TRIES 1000

/* One per thread that records. Guarded by `lock`, but the fields of a living owner's cursor are its own. */
typedef struct segment_entry {
    uint32_t thread;
    trace_segment *segment;
} segment_entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static segment_entry entries[SEGMENT_THREADS]; /* lock */
static uint32_t entry_count, scan_position;    /* lock */
static uint32_t next_number;                   /* lock */
static uint64_t max_bytes;
static uint32_t generation = 1; /* atomic */
static trace_budget *budget;    /* lock; NULL until the first segment */
static trace_budget own_budget; /* for a directory in which none can be shared */
static bool failure_logged;

/* Drops all segments without touching them. After it no cursor is current. */
static void segment_reset(void) {
    pthread_mutex_init(&lock, NULL);
    memset(entries, 0, sizeof entries);
    entry_count = scan_position = next_number = 0;
    budget = NULL;
    memset(&own_budget, 0, sizeof own_budget);
    __atomic_fetch_add(&generation, 1, __ATOMIC_RELEASE);
}

/* Takes `bytes` of what the job may write. */
static bool budget_take(uint64_t bytes) {
    if (budget == NULL) {
        budget = trace_file_share(TRACE_BUDGET_NAME, sizeof(trace_budget));
        if (budget == NULL)
            budget = &own_budget;
        __atomic_store_n(&budget->magic, TRACE_BUDGET_MAGIC, __ATOMIC_RELEASE);
    }
    uint64_t used = __atomic_load_n(&budget->used_bytes, __ATOMIC_RELAXED);
    do
        if (used > max_bytes || bytes > max_bytes - used)
            return false;
    while (!__atomic_compare_exchange_n(&budget->used_bytes, &used, used + bytes, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    return true;
}

static void budget_return(uint64_t bytes) {
    __atomic_fetch_sub(&budget->used_bytes, bytes, __ATOMIC_RELAXED);
}

static void recording_end(trace_counters *counters, trace_recording state, int error) {
    __atomic_store_n(&counters->recording, (uint32_t)state, __ATOMIC_RELAXED);
    if (failure_logged)
        return;
    failure_logged = true;
    if (state == TRACE_RECORDING_FULL)
        LOG_I("the trace has reached CASTOR_TRACE_MAX (%B): only counters are kept from here on", max_bytes);
    else
        LOG_W("cannot write the trace to %s: %s; only counters are kept (choose another --log-dir)",
              trace_file_directory(), trace_file_error(error));
}

/* A new segment for `thread`, or NULL when the recording has ended. */
static trace_segment *segment_create(trace_counters *counters, uint32_t thread, uint64_t bytes) {
    if (!budget_take(bytes)) {
        bytes = SEGMENT_FIRST_BYTES;
        if (!budget_take(bytes)) {
            recording_end(counters, TRACE_RECORDING_FULL, 0);
            return NULL;
        }
    }
    char name[128], rank[16];
    counters_rank_text(rank);
    trace_segment *segment = NULL;
    for (int tries = 0; segment == NULL && tries < SEGMENT_NAME_TRIES; tries++) {
        log_format(name, sizeof name, "rank-%s.pid-%u.tid-%u.segment-%u" TRACE_SEGMENT_SUFFIX, rank,
                   (unsigned)counters->pid, (unsigned)thread, (unsigned)next_number);
        segment = trace_file_create(name, bytes);
        if (segment == NULL && errno != EEXIST)
            break;
        next_number++;
    }
    if (segment == NULL) {
        int error = errno;
        budget_return(bytes);
        recording_end(counters, TRACE_RECORDING_FAILED, error);
        return NULL;
    }
    segment->version = TRACE_VERSION;
    segment->header_bytes = sizeof(trace_segment);
    segment->record_bytes = sizeof(trace_record);
    segment->capacity = (uint32_t)((bytes - sizeof(trace_segment)) / sizeof(trace_record));
    segment->pid = counters->pid;
    segment->thread = thread;
    segment->rank = counters_rank();
    segment->number = next_number - 1;
    segment->process_uid = counters_process_uid();
    counters_clocks(&segment->base_monotonic_ns, &segment->base_realtime_ns);
    prctl(PR_GET_NAME, segment->thread_name);
    __atomic_store_n(&segment->magic, TRACE_SEGMENT_MAGIC, __ATOMIC_RELEASE);
    return segment;
}

static bool thread_has_ended(uint32_t pid, uint32_t thread) {
    return syscall(SYS_tgkill, (pid_t)pid, (pid_t)thread, 0) != 0 && errno == ESRCH;
}

/* The entry of a thread that has ended (or had this thread's id before it), or SEGMENT_THREADS. */
static uint32_t entry_find_abandoned(uint32_t pid, uint32_t thread) {
    uint32_t looks = entry_count < SEGMENT_SCAN ? entry_count : SEGMENT_SCAN;
    for (uint32_t i = 0; i < looks; i++) {
        uint32_t entry = scan_position = (scan_position + 1) % entry_count;
        if (entries[entry].thread == thread || thread_has_ended(pid, entries[entry].thread))
            return entry;
    }
    return SEGMENT_THREADS;
}

static void write_thread_record(segment_cursor *cursor) {
    trace_record *record = (trace_record *)(cursor->segment + 1) + cursor->count;
    char name[TRACE_THREAD_NAME_MAX] = "";
    prctl(PR_GET_NAME, name);
    *record = (trace_record){.kind = TRACE_THREAD, .thread = cursor->thread};
    record->begin_ns = record->end_ns = trace_now_ns();
    memcpy(&record->a, name, 8);
    memcpy(&record->b, name + 8, 8);
    segment_commit(cursor);
}

/* Gives the cursor a segment with room. Holds `lock`. */
static bool cursor_refill(segment_cursor *cursor, trace_counters *counters) {
    uint32_t now = __atomic_load_n(&generation, __ATOMIC_RELAXED);
    if (cursor->generation == now && cursor->segment != NULL) {
        trace_segment *next = segment_create(counters, cursor->thread, SEGMENT_BYTES);
        if (next == NULL)
            return false;
        munmap(cursor->segment,
               sizeof(trace_segment) + (uint64_t)cursor->segment->capacity * sizeof(trace_record));
        entries[cursor->entry].segment = cursor->segment = next;
        cursor->count = 0;
        return true;
    }
    uint32_t thread = (uint32_t)syscall(SYS_gettid);
    uint32_t entry = entry_find_abandoned(counters->pid, thread);
    bool abandoned = entry < SEGMENT_THREADS;
    if (!abandoned && entry_count == SEGMENT_THREADS)
        return false;
    trace_segment *segment = abandoned ? entries[entry].segment : NULL;
    uint32_t count = segment == NULL ? 0 : (uint32_t)segment->committed;
    /* Room for the name of the thread and a record. */
    bool taken_over = segment != NULL && segment->capacity - count >= 2;
    if (!taken_over) {
        trace_segment *fresh = segment_create(counters, thread, SEGMENT_FIRST_BYTES);
        if (fresh == NULL)
            return false;
        if (segment != NULL)
            munmap(segment, sizeof(trace_segment) + (uint64_t)segment->capacity * sizeof(trace_record));
        segment = fresh;
        count = 0;
    }
    if (!abandoned)
        entry = entry_count++;
    entries[entry] = (segment_entry){thread, segment};
    cursor->segment = segment;
    cursor->generation = now;
    cursor->count = count;
    cursor->thread = thread;
    cursor->entry = entry;
    if (taken_over)
        write_thread_record(cursor);
    return true;
}

/* Room for one more record, or NULL: the record is only counted. */
static trace_record *segment_next_record(segment_cursor *cursor, trace_counters *counters) {
    bool current =
        cursor->segment != NULL && cursor->generation == __atomic_load_n(&generation, __ATOMIC_RELAXED);
    if (!current || cursor->count == cursor->segment->capacity) {
        if (__atomic_load_n(&counters->recording, __ATOMIC_RELAXED) != TRACE_RECORDING_ON)
            return NULL;
        pthread_mutex_lock(&lock);
        bool refilled = cursor_refill(cursor, counters);
        pthread_mutex_unlock(&lock);
        if (!refilled)
            return NULL;
    }
    return (trace_record *)(cursor->segment + 1) + cursor->count;
}

static __thread segment_cursor this_thread __attribute__((tls_model("initial-exec")));

void trace_record_write(trace_record_kind kind, uint32_t id, uint64_t begin_ns, uint64_t end_ns,
                        uint64_t bytes, uint64_t a, uint64_t b, uint64_t c) {
    if ((uint32_t)kind >= TRACE_RECORD_KIND_COUNT)
        return;
    int saved_errno = errno;
    trace_counters *counters = counters_get();
    if (counters == NULL)
        goto out;
    counters_add(counters, kind, trace_counted_id(kind, id, a), bytes,
                 end_ns > begin_ns ? end_ns - begin_ns : 0);
    if (__atomic_load_n(&counters->recording, __ATOMIC_RELAXED) == TRACE_RECORDING_OFF)
        goto out;
    segment_cursor *cursor = &this_thread;
    trace_record *record = NULL;
    bool nested = cursor->busy;
    if (!nested) {
        cursor->busy = true;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        record = segment_next_record(cursor, counters);
        if (record != NULL) {
            *record = (trace_record){.begin_ns = begin_ns,
                                     .end_ns = end_ns,
                                     .kind = (uint32_t)kind,
                                     .id = id,
                                     .bytes = bytes,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .thread = cursor->thread};
            segment_commit(cursor);
        }
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        cursor->busy = false;
    }
    if (record == NULL)
        __atomic_fetch_add(&counters->dropped, 1, __ATOMIC_RELAXED);
out:
    errno = saved_errno;
}

void recorder_start(uint64_t most) {
    segment_reset();
    max_bytes = most;
}

void recorder_fork_child(void) {
    segment_reset();
    this_thread = (segment_cursor){0};
}
