/* The trace format, shared by the recorder and the reader. Everything is little-endian, naturally aligned.
 *
 * A job's directory holds
 *   rank-R.pid-P.counters                     one per process that recorded anything: struct trace_counters
 *   rank-R.pid-P.tid-T.segment-N.trace        per thread: a trace_segment header, then records
 *   trace.budget                              trace bytes taken by all processes: struct trace_budget
 *   castor.about                              text: a line `KEY VALUE` per fact of about.def
 *   passthrough                               text: a line per process that the agent did not reach, and why
 *   refused                                   text: why the job was refused, by the first process that refused it
 *   refused-unseen                            the same, by a process whose log lines nobody may see: `castor run` prints it
 *   ends                                      text: how processes ended, as others saw it (job/ends.h)
 *
 * Invariants
 *   - a file whose magic is zero was never finished and holds nothing
 *   - the first `committed` records of a segment are complete, whatever happened to the process
 *   - a value of `castor.about` has no control characters; a line that stands there twice says the same once
 *   - rows of record.def and gauge.def are only ever appended; any other change of this file, or of the number of ids of
 *     a kind, increments TRACE_VERSION
 *
 * A reader trusts none of this: see launcher/common/trace_read.h. */
#ifndef CASTOR_TRACE_FORMAT_H
#define CASTOR_TRACE_FORMAT_H

#include <assert.h>
#include <stdint.h>

#define TRACE_VERSION        3u
#define TRACE_SEGMENT_MAGIC  UINT64_C(0x6773726f74736163) /* "castorsg" */
#define TRACE_COUNTERS_MAGIC UINT64_C(0x7463726f74736163) /* "castorct" */
#define TRACE_BUDGET_MAGIC   UINT64_C(0x6762726f74736163) /* "castorbg" */

#define TRACE_COUNTERS_SUFFIX     ".counters"
#define TRACE_SEGMENT_SUFFIX      ".trace"
#define TRACE_BUDGET_NAME         "trace.budget"
#define TRACE_ABOUT_NAME          "castor.about"
#define TRACE_UNREACHED_NAME      "passthrough"
#define TRACE_REFUSED_NAME        "refused"
#define TRACE_REFUSED_UNSEEN_NAME "refused-unseen"
#define TRACE_SAID_NAME           "said"

typedef enum trace_record_kind {
#define RECORD(id, name, id_holds, ids, a, b, c, doc) TRACE_##id,
#include "record.def"
    TRACE_RECORD_KIND_COUNT
} trace_record_kind;

typedef enum trace_gauge {
#define GAUGE(id, name, doc) GAUGE_##id,
#include "gauge.def"
    GAUGE_COUNT
} trace_gauge;

typedef enum trace_about {
#define ABOUT(id, key, doc) TRACE_ABOUT_##id,
#include "about.def"
    TRACE_ABOUT_COUNT
} trace_about;

#define TRACE_ABOUT_VALUE_MAX 8192   /* of one line, with its NUL */
#define TRACE_ABOUT_BYTES_MAX 262144 /* of the file that anybody reads or adds to */

/* One record, 64 bytes. */
typedef struct trace_record {
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    uint32_t kind, id;
    uint64_t bytes, a, b, c;
    uint32_t thread; /* a segment passes to a new thread when its own has ended */
    uint32_t reserved;
} trace_record;

#define TRACE_THREAD_NAME_MAX 16

typedef struct trace_segment {
    uint64_t magic;
    uint32_t version, header_bytes, record_bytes, capacity; /* capacity: records */
    uint32_t pid, thread;                                   /* thread: the one that made the segment */
    int32_t rank; /* as known then; the counters' rank may be more recent */
    uint32_t number;
    uint64_t process_uid; /* that of the counters */
    uint64_t base_monotonic_ns, base_realtime_ns;
    char thread_name[TRACE_THREAD_NAME_MAX];
    uint64_t committed; /* stored with release after each record */
    uint8_t reserved[168];
} trace_segment;

/* ---- counters of a process ---- */

#define TRACE_SLOT_MAX    2560u /* counters: the ids of all kinds, one kind after another */
#define TRACE_GAUGE_MAX   96u
#define TRACE_NAMES_BYTES 98304u
#define TRACE_HOST_MAX    64
#define TRACE_PLUGIN_MAX  32
#define TRACE_COMMAND_MAX 1024
#define TRACE_OUTCOME_MAX 512

typedef struct trace_counter {
    uint64_t count, bytes, ns;
} trace_counter;

/* What became of a function of CASTOR_TRACE_ALSO; of several processes the highest counts. */
typedef enum trace_also_state {
    TRACE_ALSO_NO_LIBRARY, /* is not loaded */
    TRACE_ALSO_NO_FUNCTION,
    TRACE_ALSO_NO_CLOSURE,
    TRACE_ALSO_FOUND, /* and replaced in as many places as its counter says, which may be none */
    TRACE_ALSO_STATE_COUNT
} trace_also_state;

typedef struct trace_gauge_value {
    uint64_t last, max;
} trace_gauge_value;

typedef enum trace_exit_state { TRACE_PROCESS_RUNNING = 0, TRACE_PROCESS_EXITED = 1 } trace_exit_state;

#define TRACE_EXCEPTION_TYPE_MAX    64
#define TRACE_EXCEPTION_MESSAGE_MAX 320
#define TRACE_EXCEPTION_PLACE_MAX   128

/* The uncaught exception that ends a process. */
typedef struct trace_exception {
    uint64_t realtime_ns; /* 0: there is none */
    uint32_t by_other;    /* 1: another rank's failure made it */
    uint32_t reserved;
    char type[TRACE_EXCEPTION_TYPE_MAX];
    char message[TRACE_EXCEPTION_MESSAGE_MAX];
    char place[TRACE_EXCEPTION_PLACE_MAX]; /* the script's innermost line: "train.py, line 12" */
} trace_exception;

typedef enum trace_recording {
    TRACE_RECORDING_ON = 0,
    TRACE_RECORDING_OFF = 1,    /* counters only, as asked */
    TRACE_RECORDING_FULL = 2,   /* CASTOR_TRACE_MAX was reached */
    TRACE_RECORDING_FAILED = 3, /* a segment could not be made: no space, no permission */
} trace_recording;

typedef struct trace_counters {
    uint64_t magic;
    uint32_t version, file_bytes, slot_count, gauge_count;
    uint32_t pid;
    int32_t rank;
    uint64_t uid, parent_uid; /* parent_uid: of the process that forked this one without exec, or 0 */
    uint64_t
        start_clock_ticks; /* field 22 of /proc/PID/stat: tells a process from a later one with its pid */
    uint64_t start_monotonic_ns, start_realtime_ns;
    uint64_t last_monotonic_ns; /* of the last gauge, or the exit */
    uint32_t exit_state, recording;
    uint64_t dropped; /* records that were only counted */
    uint64_t trace_max_bytes;
    uint32_t names_used;
    int32_t exit_status; /* of a process that exited */
    uint64_t exit_realtime_ns;
    char host[TRACE_HOST_MAX];
    char plugin[TRACE_PLUGIN_MAX];
    char command[TRACE_COMMAND_MAX];
    char outcome[TRACE_OUTCOME_MAX];
    trace_exception exception; /* also of a process that went on and exited with status 0 */
    trace_gauge_value gauges[TRACE_GAUGE_MAX];
    trace_counter counters[TRACE_SLOT_MAX];
    uint32_t name_offsets[TRACE_SLOT_MAX]; /* into names; 0: no name */
    char names[TRACE_NAMES_BYTES];
} trace_counters;

typedef struct trace_budget {
    uint64_t magic;
    uint64_t used_bytes;
    uint8_t reserved[4080];
} trace_budget;

/* The slots of a kind start at trace_slot_base and are trace_slot_ids many; ids beyond share the last. */
static inline uint32_t trace_slot_ids(uint32_t kind) {
    static const uint32_t ids_of_kind[] = {
#define RECORD(id, name, id_holds, ids, a, b, c, doc) ids,
#include "record.def"
    };
    return ids_of_kind[kind];
}

static inline uint32_t trace_slot_base(uint32_t kind) {
    enum {
#define RECORD(id, name, id_holds, ids, a, b, c, doc)                                                        \
    SLOT_FIRST_##id, SLOT_LAST_##id = SLOT_FIRST_##id + (ids)-1,
#include "record.def"
        SLOT_END
    };
    static_assert(SLOT_END <= TRACE_SLOT_MAX, "record.def has more ids than the counters have slots");
    static const uint32_t base_of_kind[] = {
#define RECORD(id, name, id_holds, ids, a, b, c, doc) SLOT_FIRST_##id,
#include "record.def"
    };
    return base_of_kind[kind];
}

static inline uint32_t trace_slot(uint32_t kind, uint32_t id) {
    uint32_t ids = trace_slot_ids(kind);
    return trace_slot_base(kind) + (id < ids ? id : ids - 1);
}

/* The id by which a record is counted: its own, but a step's optimizer is in `a`. */
static inline uint32_t trace_counted_id(uint32_t kind, uint32_t id, uint64_t a) {
    return kind != TRACE_STEP ? id : a < UINT32_MAX ? (uint32_t)a : UINT32_MAX;
}

static_assert(sizeof(trace_record) == 64, "records are 64 bytes");
static_assert(sizeof(trace_segment) == 256, "segment headers are 256 bytes");
static_assert(sizeof(trace_budget) == 4096, "the budget is one page");
static_assert(GAUGE_COUNT <= TRACE_GAUGE_MAX, "gauge.def has more rows than the counters have gauges");

#endif
