/* What a training step does to chunks, recorded once and compared with every step that follows.
 *
 * Vocabulary
 *   moment     a numbered event of a step (forward, backward, gradient, optimizer) and the time up to the next one
 *   use        of a chunk in a moment; `write`: its bytes are changed
 *   recording  one step: its moments, their uses, when they began and the peak of non-model data in each
 *   warm-up    a step that is recorded: nothing is known of what comes
 *   following  the step has so far done what a recording says
 *   deviation  the step did something else: another event, an unforeseen use, more non-model data than there is headroom for
 *
 * There are several recordings, so that each of several alternating steps (two networks, an evaluation now and then) is known
 * after it was seen once. A step that deviates from one recording continues with another one that began alike. If there is none,
 * it is recorded anew, and the common beginning is copied.
 *
 * A recording predicts. It decides when chunks move and never what is read, so results do not depend on it. Its tables have a
 * fixed size: a step that does not fit is never followed.
 *
 * As text, a recording can be saved and replayed (bench/policy), one item a line:
 *     castor-moments 1
 *     chunk INDEX KIND BYTES                         for each chunk; KIND: parameter, gradient or state
 *     moment EVENT IDENTITY BEGIN_NS NON_MODEL_BYTES EVENT: forward, backward, gradient or optimizer
 *     use CHUNK r|w                                  in the moment above
 *     end STEP_NS
 *
 * Not thread-safe: the manager's lock guards it. */
#ifndef CASTOR_PLACEMENT_MOMENTS_H
#define CASTOR_PLACEMENT_MOMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

#define MOMENT_RECORDINGS 3
#define MOMENT_NONE       UINT32_MAX
#define MOMENT_NEVER      UINT64_MAX

typedef enum moment_event {
    MOMENT_FORWARD,
    MOMENT_BACKWARD,
    MOMENT_GRADIENT,
    MOMENT_OPTIMIZER,
    MOMENT_EVENT_COUNT
} moment_event;
extern const char *const moment_event_names[MOMENT_EVENT_COUNT];

typedef struct moment {
    uint64_t begin_ns; /* since the step began, without waits for moves */
    uint64_t non_model_bytes;
    uint64_t prefix; /* hash of the events so far, this one included */
    uint32_t first_use, identity, event;
} moment;

typedef struct moment_use {
    uint32_t chunk, moment;
    uint32_t next; /* of the same chunk, in this recording; MOMENT_NONE: the last */
    uint32_t write;
} moment_use;

typedef struct moment_recording {
    moment *moments;
    moment_use *uses;
    uint32_t *first_use; /* by chunk; MOMENT_NONE: not used */
    uint32_t moments_count, uses_count;
    uint32_t successor; /* the recording that the step after this one followed */
    uint64_t step_ns, followed;
    bool complete;
} moment_recording;

typedef struct moments_settings {
    uint32_t moments_max, uses_max;
    uint32_t slack; /* a use may come so many moments early or late, because of threads */
} moments_settings;

typedef struct moments {
    moments_settings settings;
    moment_recording recordings[MOMENT_RECORDINGS];
    uint32_t current;  /* the recording that is written or followed */
    uint32_t position; /* the present moment; MOMENT_NONE: before the first */
    uint32_t previous; /* what the step before this one followed or recorded; MOMENT_NONE: it is gone */
    uint32_t chunks;
    uint32_t *next_use; /* by chunk, following: its next use in this step; recording: its last use so far */
    uint32_t *passed;   /* by chunk, following: its last use that is past */
    bool following, lost;
    uint64_t base; /* moments of all steps before this one */
    uint64_t step_begin_ns;
    uint64_t steps, warmups, deviations;
    uint32_t unforeseen; /* uses in this step */
    uint32_t odd_steps,
        odd_steps_most; /* steps in a row with such uses; so many are allowed before a new recording */
} moments;

/* Tables, zeroed or not; moments_bytes of them. */
uint64_t moments_bytes(const moments_settings *settings);
void moments_init(moments *m, const moments_settings *settings, void *tables, uint64_t now_ns);
/* Goes on with tables for more chunks, of 2 + MOMENT_RECORDINGS elements for each. */
void moments_grow(moments *m, uint32_t *tables, uint32_t chunks_room);
void moments_add_chunk(moments *m);
/* The chunk is another one from now on: what is recorded of its uses says nothing. */
void moments_forget_chunk(moments *m, uint32_t chunk);

/* What is known of the future has changed for: */
typedef enum moments_change { MOMENTS_PASSED, MOMENTS_ALL } moments_change;
typedef struct moments_verdict {
    moments_change change;
    uint32_t passed_first, passed_end; /* these uses of the recording, nothing else */
} moments_verdict;

/* An event: a moment ends, with that peak of non-model data, and the next one begins. `headroom`: of non-model data above the
 * recorded peak that needs no new warm-up. */
moments_verdict moments_begin(moments *m, moment_event event, uint32_t identity, uint64_t now_ns,
                              uint64_t non_model_bytes, uint64_t headroom);
/* False: it was not foreseen, and what is known has changed for all chunks. */
bool moments_use(moments *m, uint32_t chunk, bool write);
/* The step is over: a recording is complete from here on. All chunks' futures have changed. */
void moments_step_end(moments *m, uint64_t now_ns, uint64_t non_model_bytes, uint64_t headroom);

/* The moment of the chunk's next use, counted over all steps; MOMENT_NEVER: none is known. */
uint64_t moments_next_use(const moments *m, uint32_t chunk);
/* The same, of the present moment. */
uint64_t moments_now(const moments *m);
/* Recorded peak of non-model data in the present moment; 0 before the first and in warm-up. */
uint64_t moments_non_model(const moments *m);

/* What comes, in order: number 0 is the first use of this step, and those of the next step follow. */
typedef struct moments_upcoming {
    uint32_t chunk;
    uint64_t moment;   /* as moments_next_use */
    uint64_t begin_ns; /* since this step began; the moment's */
    uint64_t non_model_bytes;
} moments_upcoming;
/* False: nothing is known beyond. */
bool moments_upcoming_get(const moments *m, uint64_t number, moments_upcoming *out);
/* The number of the first use of the present moment, and of a chunk's next one (MOMENT_NEVER: none). */
uint64_t moments_number_now(const moments *m);
uint64_t moments_number_of(const moments *m, uint32_t chunk);
/* The moment of the next use of the same chunk after the use of that number, which is known; MOMENT_NEVER: there is none. */
uint64_t moments_use_after(const moments *m, uint64_t number);
/* When the present moment and the next one begin, since the step began. */
void moments_times(const moments *m, uint64_t *present_ns, uint64_t *next_ns);

/* Writes the text but for its first line and those of chunks, piece by piece, of the recording that is followed, or was last;
 * false: there is none. */
typedef void moments_sink(void *context, const char *text, uint64_t length);
bool moments_known(const moments *m);
bool moments_write(const moments *m, moments_sink *sink, void *context);

/* NULL, or what is not as it must be. */
const char *moments_check(const moments *m);

#endif
