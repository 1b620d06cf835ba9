/* The records as trace events: ranks are processes, threads are tracks, CUDA streams are tracks of what was put on them, each
 * process group has a track of its own, gauges of memory are counters. Collectives that are one and the same on several ranks are joined by flow events. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "hooks/table/hooks.h"
#include "launcher/common/json.h"
#include "launcher/common/trace_event.h"
#include "collective_statistics.h"
#include "pipeline_passes.h"
#include "report.h"

/* A process's name for a stream. Handles below 3 mean the default stream of a device. */
typedef struct report_stream {
    uint64_t handle;
    uint32_t device; /* UINT32_MAX: the handle alone identifies the stream */
} report_stream;

/* For one process at a time: which of its hooks put work on streams. Zeroed at first. */
typedef struct report_stream_hooks {
    const report_process *process;
    uint8_t known[1024]; /* by hook id */
} report_stream_hooks;

/* Where each collective is drawn. */

enum { TRACKS_PER_PROCESS_GROUP = 32 }; /* report_entry.track has five bits */

static const report_collectives *sorting; /* qsort passes no context */

static int compare_by_group(const void *left, const void *right) {
    const report_entry *a = left, *b = right;
    const report_key *key_a = &sorting->keys[a->key], *key_b = &sorting->keys[b->key];
    if (key_a->process != key_b->process)
        return sorting->places[key_a->process] < sorting->places[key_b->process] ? -1 : 1;
    if (key_a->group != key_b->group)
        return key_a->group < key_b->group ? -1 : 1;
    return a->begin_job_ns < b->begin_job_ns ? -1 : a->begin_job_ns > b->begin_job_ns;
}

static void give_turns(report_collectives *collectives, const report_match *match) {
    const report_sequence *sequences = &collectives->sequences[match->first_sequence];
    for (size_t j = 0; j < match->sequences; j++)
        for (size_t i = 0; i < sequences[j].entries; i++)
            collectives->entries[sequences[j].first_entry + i].instance = i & 0x1ffffff;
    for (size_t i = 0; i < match->instances; i++) {
        report_entry *first = &collectives->entries[sequences[0].first_entry + i], *last = first;
        for (size_t j = 0; j < match->sequences; j++) {
            report_entry *entry = &collectives->entries[sequences[j].first_entry + i];
            entry->turn = REPORT_TURN_MIDDLE;
            if (entry->begin_job_ns < first->begin_job_ns)
                first = entry;
            if (entry->begin_job_ns >= last->begin_job_ns)
                last = entry;
        }
        first->turn = REPORT_TURN_FIRST;
        last->turn = REPORT_TURN_LAST;
    }
}

void report_collectives_tracks(report_collectives *collectives) {
    uint64_t end_ns[TRACKS_PER_PROCESS_GROUP] = {0};
    const report_key *before = NULL;
    if (collectives->entry_count == 0)
        return;
    for (size_t i = 0; i < collectives->match_count; i++)
        give_turns(collectives, &collectives->matches[i]);
    sorting = collectives;
    qsort(collectives->entries, collectives->entry_count, sizeof *collectives->entries, compare_by_group);
    for (size_t i = 0; i < collectives->entry_count; i++) {
        report_entry *entry = &collectives->entries[i];
        const report_key *key = &collectives->keys[entry->key];
        if (before == NULL || before->process != key->process || before->group != key->group)
            memset(end_ns, 0, sizeof end_ns);
        before = key;
        unsigned track = 0;
        while (track + 1 < TRACKS_PER_PROCESS_GROUP && end_ns[track] > entry->begin_job_ns)
            track++;
        entry->track = track & (TRACKS_PER_PROCESS_GROUP - 1);
        end_ns[track] = entry->begin_job_ns + entry->ns;
    }
}

/* Handles that the runtime and the driver give a meaning: 0 and 1 are the legacy default stream, 2 a thread's own. */
#define STREAM_LEGACY     1
#define STREAM_PER_THREAD 2

enum { HOOK_UNKNOWN, HOOK_ON_STREAM, HOOK_ON_HOST };

/* Calls about a stream whose work, or whose waiting, is the host's. */
static bool is_of_host(const char *name) {
    static const char *const parts[] = {"StreamCreate", "StreamDestroy", "StreamSynchronize",
                                        "StreamBeginCapture", "StreamEndCapture"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]) != NULL)
            return true;
    return false;
}

/* By name: ids are those of the library that wrote the trace. A collective's hook names its CALL too. */
static uint8_t find_hook(const report_process *process, uint32_t id) {
    const char *name = trace_read_name(process->counters, TRACE_CALL, id);
    for (int i = 0; name != NULL && i < HOOK_COUNT; i++)
        if (hook_table[i].has_stream && strcmp(hook_table[i].name, name) == 0)
            return is_of_host(name) ? HOOK_ON_HOST : HOOK_ON_STREAM;
    return HOOK_ON_HOST;
}

/* The stream that a CALL or COLLECTIVE has put its work on. False: on none, or unknown. */
static bool report_stream_of(report_stream_hooks *hooks, const report_process *process,
                             const trace_record *record, report_stream *out) {
    if ((record->kind != TRACE_CALL && record->kind != TRACE_COLLECTIVE) || record->id >= sizeof hooks->known)
        return false;
    if (hooks->process != process) {
        memset(hooks->known, HOOK_UNKNOWN, sizeof hooks->known);
        hooks->process = process;
    }
    uint8_t *known = &hooks->known[record->id];
    if (*known == HOOK_UNKNOWN)
        *known = find_hook(process, record->id);
    /* Of a call that failed, nothing but the result is recorded. */
    bool failed = record->kind == TRACE_CALL && record->c >> 32 != 0;
    if (*known != HOOK_ON_STREAM || failed)
        return false;
    *out = (report_stream){record->kind == TRACE_CALL ? record->a : record->c, UINT32_MAX};
    if (out->handle <= STREAM_PER_THREAD) {
        out->handle = out->handle == STREAM_PER_THREAD ? STREAM_PER_THREAD : STREAM_LEGACY;
        out->device = record->kind == TRACE_CALL ? (uint32_t)record->c : (uint32_t)(record->a >> 32);
    }
    return true;
}

/* "stream 0x55d0c8a0", "default stream of device 0". */
static void report_stream_name(const report_stream *stream, char *out, size_t out_size) {
    if (stream->handle == STREAM_LEGACY)
        snprintf(out, out_size, "default stream of device %" PRIu32, stream->device);
    else if (stream->handle == STREAM_PER_THREAD)
        snprintf(out, out_size, "a thread's default stream of device %" PRIu32, stream->device);
    else
        snprintf(out, out_size, "stream %#" PRIx64, stream->handle);
}

/* Numbers of what is drawn beside threads; Linux's thread ids are below 4194304. */
#define TRACK_STEPS       5000000u
#define TRACK_COLLECTIVES 6000000u
#define TRACK_STREAMS     7000000u
#define TRACK_COPIES      8000000u
#define TRACK_PASSES      9000000u
#define COPY_DEVICES      4096u    /* beyond them a damaged file */
#define OTHER_PROCESSES   1000000u /* processes that are no rank are numbered from here */
#define LABEL_MAX         512
#define STREAMS_MAX       4096u /* work on those beyond them is drawn on its thread */

typedef struct named_track {
    uint32_t process, track;
    bool used;
} named_track;

/* A stream as one thread uses it: slices of one track must not overlap, and calls of different threads may. */
typedef struct stream_track {
    report_stream stream;
    uint32_t process, thread;
} stream_track;

typedef struct drawing {
    const report *report;
    trace_event_writer *events;
    const report_process *process; /* whose labels these are */
    char *labels[TRACE_SLOT_MAX];  /* escaped; made when first used */
    named_track *named;            /* a hash table of the tracks that have names */
    size_t named_count, named_capacity;
    /* What the record before was: most of a segment's are of one process and thread. */
    const report_process *last_process;
    uint32_t last_number, last_track;
    report_stream_hooks stream_hooks;
    stream_track *streams;
    size_t stream_count, stream_capacity, last_stream;
    bool failed;
} drawing;

static uint32_t process_number(const report *report, const report_process *process) {
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].process == process && report->ranks[i].rank >= 0)
            return (uint32_t)report->ranks[i].rank;
    return OTHER_PROCESSES + (uint32_t)(process - report->processes);
}

/* ---- names ---- */

static void write_metadata(drawing *drawing, const char *what, uint32_t process, uint32_t track,
                           const char *name) {
    char escaped[LABEL_MAX];
    trace_event_escape(escaped, sizeof escaped, name);
    trace_event_begin(drawing->events, 'M', process, track);
    trace_event_name(drawing->events, what);
    trace_event_arguments(drawing->events);
    trace_event_text(drawing->events, "name", escaped);
    trace_event_end(drawing->events);
}

static void write_order(drawing *drawing, const char *what, uint32_t process, uint32_t track,
                        uint64_t order) {
    trace_event_begin(drawing->events, 'M', process, track);
    trace_event_name(drawing->events, what);
    trace_event_arguments(drawing->events);
    trace_event_number(drawing->events, "sort_index", order);
    trace_event_end(drawing->events);
}

static void name_track(drawing *drawing, uint32_t process, uint32_t track, const char *name, uint64_t order) {
    write_metadata(drawing, "thread_name", process, track, name);
    write_order(drawing, "thread_sort_index", process, track, order);
}

static size_t find_track(const drawing *drawing, uint32_t process, uint32_t track) {
    uint64_t hash = ((uint64_t)process << 32 | track) * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (hash >> 20) % drawing->named_capacity;
    while (drawing->named[at].used &&
           (drawing->named[at].process != process || drawing->named[at].track != track))
        at = (at + 1) % drawing->named_capacity;
    return at;
}

static bool grow_tracks(drawing *drawing) {
    struct drawing larger = *drawing;
    larger.named_capacity = drawing->named_capacity == 0 ? 256 : drawing->named_capacity * 2;
    larger.named = calloc(larger.named_capacity, sizeof *larger.named);
    if (larger.named == NULL)
        return false;
    for (size_t i = 0; i < drawing->named_capacity; i++)
        if (drawing->named[i].used)
            larger.named[find_track(&larger, drawing->named[i].process, drawing->named[i].track)] =
                drawing->named[i];
    free(drawing->named);
    drawing->named = larger.named;
    drawing->named_capacity = larger.named_capacity;
    return true;
}

/* True the first time: the caller then names the track. */
static bool is_new_track(drawing *drawing, uint32_t process, uint32_t track) {
    if (2 * drawing->named_count >= drawing->named_capacity && !grow_tracks(drawing)) {
        drawing->failed = true;
        return false;
    }
    size_t at = find_track(drawing, process, track);
    if (drawing->named[at].used)
        return false;
    drawing->named[at] = (named_track){process, track, true};
    drawing->named_count++;
    return true;
}

static const char *label_of(drawing *drawing, const report_process *process, uint32_t kind, uint32_t id) {
    if (drawing->process != process) {
        for (size_t i = 0; i < TRACE_SLOT_MAX; i++) {
            free(drawing->labels[i]);
            drawing->labels[i] = NULL;
        }
        drawing->process = process;
    }
    char **label = &drawing->labels[trace_slot(kind, id)];
    if (*label == NULL) {
        char fallback[32], name[LABEL_MAX], escaped[LABEL_MAX];
        report_shorten_symbol(name, sizeof name, report_id_name(process->counters, kind, id, fallback));
        trace_event_escape(escaped, sizeof escaped, name);
        *label = strdup(escaped);
    }
    drawing->failed |= *label == NULL;
    return *label == NULL ? "" : *label;
}

static void write_processes(drawing *drawing) {
    const report *report = drawing->report;
    for (size_t i = 0; i < report->process_count; i++) {
        const report_process *process = &report->processes[i];
        const trace_counters *counters = process->counters;
        uint32_t number = process_number(report, process);
        char name[256];
        if (number < OTHER_PROCESSES)
            snprintf(name, sizeof name, "rank %" PRIu32 " (%s, pid %u)", number, counters->host,
                     counters->pid);
        else
            snprintf(name, sizeof name, "%s (%s, pid %u)",
                     counters->parent_uid != 0 ? "forked process" : "other process", counters->host,
                     counters->pid);
        write_metadata(drawing, "process_name", number, 0, name);
        write_order(drawing, "process_sort_index", number, 0, number);
    }
}

/* ---- slices ---- */

static void begin_slice(drawing *drawing, const char *category, const char *name, uint32_t process,
                        uint32_t track, uint64_t begin_ns, uint64_t ns) {
    trace_event_begin(drawing->events, 'X', process, track);
    trace_event_ns(drawing->events, "ts", begin_ns);
    trace_event_ns(drawing->events, "dur", ns);
    trace_event_text(drawing->events, "cat", category);
    trace_event_name(drawing->events, name);
}

/* From the end of one step of the busiest optimizer to the end of its next: what people call a step. */
static void write_steps(drawing *drawing, const report_rank *rank) {
    const report_process *process = rank->process;
    uint32_t number = process_number(drawing->report, process);
    uint64_t begin_ns = 0, count = 0;
    for (size_t i = 0; i < process->steps.count; i++) {
        const report_step *step = &process->steps.rows[i];
        if (step->optimizer != rank->busiest_optimizer)
            continue;
        uint64_t end_ns = report_job_ns(drawing->report, process, step->begin_ns) + UINT64_C(1000) * step->us;
        if (count++ == 0) {
            name_track(drawing, number, TRACK_STEPS, "steps", 0);
        } else {
            char name[32];
            snprintf(name, sizeof name, "step %" PRIu64, count);
            begin_slice(drawing, "step", name, number, TRACK_STEPS, begin_ns,
                        end_ns > begin_ns ? end_ns - begin_ns : 0);
            trace_event_end(drawing->events);
        }
        begin_ns = end_ns;
    }
}

static void write_flow(drawing *drawing, const report_entry *entry, const char *name, uint32_t process,
                       uint32_t track) {
    static const char phases[] = {
        [REPORT_TURN_FIRST] = 's', [REPORT_TURN_MIDDLE] = 't', [REPORT_TURN_LAST] = 'f'};
    const report_collectives *collectives = drawing->report->matched;
    uint64_t match = collectives->sequences[collectives->keys[entry->key].sequence].match;
    trace_event_begin(drawing->events, phases[entry->turn], process, track);
    trace_event_ns(drawing->events, "ts", entry->begin_job_ns);
    trace_event_text(drawing->events, "cat", "collective");
    trace_event_name(drawing->events, name);
    trace_event_number(drawing->events, "id", (match << 25) + entry->instance + 1);
    if (entry->turn != REPORT_TURN_FIRST)
        trace_event_text(drawing->events, "bp", "e");
    trace_event_end(drawing->events);
}

static void write_collectives(drawing *drawing) {
    report_collectives *collectives = drawing->report->matched;
    report_collectives_tracks(collectives);
    for (size_t i = 0; i < collectives->entry_count; i++) {
        const report_entry *entry = &collectives->entries[i];
        const report_key *key = &collectives->keys[entry->key];
        const report_process_group *group = &collectives->groups[key->group];
        uint32_t number = process_number(drawing->report, &drawing->report->processes[key->process]);
        uint32_t track = TRACK_COLLECTIVES + key->group * TRACKS_PER_PROCESS_GROUP + entry->track;
        char name[LABEL_MAX], label[LABEL_MAX];
        if (is_new_track(drawing, number, track)) {
            snprintf(name, sizeof name, "collectives, group %s", group->label);
            name_track(drawing, number, track, name, track);
        }
        trace_event_escape(name, sizeof name, collectives->operations[key->operation]);
        trace_event_escape(label, sizeof label, group->label);
        begin_slice(drawing, "collective", name, number, track, entry->begin_job_ns, entry->ns);
        trace_event_arguments(drawing->events);
        if (key->size_bytes <= UINT64_MAX - REPORT_SIZE_CLASSES)
            trace_event_number(drawing->events, "bytes", key->size_bytes);
        trace_event_text(drawing->events, "group", label);
        trace_event_number(drawing->events, "ranks", group->size);
        trace_event_end(drawing->events);
        if (entry->turn != REPORT_TURN_ALONE && entry->ns > 0)
            write_flow(drawing, entry, name, number, track);
    }
}

/* ---- records ---- */

static uint32_t thread_track(drawing *drawing, const report_process *process, const trace_segment *segment,
                             uint32_t thread, uint32_t number) {
    if (thread == drawing->last_track)
        return thread;
    drawing->last_track = thread;
    if (is_new_track(drawing, number, thread)) {
        char name[64];
        const char *own = thread == process->counters->pid ? "main thread" : "thread";
        if (thread == segment->thread && segment->thread_name[0] != '\0')
            own = segment->thread_name;
        snprintf(name, sizeof name, "%s %u", own, thread);
        name_track(drawing, number, thread, name, thread == process->counters->pid ? 1 : thread);
    }
    return thread;
}

static bool is_same_stream(const stream_track *a, const stream_track *b) {
    return a->process == b->process && a->stream.handle == b->stream.handle &&
           a->stream.device == b->stream.device;
}

/* SIZE_MAX: there are too many, or memory is out. */
static size_t add_stream(drawing *drawing, const stream_track *wanted, bool is_first_thread) {
    if (drawing->stream_count == drawing->stream_capacity) {
        size_t capacity = drawing->stream_capacity == 0 ? 64 : 2 * drawing->stream_capacity;
        stream_track *larger =
            capacity > STREAMS_MAX ? NULL : realloc(drawing->streams, capacity * sizeof *larger);
        if (larger == NULL)
            return SIZE_MAX;
        drawing->streams = larger;
        drawing->stream_capacity = capacity;
    }
    size_t index = drawing->stream_count++;
    drawing->streams[index] = *wanted;
    char name[96], full[128];
    report_stream_name(&wanted->stream, name, sizeof name);
    if (is_first_thread)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "%s, by thread %u", name, wanted->thread);
    uint32_t track = TRACK_STREAMS + (uint32_t)index;
    name_track(drawing, wanted->process, track, full, track);
    return index;
}

/* The track of work on a stream, as the thread has put it there; 0: none. */
static uint32_t stream_track_of(drawing *drawing, const report_process *process, const trace_record *record,
                                uint32_t thread, uint32_t number) {
    stream_track wanted = {.process = number, .thread = thread};
    if (!report_stream_of(&drawing->stream_hooks, process, record, &wanted.stream))
        return 0;
    bool first = true;
    size_t index = drawing->last_stream;
    if (index >= drawing->stream_count || !is_same_stream(&drawing->streams[index], &wanted) ||
        drawing->streams[index].thread != thread) {
        for (index = 0; index < drawing->stream_count; index++) {
            bool same = is_same_stream(&drawing->streams[index], &wanted);
            if (same && drawing->streams[index].thread == thread)
                break;
            first &= !same;
        }
        if (index == drawing->stream_count)
            index = add_stream(drawing, &wanted, first);
    }
    drawing->last_stream = index;
    return index == SIZE_MAX ? 0 : TRACK_STREAMS + (uint32_t)index;
}

/* The track of a record: the stream that its work is put on, else its thread. */
static uint32_t record_track(drawing *drawing, const report_process *process, const trace_segment *segment,
                             const trace_record *record, uint32_t number) {
    uint32_t thread = record->thread != 0 ? record->thread : segment->thread;
    uint32_t track = stream_track_of(drawing, process, record, thread, number);
    return track != 0 ? track : thread_track(drawing, process, segment, thread, number);
}

/* A collective of NCCL's own is also work on a stream; those of the script's process groups are calls of NCCL there. */
static void write_collective_work(drawing *drawing, const report_process *process,
                                  const trace_segment *segment, const trace_record *record, uint32_t number) {
    uint32_t thread = record->thread != 0 ? record->thread : segment->thread;
    uint32_t track = stream_track_of(drawing, process, record, thread, number);
    if (track == 0)
        return;
    begin_slice(drawing, "call", label_of(drawing, process, TRACE_CALL, record->id), number, track,
                report_job_ns(drawing->report, process, record->begin_ns),
                record->end_ns > record->begin_ns ? record->end_ns - record->begin_ns : 0);
    trace_event_arguments(drawing->events);
    trace_event_number(drawing->events, "bytes", record->bytes);
    trace_event_end(drawing->events);
}

static void write_memory(drawing *drawing, uint32_t number, uint64_t begin_ns, const trace_record *record) {
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        if (record->id != (uint32_t)report_memory_gauge(kind))
            continue;
        char name[64];
        bool copied = report_memory_role_of(kind) == REPORT_MEMORY_LINK;
        snprintf(name, sizeof name, copied ? "copied: %s" : "memory: %s", report_memory_label(kind));
        trace_event_begin(drawing->events, 'C', number, 0);
        trace_event_ns(drawing->events, "ts", begin_ns);
        trace_event_name(drawing->events, name);
        trace_event_arguments(drawing->events);
        trace_event_number(drawing->events, "bytes", record->bytes);
        trace_event_end(drawing->events);
    }
}

/* Copies of one kind on one device follow each other. */
static void write_copy(drawing *drawing, const report_process *process, uint32_t number,
                       const trace_record *record) {
    uint32_t kinds = trace_slot_ids(TRACE_COPY), kind = record->id < kinds ? record->id : kinds - 1;
    uint32_t device = (uint32_t)(record->a % COPY_DEVICES), track = TRACK_COPIES + device * kinds + kind;
    const char *name = label_of(drawing, process, TRACE_COPY, kind);
    if (is_new_track(drawing, number, track)) {
        char full[LABEL_MAX];
        snprintf(full, sizeof full, "copies, device %" PRIu32 ": %s", device, name);
        name_track(drawing, number, track, full, track);
    }
    begin_slice(drawing, "copy", name, number, track,
                report_job_ns(drawing->report, process, record->begin_ns),
                record->end_ns > record->begin_ns ? record->end_ns - record->begin_ns : 0);
    trace_event_arguments(drawing->events);
    trace_event_number(drawing->events, "bytes", record->bytes);
    trace_event_ns(drawing->events, "queued_us",
                   record->b < record->begin_ns ? record->begin_ns - record->b : 0);
    trace_event_text(drawing->events, "end", "when it was seen done");
    trace_event_end(drawing->events);
}

/* A track for each virtual stage; a rank's passes follow each other. */
static void write_pass(drawing *drawing, const report_process *process, uint32_t number,
                       const trace_record *record) {
    trace_pass pass;
    char name[REPORT_PASS_LABEL_MAX], full[64];
    if (!trace_pass_unpack(record->id, record->a, record->b, record->c, &pass))
        return;
    uint32_t track = TRACK_PASSES + pass.virtual_stage;
    if (is_new_track(drawing, number, track)) {
        int length =
            snprintf(full, sizeof full, "pipeline, stage %" PRIu32, pass.virtual_stage % pass.stages);
        if (pass.virtual_stages > pass.stages)
            snprintf(full + length, sizeof full - (size_t)length, ", part %" PRIu32, pass.virtual_stage);
        name_track(drawing, number, track, full, track);
    }
    report_pass_label(name, &pass, false);
    begin_slice(drawing, "pass", name, number, track,
                report_job_ns(drawing->report, process, record->begin_ns),
                record->end_ns > record->begin_ns ? record->end_ns - record->begin_ns : 0);
    trace_event_arguments(drawing->events);
    trace_event_number(drawing->events, "batch", (uint64_t)pass.batch + 1);
    trace_event_number(drawing->events, "microbatch", pass.microbatch);
    trace_event_number(drawing->events, "microbatches", pass.microbatches);
    trace_event_number(drawing->events, "stages", pass.stages);
    trace_event_end(drawing->events);
}

static void write_thread_name(drawing *drawing, uint32_t number, const trace_record *record) {
    char name[TRACE_THREAD_NAME_MAX + 1] = "", full[64];
    memcpy(name, &record->a, 8);
    memcpy(name + 8, &record->b, 8);
    trace_read_clean(name, sizeof name);
    if (!is_new_track(drawing, number, record->thread))
        return;
    snprintf(full, sizeof full, "%s %u", name[0] != '\0' ? name : "thread", record->thread);
    write_metadata(drawing, "thread_name", number, record->thread, full);
}

/* The arguments of a record's event, by its kind. */
static void write_arguments(drawing *drawing, const trace_record *record) {
    trace_event_writer *events = drawing->events;
    trace_event_arguments(events);
    if (record->bytes > 0)
        trace_event_number(events, "bytes", record->bytes);
    switch (record->kind) {
    case TRACE_STEP:
        trace_event_number(events, "optimizer", record->a);
        trace_event_number(events, "mode", record->b);
        break;
    case TRACE_BACKWARD:
        trace_event_number(events, "synchronized", record->a);
        break;
    case TRACE_REDUCE:
        trace_event_number(events, "tensor", record->id);
        trace_event_number(events, "generation", record->b);
        break;
    case TRACE_CHUNK:
        trace_event_number(events, "kind", record->a);
        trace_event_number(events, "chunk", record->b);
        break;
    case TRACE_CALL:
    case TRACE_EVENT:
        if (record->a != 0)
            trace_event_number(events, "a", record->a);
        if (record->b != 0)
            trace_event_number(events, "b", record->b);
        if (record->c != 0)
            trace_event_number(events, "c", record->c);
        break;
    default:
        break;
    }
}

static void write_record(void *context, const report_process *process, const trace_segment *segment,
                         const trace_record *record) {
    static const char *const categories[] = {
#define RECORD(id, name, id_holds, ids, a, b, c, doc) name,
#include "trace/record.def"
    };
    drawing *drawing = context;
    if (record->kind == TRACE_PROCESS_GROUP)
        return;
    if (process != drawing->last_process) {
        drawing->last_process = process;
        drawing->last_number = process_number(drawing->report, process);
        drawing->last_track = 0;
    }
    uint32_t number = drawing->last_number;
    if (record->kind == TRACE_COLLECTIVE) { /* drawn with those of the other ranks */
        write_collective_work(drawing, process, segment, record, number);
        return;
    }
    if (record->kind == TRACE_THREAD) {
        write_thread_name(drawing, number, record);
        return;
    }
    uint64_t begin_ns = report_job_ns(drawing->report, process, record->begin_ns);
    if (record->kind == TRACE_MEMORY) {
        write_memory(drawing, number, begin_ns, record);
        return;
    }
    if (record->kind == TRACE_COPY) {
        write_copy(drawing, process, number, record);
        return;
    }
    if (record->kind == TRACE_PASS) {
        write_pass(drawing, process, number, record);
        return;
    }
    uint32_t track = record_track(drawing, process, segment, record, number);
    const char *name = record->kind == TRACE_STEP       ? "optimizer step"
                       : record->kind == TRACE_BACKWARD ? "backward"
                       : record->kind == TRACE_REDUCE   ? "gradient sum"
                                                      : label_of(drawing, process, record->kind, record->id);
    bool instant = record->kind == TRACE_EVENT && record->end_ns <= record->begin_ns;
    if (instant) {
        trace_event_begin(drawing->events, 'i', number, track);
        trace_event_text(drawing->events, "s", "p");
        trace_event_ns(drawing->events, "ts", begin_ns);
        trace_event_text(drawing->events, "cat", categories[record->kind]);
        trace_event_name(drawing->events, name);
    } else {
        begin_slice(drawing, categories[record->kind], name, number, track, begin_ns,
                    record->end_ns > record->begin_ns ? record->end_ns - record->begin_ns : 0);
    }
    write_arguments(drawing, record);
    trace_event_end(drawing->events);
}

/* ---- the file ---- */

static void write_other_data(const report *report, FILE *out) {
    json_writer json = {.out = out};
    json_object_begin(&json, NULL);
    json_string(&json, "job", report->job);
    json_string(&json, "command", report->command);
    json_string(&json, "plugin", report->plugin);
    json_string(&json, "outcome", report->outcome);
    json_unsigned(&json, "start_realtime_ns", report->start_realtime_ns);
    json_unsigned(&json, "collectives_left_out", report->matched->entries_left_out);
    json_object_end(&json);
}

void report_write_perfetto(const report *report, FILE *out) {
    trace_event_writer *events = malloc(sizeof *events);
    drawing drawing = {.report = report, .events = events};
    fputs("{\"displayTimeUnit\": \"ms\", \"otherData\": ", out);
    write_other_data(report, out);
    fputs(", \"traceEvents\": [", out);
    bool complete = events != NULL;
    if (complete) {
        events->out = out;
        events->used = 0;
        events->any = events->in_arguments = events->first_member = false;
        write_processes(&drawing);
        for (size_t i = 0; i < report->rank_count; i++)
            write_steps(&drawing, &report->ranks[i]);
        write_collectives(&drawing);
        complete = report_visit_records(report, write_record, &drawing) && !drawing.failed;
        trace_event_flush(events);
    }
    fputs("\n]}\n", out);
    if (!complete)
        fprintf(stderr, "castor: out of memory, or %s is gone: the trace events are not complete\n",
                report->shown);
    for (size_t i = 0; i < TRACE_SLOT_MAX; i++)
        free(drawing.labels[i]);
    free(drawing.named);
    free(drawing.streams);
    free(events);
}
