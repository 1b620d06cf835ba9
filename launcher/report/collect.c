#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "launcher/common/array.h"
#include "launcher/common/suffix.h"
#include "launcher/common/text_table.h"
#include "collective_statistics.h"
#include "pipeline_passes.h"
#include "report.h"

#define NOTE_LINES    64
#define MISSING_NAMED 16 /* ranks that left no trace */

static const char refused[] = "refused";

static bool report_read_outcome(report *report, const char *name, int fd) {
    char text[16384];
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    bool complete = true;
    text[length > 0 ? length : 0] = '\0';
    char *rest = NULL;
    unsigned lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && lines < NOTE_LINES && complete;
         line = strtok_r(NULL, "\n", &rest), lines++) {
        trace_read_clean(line, strlen(line) + 1);
        complete = report_add_note(report, "%s", line);
        const char *reason = strstr(line, ": ");
        if (complete && report->outcome == NULL)
            complete = asprintf(&report->outcome, "%s: %s",
                                strncmp(name, refused, sizeof refused - 1) == 0 ? refused : name,
                                reason == NULL ? line : reason + 2) >= 0;
    }
    return complete;
}

/* How each rank ended; `failed` gets what the job came to by that, "" if nothing failed. False when memory is out. */
static bool find_ends(report *report, char failed[JOB_END_TEXT_MAX]) {
    job_ended *ranks = calloc(report->rank_count + 1, sizeof *ranks);
    job_end *ends = calloc(report->rank_count + 1, sizeof *ends);
    bool complete = ranks != NULL && ends != NULL;
    for (size_t i = 0; i < report->rank_count && complete; i++)
        ranks[i] = (job_ended){report->ranks[i].process->counters, report->ranks[i].rank,
                               report->ranks[i].state == REPORT_RANK_RUNNING};
    failed[0] = '\0';
    if (complete) {
        report->first_failure = job_ends_find(&report->ends, ranks, report->rank_count, ends);
        job_ends_outcome(&report->ends, ranks, ends, report->first_failure, failed);
        for (size_t i = 0; i < report->rank_count; i++)
            report->ranks[i].end = ends[i];
    }
    free(ranks);
    free(ends);
    return complete;
}

/* What the job came to: that it was refused, else how it failed, else the first outcome that a rank told, else that of a process
 * which the agent did not reach, else whether it runs. */
static bool find_outcome(report *report) {
    const char *told = NULL;
    char failed[JOB_END_TEXT_MAX];
    size_t running = 0;
    bool noted = true;
    report->plugin = report->command = "";
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        const trace_counters *counters = rank->process->counters;
        if (told == NULL && counters->outcome[0] != '\0')
            told = counters->outcome;
        if (report->plugin[0] == '\0')
            report->plugin = counters->plugin;
        if (report->command[0] == '\0')
            report->command = counters->command;
        running += rank->state == REPORT_RANK_RUNNING;
    }
    if (!find_ends(report, failed))
        return false;
    if (report->outcome != NULL && strncmp(report->outcome, refused, sizeof refused - 1) == 0)
        return true;
    if (failed[0] != '\0') {
        if (told != NULL) /* it is in the notes, if a process that the agent did not reach told it */
            noted = report_add_note(report, "%s", told);
        told = failed;
    }
    if (told == NULL && report->outcome != NULL)
        return true;
    free(report->outcome);
    report->outcome = strdup(told != NULL ? told : running > 0 ? "running" : "exited");
    return noted && report->outcome != NULL;
}

static bool add_notes(report *report) {
    bool added = true;
    char figure[TEXT_FIGURE_MAX];
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        char who[32] = "a process";
        if (rank->rank >= 0)
            snprintf(who, sizeof who, "rank %d", rank->rank);
        if (rank->state == REPORT_RANK_DIED)
            added &=
                report_add_note(report, "%s (pid %u) was killed; what it recorded until then is complete",
                                who, rank->process->counters->pid);
    }
    /* Ranks are in order, unknown ones last. A damaged file may tell any rank. */
    uint64_t missing = 0;
    for (size_t i = 0, next = 0; i < report->rank_count && added && report->ranks[i].rank >= 0; i++) {
        for (; next < (size_t)report->ranks[i].rank && added; next++) {
            if (missing >= MISSING_NAMED) {
                missing += (size_t)report->ranks[i].rank - next;
                break;
            }
            missing++;
            added &= report_add_note(report, "rank %zu left no trace", next);
        }
        next = (size_t)report->ranks[i].rank + 1;
    }
    if (missing > MISSING_NAMED)
        added &= report_add_note(report, "and %" PRIu64 " more ranks below the highest one left no trace",
                                 missing - MISSING_NAMED);
    bool full = false, failed = false;
    for (size_t i = 0; i < report->process_count; i++) {
        full |= report->processes[i].counters->recording == TRACE_RECORDING_FULL;
        failed |= report->processes[i].counters->recording == TRACE_RECORDING_FAILED;
    }
    if (full)
        added &= report_add_note(
            report,
            "the trace reached CASTOR_TRACE_MAX (%s): %" PRIu64 " records were counted but not "
            "kept; counts, bytes and seconds are complete, step times are of the first part",
            text_bytes(figure, report->trace_max_bytes), report->dropped);
    if (failed)
        added &= report_add_note(report,
                                 "a trace file could not be written (no space, or a limit): %" PRIu64
                                 " records were counted but not kept",
                                 report->dropped);
    return added;
}

static bool is_rank(const report *report, int pid) {
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].process->counters->pid == (uint32_t)pid)
            return true;
    return false;
}

/* What the ranks' own ends do not tell. */
static bool add_end_notes(report *report) {
    const job_note *job = job_notes_find(&report->ends, ENDS_JOB, 0, 0);
    bool added = true, counted = job_notes_find(&report->ends, ENDS_KILLED, 0, 0) != NULL ||
                                 job_notes_find(&report->ends, ENDS_KILLED_CGROUP, 0, 0) != NULL;
    if (job != NULL && job->number == 0 && report->first_failure != JOB_NO_FAILURE)
        added &= report_add_note(report, "the command ended with status 0 although a rank failed");
    if (job_notes_find(&report->ends, ENDS_LOST, 0, 0) != NULL)
        added &= report_add_note(report, "castor itself was killed, and its ranks were ended for that");
    unsigned noted = 0;
    for (size_t i = 0; i < report->ends.count && counted && noted < MISSING_NAMED; i++) {
        const job_note *note = &report->ends.rows[i];
        if (note->event != ENDS_SIGNAL || note->number != SIGKILL || is_rank(report, note->pid))
            continue;
        noted++;
        added &= report_add_note(report,
                                 "process %d, which is no rank (a worker of a DataLoader?), was killed; the "
                                 "kernel has counted kills for memory",
                                 note->pid);
    }
    return added;
}

static bool report_find_outcome(report *report) {
    return find_outcome(report) && add_notes(report) && add_end_notes(report);
}

#define FILES_MAX 1000000 /* of one directory */

static bool add_counter(report_counters *counters, const char *name, const trace_counter *value,
                        uint64_t max_ns, bool estimated) {
    for (size_t i = 0; i < counters->count; i++) {
        report_counter *row = &counters->rows[i];
        if (strcmp(row->name, name) == 0) {
            row->count += value->count;
            row->bytes += value->bytes;
            row->ns += value->ns;
            row->max_ns = max_ns > row->max_ns ? max_ns : row->max_ns;
            row->estimated |= estimated;
            return true;
        }
    }
    if (!array_grow(&counters->rows, &counters->capacity, counters->count, sizeof *counters->rows))
        return false;
    char *copy = strdup(name);
    if (copy == NULL)
        return false;
    counters->rows[counters->count++] =
        (report_counter){copy, value->count, value->bytes, value->ns, max_ns, estimated};
    return true;
}

/* ---- the files of the directory ---- */

static int open_file(int directory_fd, const char *name) {
    /* O_NONBLOCK: a FIFO with the name of a trace must not hold us. */
    return openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* The names in a directory that end in `suffix`, sorted; the caller frees them. */
static bool list_files(DIR *directory, const char *suffix, char ***names, size_t *count) {
    size_t capacity = 0;
    *names = NULL;
    *count = 0;
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && *count < FILES_MAX;) {
        if (!has_suffix(entry->d_name, suffix))
            continue;
        if (!array_grow(names, &capacity, *count, sizeof **names))
            return false;
        if (((*names)[*count] = strdup(entry->d_name)) == NULL)
            return false;
        ++*count;
    }
    if (*count > 0)
        qsort(*names, *count, sizeof **names, compare_names);
    return true;
}

static bool read_counters_file(report *report, int directory_fd, const char *name) {
    int fd = open_file(directory_fd, name);
    if (fd < 0)
        return report_add_problem(report, "%s cannot be opened: %s", name, strerror(errno));
    char message[TRACE_READ_MESSAGE_MAX];
    trace_counters *counters = malloc(sizeof *counters);
    bool complete = counters != NULL;
    trace_read_status status = complete ? trace_read_counters(fd, counters, message) : TRACE_READ_EMPTY;
    close(fd);
    if (status == TRACE_READ_BAD)
        complete = report_add_problem(report, "%s %s", name, message);
    if (status != TRACE_READ_OK) {
        free(counters);
        return complete;
    }
    if (!array_grow(&report->processes, &report->process_capacity, report->process_count,
                    sizeof *report->processes)) {
        free(counters);
        return false;
    }
    report->processes[report->process_count++] =
        (report_process){.counters = counters, .last_ns = counters->last_monotonic_ns};
    return true;
}

static report_process *find_process(const report *report, uint64_t uid) {
    for (size_t i = 0; i < report->process_count; i++)
        if (report->processes[i].counters->uid == uid)
            return &report->processes[i];
    return NULL;
}

typedef struct segment_reading {
    report *report;
    trace_segment header;
    report_process *owner; /* NULL until the first record, and when its counters cannot be read */
    uint64_t records;
    bool out_of_memory;
} segment_reading;

static void visit_record(void *context, const trace_record *record) {
    segment_reading *reading = context;
    report *report = reading->report;
    if (reading->records++ == 0)
        reading->owner = find_process(report, reading->header.process_uid);
    report->records++;
    report_process *owner = reading->owner;
    if (owner == NULL)
        return;
    owner->records++;
    if (record->end_ns > owner->last_ns)
        owner->last_ns = record->end_ns;
    reading->out_of_memory |= !report_take_record(report, owner, record);
}

static bool read_segment_file(report *report, int directory_fd, const char *name) {
    int fd = open_file(directory_fd, name);
    if (fd < 0)
        return report_add_problem(report, "%s cannot be opened: %s", name, strerror(errno));
    struct stat file;
    report->trace_bytes += fstat(fd, &file) == 0 ? (uint64_t)file.st_size : 0;
    segment_reading reading = {.report = report};
    char message[TRACE_READ_MESSAGE_MAX];
    trace_read_status status = trace_read_segment(fd, &reading.header, visit_record, &reading, message);
    close(fd);
    if (reading.out_of_memory)
        return false;
    if (status == TRACE_READ_BAD)
        return report_add_problem(report, "%s %s", name, message);
    if (reading.records > 0 && reading.owner == NULL)
        return report_add_problem(
            report, "%s belongs to a process whose counter file is missing or cannot be read", name);
    return true;
}

/* ---- a second pass over the records ---- */

typedef struct second_pass {
    const report *report;
    trace_segment header;
    const report_process *owner;
    bool looked;
    report_visitor visit;
    void *context;
} second_pass;

static void visit_again(void *context, const trace_record *record) {
    second_pass *reading = context;
    if (!reading->looked)
        reading->owner = find_process(reading->report, reading->header.process_uid);
    reading->looked = true;
    if (reading->owner != NULL)
        reading->visit(reading->context, reading->owner, &reading->header, record);
}

bool report_visit_records(const report *report, report_visitor visit, void *context) {
    DIR *directory = opendir(report->directory);
    if (directory == NULL)
        return false;
    char **names, message[TRACE_READ_MESSAGE_MAX];
    size_t count;
    bool complete = list_files(directory, TRACE_SEGMENT_SUFFIX, &names, &count);
    for (size_t i = 0; i < count; i++) {
        int fd = complete ? open_file(dirfd(directory), names[i]) : -1;
        second_pass reading = {.report = report, .visit = visit, .context = context};
        /* What is wrong with a file was said when it was read first. */
        if (fd >= 0) {
            trace_read_segment(fd, &reading.header, visit_again, &reading, message);
            close(fd);
        }
        free(names[i]);
    }
    free(names);
    closedir(directory);
    return complete;
}

static bool read_outcomes(report *report, int directory_fd) {
    static const char *const names[] = {TRACE_REFUSED_NAME, TRACE_REFUSED_UNSEEN_NAME, TRACE_UNREACHED_NAME};
    bool complete = job_notes_read(directory_fd, &report->ends);
    for (size_t i = 0; i < sizeof names / sizeof *names && complete; i++) {
        int fd = open_file(directory_fd, names[i]);
        if (fd < 0)
            continue;
        complete = report_read_outcome(report, names[i], fd);
        close(fd);
    }
    return complete;
}

static bool read_files(report *report, DIR *directory, const char *suffix,
                       bool (*read_file)(struct report *, int, const char *)) {
    char **names;
    size_t count;
    bool complete = list_files(directory, suffix, &names, &count);
    for (size_t i = 0; i < count; i++) {
        complete = complete && read_file(report, dirfd(directory), names[i]);
        free(names[i]);
    }
    free(names);
    return complete;
}

/* ---- what they say ---- */

/* Adds the time of the calls that were timed by sample (trace/sampled.h). False: there are none. */
static bool add_sampled(const trace_counters *source, const char *name, trace_counter *call) {
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_SAMPLE); id++) {
        const trace_counter *sample = &source->counters[trace_slot(TRACE_SAMPLE, id)];
        uint64_t timed = source->counters[trace_slot(TRACE_TIMED, id)].count;
        const char *of = trace_read_name(source, TRACE_SAMPLE, id);
        if (sample->count == 0 || of == NULL || strcmp(of, name) != 0 || call->count <= timed)
            continue;
        call->ns += text_whole((double)sample->ns / (double)sample->count * (double)(call->count - timed));
        return true;
    }
    return false;
}

static bool add_named(report_counters *counters, const report_process *process, uint32_t kind, uint32_t id,
                      const trace_counter *value, bool timed) {
    if (value->count == 0)
        return true;
    char fallback[32];
    const char *name = report_id_name(process->counters, kind, id, fallback);
    trace_counter sum = *value;
    bool estimated = kind == TRACE_CALL && add_sampled(process->counters, name, &sum);
    return add_counter(counters, name, &sum,
                       timed && process->call_max_ns != NULL ? process->call_max_ns[id] : 0, estimated);
}

static bool add_process_counters(report *report, const report_process *process) {
    static const struct {
        trace_record_kind kind;
        size_t table;
    } tables[] = {
        {TRACE_CALL, offsetof(struct report, calls)},
        {TRACE_COLLECTIVE, offsetof(struct report, collectives)},
        {TRACE_WAIT, offsetof(struct report, waits)},
        {TRACE_EVENT, offsetof(struct report, events)},
        {TRACE_CHUNK, offsetof(struct report, chunk_events)},
    };
    const trace_counters *source = process->counters;
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++) {
        uint32_t kind = tables[table].kind;
        report_counters *counters = (report_counters *)((char *)report + tables[table].table);
        bool timed = kind == TRACE_CALL || kind == TRACE_COLLECTIVE;
        for (uint32_t id = 0; id < trace_slot_ids(kind); id++) {
            const trace_counter *value = &source->counters[trace_slot(kind, id)];
            if (!add_named(counters, process, kind, id, value, timed))
                return false;
            /* A collective is an intercepted call, too: under its symbol. */
            if (kind == TRACE_COLLECTIVE && trace_read_name(source, TRACE_CALL, id) != NULL &&
                !add_named(&report->calls, process, TRACE_CALL, id, value, timed))
                return false;
        }
    }
    return true;
}

static bool add_also(report *report, const char *name, const trace_counter *counter) {
    uint64_t state = counter->bytes < TRACE_ALSO_STATE_COUNT ? counter->bytes : TRACE_ALSO_NO_LIBRARY;
    report_also *row = report->also;
    while (row < report->also + report->also_count && strcmp(row->name, name) != 0)
        row++;
    if (row == report->also + report->also_count) {
        if (!array_grow(&report->also, &report->also_capacity, report->also_count, sizeof *report->also))
            return false;
        row = &report->also[report->also_count];
        *row = (report_also){.name = strdup(name)};
        if (row->name == NULL)
            return false;
        report->also_count++;
    }
    row->places += counter->count;
    if (state > row->state)
        row->state = (trace_also_state)state;
    return true;
}

const char *report_also_missed(const report_also *also) {
    static const char *const reasons[] = {
        [TRACE_ALSO_NO_LIBRARY] = "its library was not loaded",
        [TRACE_ALSO_NO_FUNCTION] = "its library has no such function",
        [TRACE_ALSO_NO_CLOSURE] = "libffi made no closure for it",
        [TRACE_ALSO_FOUND] = "nothing calls it that could be replaced: at most its own library does",
    };
    return also->places > 0 ? NULL : reasons[also->state];
}

static bool add_process_also(report *report, const trace_counters *source) {
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_ALSO); id++) {
        const char *name = trace_read_name(source, TRACE_ALSO, id);
        if (name != NULL && !add_also(report, name, &source->counters[trace_slot(TRACE_ALSO, id)]))
            return false;
    }
    return true;
}

static int compare_counters(const void *left, const void *right) {
    const report_counter *a = left, *b = right;
    if (a->ns != b->ns)
        return a->ns < b->ns ? 1 : -1;
    if (a->count != b->count)
        return a->count < b->count ? 1 : -1;
    return strcmp(a->name, b->name);
}

static void sort_counters(report_counters *counters) {
    if (counters->count > 0)
        qsort(counters->rows, counters->count, sizeof *counters->rows, compare_counters);
}

static bool summarize(report *report) {
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (size_t i = 0; i < report->process_count; i++) {
        const report_process *process = &report->processes[i];
        const trace_counters *counters = process->counters;
        if (!add_process_counters(report, process) || !add_process_also(report, process->counters))
            return false;
        report->dropped += counters->dropped;
        if (counters->trace_max_bytes > report->trace_max_bytes)
            report->trace_max_bytes = counters->trace_max_bytes;
        report->truncated |=
            counters->recording == TRACE_RECORDING_FULL || counters->recording == TRACE_RECORDING_FAILED;
        report->counters_only |= counters->recording == TRACE_RECORDING_OFF;
        /* Nodes share no monotonic clock. */
        uint64_t lived_ns = process->last_ns > counters->start_monotonic_ns
                                ? process->last_ns - counters->start_monotonic_ns
                                : 0;
        uint64_t start_ns = counters->start_monotonic_ns + process->clock_offset_ns;
        if (start_ns < first_ns)
            first_ns = start_ns;
        if (start_ns + lived_ns > last_ns)
            last_ns = start_ns + lived_ns;
    }
    report->start_realtime_ns = first_ns;
    report->duration_seconds = last_ns > first_ns ? (double)(last_ns - first_ns) / 1e9 : 0;
    sort_counters(&report->calls);
    sort_counters(&report->collectives);
    sort_counters(&report->waits);
    sort_counters(&report->events);
    sort_counters(&report->chunk_events);
    report_finish_records(report);
    return report_find_ranks(report) && report_find_memory(report) && report_find_budgets(report) &&
           report_pipeline_find(report) && report_collectives_finish(report) && report_find_outcome(report);
}

/* The newest directory below this one that has a trace: people give the directory of all jobs. */
static void suggest_subdirectory(DIR *directory, const char *shown) {
    char newest[NAME_MAX + 1] = "";
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, newest) < 0)
            continue;
        int fd = openat(dirfd(directory), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *below = fd < 0 ? NULL : fdopendir(fd);
        if (below == NULL) {
            if (fd >= 0)
                close(fd);
            continue;
        }
        for (struct dirent *file; (file = readdir(below)) != NULL;)
            if (has_suffix(file->d_name, TRACE_COUNTERS_SUFFIX)) {
                snprintf(newest, sizeof newest, "%s", entry->d_name);
                break;
            }
        closedir(below);
    }
    trace_read_clean(newest, sizeof newest);
    if (newest[0] != '\0')
        fprintf(stderr, "castor: %s holds no trace itself; its newest job is `castor report %s/%s`\n", shown,
                shown, newest);
    else
        fprintf(stderr,
                "castor: %s holds no trace: no process of the job recorded anything, or it is not the "
                "directory of "
                "`castor run --log-dir`\n",
                shown);
}

/* A copy without control characters; NULL when memory is out. */
static char *clean_copy(const char *text) {
    char *copy = strdup(text);
    if (copy != NULL)
        trace_read_clean(copy, strlen(copy) + 1);
    return copy;
}

static bool find_names(report *report, const char *path) {
    if ((report->directory = realpath(path, NULL)) == NULL ||
        (report->shown = clean_copy(report->directory)) == NULL)
        return false;
    const char *slash = strrchr(report->shown, '/');
    report->job = slash == NULL || slash[1] == '\0' ? report->shown : slash + 1;
    return true;
}

/* False when memory is out. */
static bool read_directory(report *report, DIR *directory, bool records) {
    if ((report->matched = report_collectives_new()) == NULL ||
        !about_read(dirfd(directory), &report->about) ||
        !read_files(report, directory, TRACE_COUNTERS_SUFFIX, read_counters_file))
        return false;
    report_align_clocks(report);
    return (!records || read_files(report, directory, TRACE_SEGMENT_SUFFIX, read_segment_file)) &&
           read_outcomes(report, dirfd(directory));
}

bool report_read_brief(report *report, const char *path) {
    memset(report, 0, sizeof *report);
    report->plugin = report->command = "";
    DIR *directory = opendir(path);
    bool complete = directory != NULL && find_names(report, path) &&
                    read_directory(report, directory, false) &&
                    (report->process_count == 0 || summarize(report));
    if (directory != NULL)
        closedir(directory);
    return complete;
}

bool report_read(report *report, const char *path) {
    memset(report, 0, sizeof *report);
    char *named = clean_copy(path); /* as the user names it */
    const char *shown = named == NULL ? "the log directory" : named;
    DIR *directory = opendir(path);
    if (directory == NULL) {
        fprintf(stderr, "castor: cannot read the log directory %s: %s\n", shown, strerror(errno));
        free(named);
        return false;
    }
    bool complete = find_names(report, path) && read_directory(report, directory, true);
    for (size_t i = 0; i < report->problem_count; i++) {
        trace_read_clean(report->problems[i], strlen(report->problems[i]) + 1);
        fprintf(stderr, "castor: %s/%s\n", shown, report->problems[i]);
    }
    bool empty = complete && report->process_count == 0;
    if (empty && report->outcome != NULL)
        fprintf(stderr, "castor: %s holds no trace; %s\n", shown, report->outcome);
    else if (empty && report->problem_count == 0)
        suggest_subdirectory(directory, shown);
    closedir(directory);
    complete = complete && (empty || summarize(report));
    if (!complete)
        fprintf(stderr, "castor: out of memory while reading %s\n", shown);
    free(named);
    return complete && !empty;
}

static void free_counters(report_counters *counters) {
    for (size_t i = 0; i < counters->count; i++)
        free(counters->rows[i].name);
    free(counters->rows);
}

static void free_lines(char **lines, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(lines[i]);
    free(lines);
}

void report_free(report *report) {
    for (size_t i = 0; i < report->process_count; i++) {
        free(report->processes[i].counters);
        report_free_records(&report->processes[i]);
    }
    for (size_t i = 0; i < report->rank_count; i++)
        report_free_memory(&report->ranks[i].memory);
    report_free_budgets(report);
    report_pipeline_free(report);
    report_collectives_free(report->matched);
    free(report->processes);
    free(report->ranks);
    free(report->nodes);
    free_counters(&report->calls);
    for (size_t i = 0; i < report->also_count; i++)
        free(report->also[i].name);
    free(report->also);
    free_counters(&report->collectives);
    free_counters(&report->waits);
    free_counters(&report->events);
    free_counters(&report->chunk_events);
    free_lines(report->notes, report->note_count);
    free_lines(report->problems, report->problem_count);
    about_free(&report->about);
    free(report->outcome);
    job_notes_free(&report->ends);
    free(report->directory);
    free(report->shown);
    memset(report, 0, sizeof *report);
}
