#include "moments.h"

#include <string.h>
#include "base/log.h"

#define TIME_WEIGHT     4    /* a new time counts one in so many */
#define ODD_STEPS_FIRST 4    /* steps with uses that were not foreseen, before all is recorded anew */
#define ODD_STEPS_LAST  1024 /* and so many if that does not help, twice as many each time */
#define TOLERATED(uses) (1 + (uses) / 16)

const char *const moment_event_names[MOMENT_EVENT_COUNT] = {"forward", "backward", "gradient", "optimizer"};

static moment_recording *current_of(moments *m) {
    return &m->recordings[m->current];
}

static uint64_t mix(uint64_t prefix, moment_event event, uint32_t identity) {
    uint64_t x = prefix ^ ((uint64_t)event << 32 | identity) ^ UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint64_t prefix_of(const moment_recording *r, uint32_t position) {
    return position == MOMENT_NONE ? 0 : r->moments[position].prefix;
}

static uint32_t uses_end(const moment_recording *r, uint32_t position) {
    return position + 1 < r->moments_count ? r->moments[position + 1].first_use : r->uses_count;
}

/* The recording that the step after one of a complete recording is expected to follow. */
static const moment_recording *after(const moments *m, const moment_recording *r) {
    const moment_recording *next = &m->recordings[r->successor];
    return next->complete ? next : r;
}

static const moment_recording *successor_of(const moments *m) {
    return after(m, &m->recordings[m->current]);
}

uint64_t moments_bytes(const moments_settings *settings) {
    return MOMENT_RECORDINGS *
           (settings->moments_max * sizeof(moment) + settings->uses_max * sizeof(moment_use));
}

void moments_init(moments *m, const moments_settings *settings, void *tables, uint64_t now_ns) {
    *m = (moments){.settings = *settings,
                   .position = MOMENT_NONE,
                   .previous = MOMENT_NONE,
                   .step_begin_ns = now_ns,
                   .warmups = 1,
                   .odd_steps_most = ODD_STEPS_FIRST};
    moment *at = tables;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++, at += settings->moments_max)
        m->recordings[i].moments = at;
    moment_use *use = (moment_use *)at;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++, use += settings->uses_max)
        m->recordings[i].uses = use;
}

void moments_grow(moments *m, uint32_t *tables, uint32_t chunks_room) {
    uint32_t **arrays[2 + MOMENT_RECORDINGS] = {&m->next_use, &m->passed};
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++)
        arrays[2 + i] = &m->recordings[i].first_use;
    for (uint32_t i = 0; i < 2 + MOMENT_RECORDINGS; i++) {
        uint32_t *grown = tables + (uint64_t)i * chunks_room;
        if (m->chunks)
            memcpy(grown, *arrays[i], m->chunks * sizeof *grown);
        *arrays[i] = grown;
    }
}

void moments_add_chunk(moments *m) {
    uint32_t chunk = m->chunks++;
    m->next_use[chunk] = m->passed[chunk] = MOMENT_NONE;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++)
        m->recordings[i].first_use[chunk] = MOMENT_NONE;
    /* What was recorded of this step lacks the uses that it has had already: its next step is recorded. */
    m->lost |= !m->following && m->position != MOMENT_NONE;
}

void moments_forget_chunk(moments *m, uint32_t chunk) {
    m->next_use[chunk] = m->passed[chunk] = MOMENT_NONE;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++)
        m->recordings[i].first_use[chunk] = MOMENT_NONE;
}

/* From the present moment on, by the current recording. */
static void follow(moments *m) {
    moment_recording *r = current_of(m);
    m->following = true;
    memset(m->passed, 0xff, m->chunks * sizeof *m->passed);
    memcpy(m->next_use, r->first_use, m->chunks * sizeof *m->next_use);
    if (m->position == MOMENT_NONE)
        return;
    for (uint32_t i = 0; i < r->moments[m->position].first_use; i++) {
        m->passed[r->uses[i].chunk] = i;
        m->next_use[r->uses[i].chunk] = r->uses[i].next;
    }
}

static void append_use(moments *m, uint32_t chunk, bool write) {
    moment_recording *r = current_of(m);
    uint32_t last = m->next_use[chunk], use = r->uses_count;
    if (last != MOMENT_NONE && r->uses[last].moment == m->position) {
        r->uses[last].write |= write;
        return;
    }
    if (use == m->settings.uses_max) {
        m->lost = true;
        return;
    }
    r->uses_count++;
    r->uses[use] = (moment_use){chunk, m->position, MOMENT_NONE, write};
    if (last == MOMENT_NONE)
        r->first_use[chunk] = use;
    else
        r->uses[last].next = use;
    m->next_use[chunk] = use;
}

static void append_moment(moments *m, moment_event event, uint32_t identity, uint64_t begin_ns) {
    moment_recording *r = current_of(m);
    uint32_t position = r->moments_count;
    if (position == m->settings.moments_max) {
        m->lost = true;
        return;
    }
    r->moments[position] = (moment){begin_ns,      0,        mix(prefix_of(r, m->position), event, identity),
                                    r->uses_count, identity, event};
    m->position = position;
    r->moments_count++;
}

static uint32_t least_followed(const moments *m) {
    uint32_t least = MOMENT_NONE;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++)
        if (i != m->current &&
            (least == MOMENT_NONE || !m->recordings[i].complete ||
             (m->recordings[least].complete && m->recordings[i].followed < m->recordings[least].followed)))
            least = i;
    return least;
}

/* Warm-up, which takes over the step so far from the recording that was followed. */
static void record_anew(moments *m) {
    const moment_recording *old = current_of(m);
    uint32_t position = m->position;
    m->current = least_followed(m);
    m->following = m->lost = false;
    m->warmups++;
    if (m->previous == m->current)
        m->previous = MOMENT_NONE;
    moment_recording *r = current_of(m);
    r->complete = false;
    r->moments_count = r->uses_count = 0;
    r->successor = m->current;
    memset(r->first_use, 0xff, m->chunks * sizeof *r->first_use);
    memset(m->next_use, 0xff, m->chunks * sizeof *m->next_use);
    if (position == MOMENT_NONE)
        return;
    uint32_t end = uses_end(old, position);
    memcpy(r->moments, old->moments, (position + 1) * sizeof *r->moments);
    r->moments_count = position + 1;
    for (uint32_t i = 0; i < end; i++) {
        m->position = old->uses[i].moment;
        append_use(m, old->uses[i].chunk, old->uses[i].write);
    }
    m->position = position;
}

/* Another recording that is like this step so far. `count`: all of its moments; MOMENT_NONE: it may have more. */
static bool switch_recording(moments *m, uint64_t prefix, uint32_t position, uint32_t count) {
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++) {
        const moment_recording *r = &m->recordings[i];
        if (i == m->current || !r->complete || position >= r->moments_count ||
            r->moments[position].prefix != prefix || (count != MOMENT_NONE && count != r->moments_count))
            continue;
        m->current = i;
        m->position = position;
        follow(m);
        return true;
    }
    return false;
}

/* More than recorded in one moment may be a matter of threads, more than in any one is another kind of step. */
static void end_moment(moments *m, uint64_t non_model_bytes, uint64_t headroom) {
    if (m->position == MOMENT_NONE)
        return;
    moment_recording *r = current_of(m);
    moment *at = &r->moments[m->position];
    if (non_model_bytes <= at->non_model_bytes)
        return;
    uint64_t recorded = 0;
    for (uint32_t i = 0; m->following && i < r->moments_count; i++)
        recorded = r->moments[i].non_model_bytes > recorded ? r->moments[i].non_model_bytes : recorded;
    at->non_model_bytes = non_model_bytes;
    if (m->following && non_model_bytes > recorded && non_model_bytes - recorded > headroom) {
        m->deviations++;
        LOG_D("moments: %u has %B of other data, %B more than recorded", m->position, non_model_bytes,
              non_model_bytes - recorded);
        record_anew(m);
    }
}

moments_verdict moments_begin(moments *m, moment_event event, uint32_t identity, uint64_t now_ns,
                              uint64_t non_model_bytes, uint64_t headroom) {
    uint64_t begin_ns = now_ns - m->step_begin_ns;
    bool was_following = m->following;
    end_moment(m, non_model_bytes, headroom);
    if (!m->following) {
        append_moment(m, event, identity, begin_ns);
        return (moments_verdict){was_following ? MOMENTS_ALL : MOMENTS_PASSED, 0, 0};
    }
    moment_recording *r = current_of(m);
    uint64_t prefix = mix(prefix_of(r, m->position), event, identity);
    uint32_t position = m->position == MOMENT_NONE ? 0 : m->position + 1;
    if (position >= r->moments_count || r->moments[position].prefix != prefix) {
        m->deviations++;
        LOG_D("moments: %u of %u is %s %u, not %s %u as recorded", position, r->moments_count,
              moment_event_names[event], identity,
              position < r->moments_count ? moment_event_names[r->moments[position].event] : "the end",
              position < r->moments_count ? r->moments[position].identity : 0);
        if (!switch_recording(m, prefix, position, MOMENT_NONE)) {
            record_anew(m);
            append_moment(m, event, identity, begin_ns);
        }
        return (moments_verdict){MOMENTS_ALL, 0, 0};
    }
    m->position = position;
    moment *at = &r->moments[position];
    if (begin_ns > at->begin_ns)
        at->begin_ns += (begin_ns - at->begin_ns) / TIME_WEIGHT;
    else
        at->begin_ns -= (at->begin_ns - begin_ns) / TIME_WEIGHT;
    moments_verdict verdict = {MOMENTS_PASSED, 0, 0};
    if (position > m->settings.slack) {
        uint32_t past = position - 1 - m->settings.slack;
        verdict.passed_first = r->moments[past].first_use;
        verdict.passed_end = uses_end(r, past);
    }
    for (uint32_t i = verdict.passed_first; i < verdict.passed_end; i++) {
        uint32_t chunk = r->uses[i].chunk;
        if (m->next_use[chunk] != i)
            continue; /* it was used */
        m->passed[chunk] = i;
        m->next_use[chunk] = r->uses[i].next;
    }
    return verdict;
}

bool moments_use(moments *m, uint32_t chunk, bool write) {
    if (m->position == MOMENT_NONE)
        return true; /* between steps: nobody foresees that */
    if (!m->following) {
        append_use(m, chunk, write);
        return true;
    }
    const moment_recording *r = current_of(m);
    uint32_t next = m->next_use[chunk], passed = m->passed[chunk];
    /* Who has had this moment's use already comes again. */
    if (passed != MOMENT_NONE && r->uses[passed].moment == m->position)
        return true;
    if (next != MOMENT_NONE && r->uses[next].moment <= (uint64_t)m->position + m->settings.slack) {
        m->passed[chunk] = next;
        m->next_use[chunk] = r->uses[next].next;
        return true;
    }
    if (passed != MOMENT_NONE && r->uses[passed].moment + (uint64_t)m->settings.slack >= m->position)
        return true;
    m->unforeseen++;
    if (m->unforeseen <= TOLERATED(r->uses_count))
        return true;
    m->deviations++;
    LOG_D("moments: %u uses were not foreseen, the last in %u of %u", m->unforeseen, m->position,
          r->moments_count);
    record_anew(m);
    append_use(m, chunk, write);
    return false;
}

/* Of two recordings of the same events the older one is out of date. */
static void drop_equals(moments *m) {
    const moment_recording *r = current_of(m);
    uint64_t whole = prefix_of(r, m->position);
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++) {
        moment_recording *other = &m->recordings[i];
        if (i != m->current && other->complete && other->moments_count == r->moments_count &&
            other->moments[other->moments_count - 1].prefix == whole) {
            other->complete = false;
            for (uint32_t j = 0; j < MOMENT_RECORDINGS; j++)
                if (m->recordings[j].successor == i)
                    m->recordings[j].successor = m->current;
            if (m->previous == i)
                m->previous = MOMENT_NONE;
        }
    }
}

/* Whether uses that no recording foresees have come step after step. */
static bool odd_for_long(moments *m) {
    m->odd_steps = m->unforeseen ? m->odd_steps + 1 : 0;
    m->unforeseen = 0;
    if (m->odd_steps < m->odd_steps_most)
        return false;
    m->odd_steps = 0;
    if (m->odd_steps_most < ODD_STEPS_LAST)
        m->odd_steps_most *= 2;
    return true;
}

void moments_step_end(moments *m, uint64_t now_ns, uint64_t non_model_bytes, uint64_t headroom) {
    end_moment(m, non_model_bytes, headroom);
    if (m->position == MOMENT_NONE)
        return; /* a step without an event says nothing */
    uint32_t count = m->position + 1;
    if (m->following && count != current_of(m)->moments_count) {
        m->deviations++;
        LOG_D("moments: %u of %u, and the step is over", count, current_of(m)->moments_count);
        if (!switch_recording(m, prefix_of(current_of(m), m->position), m->position, count))
            record_anew(m);
    }
    moment_recording *r = current_of(m);
    r->step_ns = now_ns - m->step_begin_ns;
    r->followed = ++m->steps;
    m->base += count;
    m->step_begin_ns = now_ns;
    if (!m->following) {
        r->complete = !m->lost;
        if (r->complete)
            drop_equals(m);
    }
    if (m->previous != MOMENT_NONE)
        m->recordings[m->previous].successor = m->current;
    m->previous = m->current;
    bool anew = !r->complete || odd_for_long(m);
    m->position = MOMENT_NONE;
    if (anew) {
        record_anew(m);
        return;
    }
    m->current = r->successor;
    if (!current_of(m)->complete)
        m->current = (uint32_t)(r - m->recordings);
    follow(m);
}

uint64_t moments_now(const moments *m) {
    return m->base + (m->position == MOMENT_NONE ? 0 : m->position);
}

uint64_t moments_next_use(const moments *m, uint32_t chunk) {
    if (!m->following)
        return MOMENT_NEVER;
    const moment_recording *r = &m->recordings[m->current], *then = successor_of(m);
    if (m->next_use[chunk] != MOMENT_NONE)
        return m->base + r->uses[m->next_use[chunk]].moment;
    uint32_t first = then->first_use[chunk];
    return first == MOMENT_NONE ? MOMENT_NEVER : m->base + r->moments_count + then->uses[first].moment;
}

uint64_t moments_non_model(const moments *m) {
    if (!m->following || m->position == MOMENT_NONE)
        return 0;
    return m->recordings[m->current].moments[m->position].non_model_bytes;
}

bool moments_upcoming_get(const moments *m, uint64_t number, moments_upcoming *out) {
    if (!m->following)
        return false;
    const moment_recording *r = &m->recordings[m->current];
    uint64_t moments_before = m->base, ns_before = 0;
    if (number >= r->uses_count) {
        number -= r->uses_count;
        moments_before += r->moments_count;
        ns_before = r->step_ns;
        r = successor_of(m);
        if (number >= r->uses_count)
            return false;
    }
    const moment_use *use = &r->uses[number];
    const moment *at = &r->moments[use->moment];
    *out = (moments_upcoming){use->chunk, moments_before + use->moment, ns_before + at->begin_ns,
                              at->non_model_bytes};
    return true;
}

uint64_t moments_number_now(const moments *m) {
    return m->position == MOMENT_NONE ? 0 : m->recordings[m->current].moments[m->position].first_use;
}

uint64_t moments_number_of(const moments *m, uint32_t chunk) {
    if (!m->following)
        return MOMENT_NEVER;
    if (m->next_use[chunk] != MOMENT_NONE)
        return m->next_use[chunk];
    uint32_t first = successor_of(m)->first_use[chunk];
    return first == MOMENT_NONE ? MOMENT_NEVER : (uint64_t)m->recordings[m->current].uses_count + first;
}

uint64_t moments_use_after(const moments *m, uint64_t number) {
    const moment_recording *r = &m->recordings[m->current];
    uint64_t before = m->base;
    if (number >= r->uses_count) {
        number -= r->uses_count;
        before += r->moments_count;
        r = successor_of(m);
    }
    const moment_use *use = &r->uses[number];
    if (use->next != MOMENT_NONE)
        return before + r->uses[use->next].moment;
    const moment_recording *then = after(m, r);
    uint32_t first = then->first_use[use->chunk];
    return first == MOMENT_NONE ? MOMENT_NEVER : before + r->moments_count + then->uses[first].moment;
}

void moments_times(const moments *m, uint64_t *present_ns, uint64_t *next_ns) {
    const moment_recording *r = &m->recordings[m->current];
    uint32_t next = m->position == MOMENT_NONE ? 0 : m->position + 1;
    *present_ns = m->position == MOMENT_NONE ? 0 : r->moments[m->position].begin_ns;
    *next_ns = next < r->moments_count ? r->moments[next].begin_ns : r->step_ns;
}

/* The recording that is followed, or was last; NULL: no step is over. */
static const moment_recording *latest(const moments *m) {
    const moment_recording *found = m->following ? &m->recordings[m->current] : NULL;
    for (uint32_t i = 0; i < MOMENT_RECORDINGS && !m->following; i++)
        if (m->recordings[i].complete && (!found || m->recordings[i].followed > found->followed))
            found = &m->recordings[i];
    return found;
}

bool moments_known(const moments *m) {
    return latest(m) != NULL;
}

bool moments_write(const moments *m, moments_sink *sink, void *context) {
    const moment_recording *r = latest(m);
    char line[160];
    if (!r)
        return false;
    for (uint32_t i = 0; i < r->moments_count; i++) {
        const moment *at = &r->moments[i];
        sink(context, line,
             log_format(line, sizeof line, "moment %s %u %llu %llu\n", moment_event_names[at->event],
                        at->identity, (unsigned long long)at->begin_ns,
                        (unsigned long long)at->non_model_bytes));
        for (uint32_t use = at->first_use; use < uses_end(r, i); use++)
            sink(context, line,
                 log_format(line, sizeof line, "use %u %c\n", r->uses[use].chunk,
                            r->uses[use].write ? 'w' : 'r'));
    }
    sink(context, line, log_format(line, sizeof line, "end %llu\n", (unsigned long long)r->step_ns));
    return true;
}

static const char *recording_check(const moments *m, const moment_recording *r) {
    if (r->moments_count > m->settings.moments_max || r->uses_count > m->settings.uses_max)
        return "a recording is larger than its tables";
    uint32_t use = 0;
    for (uint32_t i = 0; i < r->moments_count; i++) {
        if (r->moments[i].first_use != use)
            return "a moment's uses do not begin where those before it end";
        for (; use < uses_end(r, i); use++) {
            uint32_t next = r->uses[use].next;
            if (r->uses[use].moment != i)
                return "a use is not in its moment";
            if (next != MOMENT_NONE &&
                (next <= use || next >= r->uses_count || r->uses[next].chunk != r->uses[use].chunk))
                return "the next use of a chunk is not one";
        }
    }
    return use == r->uses_count ? NULL : "uses belong to no moment";
}

const char *moments_check(const moments *m) {
    if (m->position != MOMENT_NONE && m->position >= m->recordings[m->current].moments_count)
        return "the present moment is beyond the recording";
    if (m->following && !m->recordings[m->current].complete)
        return "a recording is followed that is not complete";
    for (uint32_t i = 0; i < MOMENT_RECORDINGS; i++) {
        const moment_recording *r = &m->recordings[i];
        const char *wrong = r->complete || i == m->current ? recording_check(m, r) : NULL;
        if (wrong)
            return wrong;
    }
    for (uint32_t chunk = 0; m->following && chunk < m->chunks; chunk++) {
        uint32_t next = m->next_use[chunk];
        if (next != MOMENT_NONE && m->recordings[m->current].uses[next].chunk != chunk)
            return "a chunk's next use is another chunk's";
    }
    return NULL;
}
