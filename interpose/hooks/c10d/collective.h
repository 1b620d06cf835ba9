/* A collective from its call to its completion.
 *
 * Vocabulary
 *   call    the function that the script's thread calls; collectives that PyTorch calls inside it (an all-reduce inside
 *           a reduce-scatter) are part of it and not counted
 *   work    a task that a call hands to the worker threads of its process group; a call may make none, one or several
 *   flight  a call and its works: one COLLECTIVE record, from the begin of its first work to the end of its last one; of
 *           a call without works, from the call to its return
 *
 * Private to hooks/. Nothing here allocates or waits; where the tables are full, a flight is recorded as if
 * it had no works. */
#ifndef CASTOR_HOOKS_C10D_COLLECTIVE_H
#define CASTOR_HOOKS_C10D_COLLECTIVE_H

#include <stdbool.h>
#include <stdint.h>
#include "hooks/table/hooks.h"
#include "trace/live.h"
#include "payload.h"

typedef struct collective_flight collective_flight;

/* Lives in the frame of the wrapper. */
typedef struct collective_call {
    hook_id id;
    bool outermost, returned;
    uint32_t group;
    const void *group_address;
    uint64_t begin_ns;
    hook_payload payload;
    int peer, tag;    /* of a message; peer -1: from any rank */
    const void *work; /* returned by a call of a process group */
    live_message message;
    struct live_wait *live;
    collective_flight *flight;
} collective_call;

/* True for an outermost call: the wrapper then measures the payload and calls collective_begin. */
bool collective_enter(collective_call *call, hook_id id, const void *group);
void collective_begin(collective_call *call);
/* Runs when the wrapper ends, also by a C++ exception (then `returned` is false, and nothing is recorded). */
void collective_leave(collective_call *call);

/* A work of the call that this thread is in. */
void collective_work_enqueue(const void *work);
void collective_work_begin(const void *work);
void collective_work_end(const void *work);

/* The message that the receiving `work` waits for; ordinal 0: unknown. */
live_message collective_message_of(const void *work);

/* This thread is inside a call of a process group. */
bool collective_is_inside(void);

/* Stops the recording of this thread's calls, or resumes it. */
void collective_hide(bool hide);

#endif
