/* libFuzzer target for what castor makes of a log directory: `castor report` in every format and as a comparison, and the
 * screen of `castor top`. `make fuzz` builds and runs it (docs/trace.md).
 *
 * An input is a list of commands that write files; each file begins as a good one of this machine and this process, so that
 * the fuzzer spends its time behind the checks of headers, which trace_fuzz.c looks at. What must hold of the output is
 * checked: JSON that a strict reader takes, texts without control characters, a page whose scripts are its own. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "launcher/common/utf8.h"
#include "launcher/report/compare.h"
#include "launcher/top/top.h"
#include "json_check.h"
#include "seed.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES_MAX = 12, RECORDS_MAX = 400, TEXT_MAX = 64, LOOKS = 2 };

typedef enum command {
    COMMAND_PROCESS, /* a counter file; the files that follow are this process's */
    COMMAND_SEGMENT,
    COMMAND_LIVE,
    COMMAND_UNREACHED,
    COMMAND_RECORD,  /* into the segment */
    COMMAND_COUNTER, /* with a name, into the counters */
    COMMAND_GAUGE,
    COMMAND_GROUP, /* into the live file */
    COMMAND_WAIT,
    COMMAND_PATCH, /* any number at any place of the file */
    COMMAND_TEXT,
    COMMAND_TRUNCATE,
    COMMAND_COUNT
} command;

typedef struct file {
    char name[96];
    size_t bytes;
    uint8_t *content;
} file;

typedef struct folder {
    file files[FILES_MAX];
    size_t count;
    file *counters, *segment, *live, *current;
} folder;

static char directory[] = "/dev/shm/castor-fuzz-XXXXXX";
static int directory_fd = -1;
static uint64_t own_start_ticks;
static char own_host[TRACE_HOST_MAX];

static void require(bool holds) {
    if (!holds)
        abort();
}

/* ---- the input ---- */

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint8_t take_byte(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

/* A byte says how many follow: small and large values are equally near for a mutation. */
static uint64_t take_number(input *in) {
    uint64_t value = 0;
    unsigned bytes = take_byte(in) % 9;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)take_byte(in) << (8 * i);
    return value;
}

static size_t take_text(input *in, char out[TEXT_MAX]) {
    size_t length = take_byte(in) % TEXT_MAX;
    for (size_t i = 0; i < length; i++)
        out[i] = (char)take_byte(in);
    return length;
}

/* ---- the files ---- */

static file *add_file(folder *f, const char *suffix, size_t bytes) {
    if (f->count == FILES_MAX)
        return NULL;
    file *added = &f->files[f->count];
    snprintf(added->name, sizeof added->name, "%zu%s", f->count++, suffix);
    added->bytes = bytes;
    added->content = calloc(1, bytes);
    require(added->content != NULL);
    return f->current = added;
}

static uint64_t uid_of(const folder *f) {
    return f->counters != NULL ? ((const trace_counters *)(void *)f->counters->content)->uid : 1;
}

static void add_process(folder *f, input *in) {
    file *added = add_file(f, TRACE_COUNTERS_SUFFIX, sizeof(trace_counters));
    if (added == NULL)
        return;
    f->counters = added;
    f->segment = f->live = NULL;
    trace_counters *counters = (void *)added->content;
    *counters = (trace_counters){.magic = TRACE_COUNTERS_MAGIC,
                                 .version = TRACE_VERSION,
                                 .file_bytes = sizeof *counters,
                                 .slot_count = TRACE_SLOT_MAX,
                                 .gauge_count = GAUGE_COUNT,
                                 .pid = (uint32_t)getpid(),
                                 .rank = (int32_t)take_number(in),
                                 .uid = f->count,
                                 .start_clock_ticks = own_start_ticks,
                                 .start_monotonic_ns = 1000,
                                 .start_realtime_ns = UINT64_C(1700000000000000000),
                                 .last_monotonic_ns = 5000,
                                 .names_used = 1};
    memcpy(counters->host, own_host, sizeof counters->host);
}

static void add_segment(folder *f) {
    file *added =
        add_file(f, TRACE_SEGMENT_SUFFIX, sizeof(trace_segment) + RECORDS_MAX * sizeof(trace_record));
    if (added == NULL)
        return;
    f->segment = added;
    *(trace_segment *)(void *)added->content = (trace_segment){.magic = TRACE_SEGMENT_MAGIC,
                                                               .version = TRACE_VERSION,
                                                               .header_bytes = sizeof(trace_segment),
                                                               .record_bytes = sizeof(trace_record),
                                                               .capacity = RECORDS_MAX,
                                                               .process_uid = uid_of(f),
                                                               .thread = 1,
                                                               .thread_name = "python"};
}

static void add_live(folder *f) {
    file *added = add_file(f, LIVE_SUFFIX, sizeof(live_file));
    if (added == NULL)
        return;
    f->live = added;
    *(live_file *)(void *)added->content = (live_file){.magic = LIVE_MAGIC,
                                                       .version = LIVE_VERSION,
                                                       .file_bytes = sizeof(live_file),
                                                       .pid = (uint32_t)getpid(),
                                                       .process_uid = uid_of(f),
                                                       .start_clock_ticks = own_start_ticks};
}

static void add_unreached(folder *f, input *in) {
    char text[TEXT_MAX];
    size_t length = take_text(in, text);
    file *added = add_file(f, "", length + 1);
    if (added == NULL)
        return;
    snprintf(added->name, sizeof added->name, TRACE_UNREACHED_NAME);
    memcpy(added->content, text, length);
}

/* ---- what is in them ---- */

static void add_record(folder *f, input *in) {
    if (f->segment == NULL)
        return;
    trace_segment *segment = (void *)f->segment->content;
    uint64_t place = segment->committed < RECORDS_MAX ? segment->committed : RECORDS_MAX - 1;
    trace_record *record = (trace_record *)(segment + 1) + place;
    record->kind = take_byte(in) % (TRACE_RECORD_KIND_COUNT + 1);
    record->id = (uint32_t)take_number(in);
    record->begin_ns = take_number(in);
    record->end_ns = record->begin_ns + take_number(in);
    record->bytes = take_number(in);
    record->a = take_number(in);
    record->b = take_number(in);
    record->c = take_number(in);
    record->thread = take_byte(in);
    segment->committed = place + 1;
}

static void add_counter(folder *f, input *in) {
    if (f->counters == NULL)
        return;
    trace_counters *counters = (void *)f->counters->content;
    uint32_t slot = (uint32_t)take_number(in) % TRACE_SLOT_MAX;
    counters->counters[slot] = (trace_counter){take_number(in), take_number(in), take_number(in)};
    char name[TEXT_MAX];
    size_t length = take_text(in, name);
    if (length == 0 || counters->names_used + length + 1 > TRACE_NAMES_BYTES)
        return;
    memcpy(counters->names + counters->names_used, name, length);
    counters->name_offsets[slot] = counters->names_used;
    counters->names_used += (uint32_t)length + 1;
}

static void add_gauge(folder *f, input *in) {
    if (f->counters == NULL)
        return;
    trace_counters *counters = (void *)f->counters->content;
    counters->gauges[take_byte(in) % TRACE_GAUGE_MAX] = (trace_gauge_value){take_number(in), take_number(in)};
}

static void add_group(folder *f, input *in) {
    if (f->live == NULL)
        return;
    live_process_group *group =
        &((live_file *)(void *)f->live->content)->groups[take_byte(in) % LIVE_PROCESS_GROUPS_MAX];
    *group = (live_process_group){.entered = take_number(in), .rank = (int32_t)take_number(in), .used = 1};
    group->size = (uint32_t)take_number(in);
    group->members[0] = take_number(in);
    char name[TEXT_MAX];
    memcpy(group->name, name, take_text(in, name));
}

static void add_wait(folder *f, input *in) {
    if (f->live == NULL)
        return;
    live_wait *wait = &((live_file *)(void *)f->live->content)->waits[take_byte(in) % LIVE_WAITS_MAX];
    *wait = (live_wait){.begin_ns = take_number(in), .ordinal = take_number(in), .bytes = take_number(in)};
    wait->kind = take_byte(in);
    wait->group = (uint32_t)take_number(in);
    wait->missing_pid = take_byte(in) % 2 == 0 ? (int32_t)getpid() : (int32_t)take_number(in);
    wait->claimed = 1;
    char what[TEXT_MAX];
    memcpy(wait->what, what, take_text(in, what));
}

static void patch(folder *f, input *in) {
    uint64_t offset = take_number(in), value = take_number(in);
    if (f->current == NULL || f->current->bytes == 0)
        return;
    offset %= f->current->bytes;
    uint64_t room = f->current->bytes - offset;
    memcpy(f->current->content + offset, &value, room < sizeof value ? room : sizeof value);
}

static void put_text(folder *f, input *in) {
    char text[TEXT_MAX];
    uint64_t offset = take_number(in);
    size_t length = take_text(in, text);
    if (f->current != NULL && f->current->bytes > length)
        memcpy(f->current->content + offset % (f->current->bytes - length), text, length);
}

static void fill(folder *f, input *in) {
    while (in->at < in->end) {
        switch ((command)(take_byte(in) % COMMAND_COUNT)) {
        case COMMAND_PROCESS:
            add_process(f, in);
            break;
        case COMMAND_SEGMENT:
            add_segment(f);
            break;
        case COMMAND_LIVE:
            add_live(f);
            break;
        case COMMAND_UNREACHED:
            add_unreached(f, in);
            break;
        case COMMAND_RECORD:
            add_record(f, in);
            break;
        case COMMAND_COUNTER:
            add_counter(f, in);
            break;
        case COMMAND_GAUGE:
            add_gauge(f, in);
            break;
        case COMMAND_GROUP:
            add_group(f, in);
            break;
        case COMMAND_WAIT:
            add_wait(f, in);
            break;
        case COMMAND_PATCH:
            patch(f, in);
            break;
        case COMMAND_TEXT:
            put_text(f, in);
            break;
        case COMMAND_TRUNCATE:
            if (f->current != NULL && f->current->bytes > 0)
                f->current->bytes = take_number(in) % f->current->bytes;
            f->counters = f->segment = f->live = NULL; /* nothing more fits into what is left of it */
            break;
        case COMMAND_COUNT:
            break;
        }
    }
}

static void write_files(const folder *f) {
    for (size_t i = 0; i < f->count; i++) {
        int fd = openat(directory_fd, f->files[i].name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        require(fd >= 0 && write(fd, f->files[i].content, f->files[i].bytes) == (ssize_t)f->files[i].bytes);
        close(fd);
    }
}

static void drop_files(folder *f) {
    for (size_t i = 0; i < f->count; i++) {
        unlinkat(directory_fd, f->files[i].name, 0); /* two may have one name */
        free(f->files[i].content);
    }
}

/* ---- the output ---- */

static void check_line(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        size_t sequence = utf8_length(text + i, length - i);
        require(sequence > 0 && (unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
        require(sequence != 2 || (unsigned char)text[i] != 0xc2 || (unsigned char)text[i + 1] >= 0xa0);
        i += sequence;
    }
}

static void check_text(char *text, size_t length) {
    require(strlen(text) == length);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        check_line(line, strlen(line));
}

static void check_json(char *text, size_t length) {
    require(json_is_valid(text, length));
}

static void check_page(char *text, size_t length) {
    static const char tag[] = "<script", end[] = "</html>\n";
    size_t scripts = 0;
    for (const char *at = text; (at = strstr(at, tag)) != NULL; at += sizeof tag - 1)
        scripts++;
    require(scripts == 3 && strlen(text) == length && length < 2 << 20);
    require(length > sizeof end && strcmp(text + length - (sizeof end - 1), end) == 0);
}

static void write_and_check(const report *report, void (*write)(const struct report *, FILE *),
                            void (*compare)(const struct report *, const struct report *, FILE *),
                            void (*check)(char *, size_t)) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    require(out != NULL);
    if (write != NULL)
        write(report, out);
    else
        compare(report, report, out);
    require(fclose(out) == 0);
    check(text, length);
    free(text);
}

static void try_report(void) {
    static report report;
    if (report_read(&report, directory)) {
        write_and_check(&report, report_write_text, NULL, check_text);
        write_and_check(&report, report_write_json, NULL, check_json);
        write_and_check(&report, report_write_html, NULL, check_page);
        write_and_check(&report, NULL, report_compare_text, check_text);
        write_and_check(&report, NULL, report_compare_json, check_json);
        write_and_check(&report, report_write_perfetto, NULL,
                        check_json); /* the last: it changes the order of entries */
    }
    report_free(&report);
}

static void try_top(void) {
    top_history history = {0};
    job_reading look;
    size_t *ranks, count;
    require(job_reading_take(directory, JOB_LOOK_LIVE | JOB_LOOK_COUNTERS, &look));
    require(top_ranks_choose(&look, &ranks, &count));
    for (int i = 0; i < LOOKS; i++, look.now_ns += UINT64_C(1000000000))
        require(top_history_add(&history, &look, ranks, count));
    free(ranks);
    for (int ended = 0; ended < 2; ended++) {
        static const size_t widths[] = {0, 60};
        top_job job = {.directory = directory, .ended = ended != 0};
        top_text text = {0};
        top_view(&job, &look, &history, widths[ended], &text);
        top_text_cut(&text, widths[ended]);
        require(!text.failed);
        for (size_t i = 0; i < text.count; i++)
            check_line(text.lines[i], strlen(text.lines[i]));
        top_text_free(&text);
    }
    top_history_free(&history);
    job_reading_free(&look);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    folder f = {0};
    fill(&f, &(input){data, data + size});
    write_files(&f);
    try_report();
    try_top();
    drop_files(&f);
    return 0;
}

/* ---- the corpus ---- */

#define PUT(...)                                                                                             \
    at = (uint8_t *)mempcpy(at, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

/* Ranks that train: each with counters, records of every kind, and a wait for the other. */
static size_t make_job(uint8_t *out, uint8_t ranks, uint8_t steps) {
    uint8_t *at = out;
    for (uint8_t rank = 0; rank < ranks; rank++) {
        PUT(COMMAND_PROCESS, 1, rank);
        PUT(COMMAND_COUNTER, 0, 1, 9, 1, 9, 1, 9, 3, 'a', 'b', 'c');
        PUT(COMMAND_COUNTER, 2, 0, 4, 1, steps, 2, 0, 1, 2, 0, 9, 7, 'b', 'a', 'r', 'r', 'i', 'e', 'r');
        PUT(COMMAND_GAUGE, GAUGE_STEPS, 1, steps, 1, steps, COMMAND_GAUGE, GAUGE_CHUNK_COUNT, 1, 2, 1, 2);
        PUT(COMMAND_GAUGE, GAUGE_MODEL_NUMEL, 2, 0, 1, 2, 0, 1, COMMAND_GAUGE, GAUGE_STORE_PARAM_BYTES, 2, 0,
            4, 2, 0, 4);
        PUT(COMMAND_SEGMENT);
        for (uint8_t step = 0; step < steps; step++) {
            PUT(COMMAND_RECORD, TRACE_CALL, 0, 2, 1, step, 1, 9, 1, 64, 0, 0, 0, 1);
            PUT(COMMAND_RECORD, TRACE_COLLECTIVE, 0, 2, 2, step, 1, 99, 2, 0, (uint8_t)(step % 2), 1, 6, 0, 1,
                7, 1);
            PUT(COMMAND_RECORD, TRACE_BACKWARD, 0, 2, 3, step, 1, 30, 0, 1, 1, 0, 0, 1);
            PUT(COMMAND_RECORD, TRACE_STEP, 0, 2, 4, step, 1, 20, 0, 0, 1, 1, 0, 1);
            PUT(COMMAND_RECORD, TRACE_MEMORY, 1, GAUGE_PARAM_BYTES, 2, 5, step, 0, 2, 0, step, 0, 0, 0, 2);
        }
        PUT(COMMAND_RECORD, TRACE_REDUCE, 1, 3, 2, 0, 99, 1, 3, 1, 3, 1, 0, 1, 1, 0, 3);
        PUT(COMMAND_RECORD, TRACE_WAIT, 1, 1, 2, 0, 98, 1, 3, 0, 0, 0, 0, 1);
        PUT(COMMAND_RECORD, TRACE_CHUNK, 1, 1, 2, 0, 97, 0, 1, 9, 0, 0, 0, 1);
        PUT(COMMAND_RECORD, TRACE_EVENT, 1, 1, 2, 0, 96, 0, 0, 1, 1, 1, 2, 1, 3, 1);
        PUT(COMMAND_RECORD, TRACE_THREAD, 0, 2, 0, 95, 0, 0, 2, 'a', 'b', 1, 'c', 0, 4);
        PUT(COMMAND_LIVE);
        PUT(COMMAND_GROUP, 0, 1, steps, 1, rank, 1, ranks, 1, 3, 1, '0');
        PUT(COMMAND_WAIT, 0, 1, 7, 1, (uint8_t)(steps + rank), 1, 9, LIVE_COLLECTIVE, 0, 0, 2, 'a', 'r');
        PUT(COMMAND_WAIT, 1, 1, 7, 0, 0, LIVE_STORE, 4, 255, 255, 255, 255, 1, 1, 9, 3, 'e', 'n', 'd');
    }
    return (size_t)(at - out);
}

static size_t make_damage(uint8_t *out) {
    uint8_t *at = out + make_job(out, 2, 1);
    PUT(COMMAND_UNREACHED, 9, 'p', ' ', '7', ':', ' ', 'w', 'h', 'y', '\n');
    PUT(COMMAND_TEXT, 1, 200, 3, 27, '<', 0, COMMAND_SEGMENT, COMMAND_TRUNCATE, 1, 255);
    PUT(COMMAND_PROCESS, 0, COMMAND_PATCH, 1, 8, 1, 2);
    return (size_t)(at - out);
}

static void make_corpus(const char *corpus) {
    static uint8_t seed[65536];
    write_seed(corpus, "two-ranks", seed, make_job(seed, 2, 5));
    write_seed(corpus, "three-ranks", seed, make_job(seed, 3, 20));
    write_seed(corpus, "damaged", seed, make_damage(seed));
}

static uint64_t read_start_ticks(void) {
    char text[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    require(length > 0 && fclose(file) == 0);
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

static void remove_directory(void) {
    rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const char option[] = "--make-corpus=";
    for (int i = 1; i < *argc; i++)
        if (strncmp((*argv)[i], option, sizeof option - 1) == 0) {
            make_corpus((*argv)[i] + sizeof option - 1);
            exit(0);
        }
    struct utsname system;
    require(uname(&system) == 0);
    snprintf(own_host, sizeof own_host, "%.*s", TRACE_HOST_MAX - 1, system.nodename);
    own_start_ticks = read_start_ticks();
    require(mkdtemp(directory) != NULL);
    directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(directory_fd >= 0 && atexit(remove_directory) == 0);
    return 0;
}
