/* The present waits of a process: one small file beside its counters, rank-R.pid-P.live, read by `castor top` and by the
 * stall watch of `castor run` while the process runs. It keeps no history and is not part of a report. Little-endian, naturally
 * aligned; a reader trusts none of it (launcher/common/live_read.h).
 *
 * Vocabulary
 *   group    the ranks of a process group of the script's, or of a communicator; its name is the same on all of them
 *   ordinal  the number of a collective among this process's on a group: the ranks of a group meet in collectives of one ordinal
 *   wait     a collective in flight, or a wait for other ranks in Castor's own store, or for a message
 *   enqueued a collective of NCCL: its call returns at once, and the host does not know when the device completes it
 *   channel  the messages of this process to, or from, one rank of a group under one tag: the n-th message received is the
 *            n-th message sent
 *   device   the host's view of this process's devices: the wait for them, and their last progress
 *
 * Invariants
 *   - begin_ns of a wait is stored last, with release, when it begins, and cleared first when it ends. A reader that
 *     copies the file may still see parts of two waits: it trusts only a wait that it has seen twice
 *   - only the process writes its file, except for stack_wanted, which `castor run` writes
 */
#ifndef CASTOR_TRACE_LIVE_FORMAT_H
#define CASTOR_TRACE_LIVE_FORMAT_H

#include <assert.h>
#include <stdint.h>

#define LIVE_VERSION      3u
#define LIVE_MAGIC        UINT64_C(0x766c726f74736163) /* "castorlv" */
#define LIVE_SUFFIX       ".live"
#define LIVE_STACK_SUFFIX ".stack" /* text: the Python stacks that `castor run` asked for */

#define LIVE_PROCESS_GROUPS_MAX    128u
#define LIVE_WAITS_MAX             64u
#define LIVE_CHANNELS_MAX          256u
#define LIVE_RECENT_MAX            8u
#define LIVE_MEMBER_WORDS          16u /* ranks 0 to 1023; others of a group are only counted */
#define LIVE_NAME_MAX              64
#define LIVE_WHAT_MAX              80
#define LIVE_OPERATION_MAX         32
#define LIVE_CALL_MAX              40
#define LIVE_PROCESS_GROUP_UNKNOWN UINT32_MAX

/* LIVE_DEVICE: not a wait of the table, but the live_device. */
typedef enum live_kind { LIVE_COLLECTIVE = 1, LIVE_STORE, LIVE_RECEIVE, LIVE_DEVICE } live_kind;

typedef enum live_direction { LIVE_SENT = 1, LIVE_RECEIVED = 2 } live_direction;

/* One of the last collectives of a group. */
typedef struct live_recent {
    uint64_t ordinal, begin_ns, bytes;
    char what[LIVE_OPERATION_MAX];
} live_recent;

typedef struct live_process_group {
    uint64_t entered; /* collectives that this process has begun on the group */
    int32_t rank;     /* of this process in the group; -1: unknown */
    uint32_t size;    /* ranks in the group; 0: unknown */
    uint32_t used;
    uint32_t enqueues; /* its collectives are enqueued: they may be in flight without a wait */
    uint64_t last_ns;  /* when its last collective or message was begun; CLOCK_MONOTONIC */
    live_recent recent[LIVE_RECENT_MAX]; /* by ordinal */
    char name[LIVE_NAME_MAX];            /* "": unknown */
    uint64_t members[LIVE_MEMBER_WORDS];
} live_process_group;

typedef struct live_wait {
    uint64_t begin_ns; /* CLOCK_MONOTONIC; 0: free */
    uint64_t ordinal, bytes;
    uint32_t kind, group; /* group: index into groups, or LIVE_PROCESS_GROUP_UNKNOWN */
    int32_t missing_pid;  /* a process that the wait is for, as far as the waiter knows; 0: unknown */
    uint32_t claimed;
    char what[LIVE_WHAT_MAX]; /* "allreduce", "the end of backward" */
    int32_t peer, tag;        /* of a message whose ordinal is not 0; peer: a rank of the group */
} live_wait;

typedef struct live_channel {
    uint64_t begun;
    uint32_t direction; /* 0: free */
    uint32_t group;
    int32_t peer, tag; /* peer: a rank of the group */
} live_channel;

typedef struct live_device {
    uint64_t
        begin_ns; /* since when a thread waits for one, in a call or by repeated queries; 0: no thread waits */
    uint64_t progress_ns;                         /* when enqueued work was last seen to be done; 0: never */
    uint64_t enqueued_ns, enqueued_bytes, stream; /* the work enqueued last, and its stream */
    int32_t device;                               /* the awaited one */
    uint32_t padding;
    char call[LIVE_CALL_MAX]; /* the waiting call: "cudaStreamSynchronize" */
    char enqueued[LIVE_CALL_MAX];
} live_device;

typedef struct live_file {
    uint64_t magic;
    uint32_t version, file_bytes;
    uint32_t pid;
    int32_t rank;
    uint64_t process_uid, start_clock_ticks; /* as in the counters */
    uint32_t stack_wanted, stack_given;      /* counts: a stack is due while they differ */
    uint32_t stack_able;                     /* this process can write its Python stack */
    uint32_t channels_lost; /* messages of channels without a free entry: their absence proves nothing */
    uint8_t padding[72];
    live_process_group groups[LIVE_PROCESS_GROUPS_MAX];
    live_wait waits[LIVE_WAITS_MAX];
    live_channel channels[LIVE_CHANNELS_MAX];
    live_device device;
} live_file;

static_assert(sizeof(live_process_group) == 672, "groups have 672 bytes");
static_assert(sizeof(live_wait) == 128, "waits have 128 bytes");
static_assert(sizeof(live_channel) == 24, "channels have 24 bytes");
static_assert(sizeof(live_device) == 128, "what is known of devices has 128 bytes");
static_assert(sizeof(live_file) ==
                  128 + 672 * LIVE_PROCESS_GROUPS_MAX + 128 * LIVE_WAITS_MAX + 24 * LIVE_CHANNELS_MAX + 128,
              "no hidden padding");

#endif
