/* libFuzzer target for the readers of single files: any bytes as a counter file, a segment and a live file. `make fuzz`
 * builds and runs it (docs/trace.md).
 *
 * Counter files and live files are large and mostly zeros: an input that is shorter than one, and begins like one, is
 * read both as it is and filled up with zeros, so that the fuzzer gets past the check of the size. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "launcher/common/live_read.h"
#include "launcher/common/trace_read.h"
#include "launcher/common/utf8.h"
#include "seed.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What trace_read.h promises of every text. */
static void check_text(const char *text, size_t size) {
    size_t length = strnlen(text, size);
    if (length == size)
        abort();
    for (size_t i = 0; i < length;) {
        size_t sequence = utf8_length(text + i, length - i);
        if (sequence == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            abort();
        i += sequence;
    }
}

static void check_record(void *context, const trace_record *record) {
    ++*(uint64_t *)context;
    if (record->kind >= TRACE_RECORD_KIND_COUNT)
        abort();
}

static void read_live(int fd) {
    static live_file live;
    if (!live_read(fd, &live))
        return;
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++)
        check_text(live.groups[i].name, sizeof live.groups[i].name);
    for (uint32_t i = 0; i < LIVE_WAITS_MAX; i++) {
        const live_wait *wait = &live.waits[i];
        check_text(wait->what, sizeof wait->what);
        if (wait->group >= LIVE_PROCESS_GROUPS_MAX && wait->group != LIVE_PROCESS_GROUP_UNKNOWN)
            abort();
        if (wait->begin_ns != 0 && (wait->kind < LIVE_COLLECTIVE || wait->kind > LIVE_RECEIVE))
            abort();
    }
}

static void read_all(int fd) {
    char message[TRACE_READ_MESSAGE_MAX];
    static trace_counters counters;
    memset(message, 'x', sizeof message);
    trace_read_status status = trace_read_counters(fd, &counters, message);
    if (status == TRACE_READ_BAD)
        check_text(message, sizeof message);
    if (status == TRACE_READ_OK) {
        check_text(counters.host, sizeof counters.host);
        check_text(counters.plugin, sizeof counters.plugin);
        check_text(counters.command, sizeof counters.command);
        check_text(counters.outcome, sizeof counters.outcome);
        for (uint32_t kind = 0; kind < TRACE_RECORD_KIND_COUNT; kind++)
            for (uint32_t id = 0; id < trace_slot_ids(kind); id++) {
                const char *name = trace_read_name(&counters, kind, id);
                if (name != NULL)
                    check_text(name, (size_t)(counters.names + TRACE_NAMES_BYTES - name));
            }
    }
    trace_segment segment;
    uint64_t records = 0;
    memset(message, 'x', sizeof message);
    status = trace_read_segment(fd, &segment, check_record, &records, message);
    if (status == TRACE_READ_BAD)
        check_text(message, sizeof message);
    if (status == TRACE_READ_OK && records != segment.committed)
        abort();
    read_live(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0 && (fd = memfd_create("trace", MFD_CLOEXEC)) < 0)
        abort();
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    read_all(fd);
    uint64_t magic = 0;
    if (size > 0)
        memcpy(&magic, data, size < sizeof magic ? size : sizeof magic);
    size_t whole = magic == TRACE_COUNTERS_MAGIC ? sizeof(trace_counters)
                   : magic == LIVE_MAGIC         ? sizeof(live_file)
                                                 : 0;
    if (size < whole) {
        if (ftruncate(fd, (off_t)whole) != 0)
            abort();
        read_all(fd);
    }
    return 0;
}

static void make_corpus(const char *directory) {
    static struct {
        trace_segment segment;
        trace_record records[5];
    } segment;
    segment.segment = (trace_segment){.magic = TRACE_SEGMENT_MAGIC,
                                      .version = TRACE_VERSION,
                                      .header_bytes = sizeof(trace_segment),
                                      .record_bytes = sizeof(trace_record),
                                      .capacity = 5,
                                      .committed = 5,
                                      .thread_name = "python"};
    for (uint32_t i = 0; i < 5; i++)
        segment.records[i] = (trace_record){.begin_ns = i, .end_ns = i + 1, .kind = i, .id = i};
    write_seed(directory, "segment", &segment, sizeof segment);
    static trace_counters counters = {.magic = TRACE_COUNTERS_MAGIC,
                                      .version = TRACE_VERSION,
                                      .file_bytes = sizeof counters,
                                      .slot_count = TRACE_SLOT_MAX,
                                      .gauge_count = GAUGE_COUNT,
                                      .names_used = 12,
                                      .host = "node",
                                      .plugin = "gemini",
                                      .command = "python train.py",
                                      .outcome = "passthrough: r\xc3\xa4son"};
    counters.counters[3] = (trace_counter){1, 2, 3};
    counters.name_offsets[3] = 1;
    memcpy(counters.names + 1, "cudaMalloc", 11);
    write_seed(directory, "counters", &counters, sizeof counters);
    write_seed(directory, "counters-head", &counters, offsetof(trace_counters, gauges));
    static live_file live = {
        .magic = LIVE_MAGIC, .version = LIVE_VERSION, .file_bytes = sizeof live, .pid = 1, .process_uid = 1};
    live.groups[0] = (live_process_group){.entered = 3, .size = 2, .used = 1, .name = "0", .members = {3}};
    live.waits[0] =
        (live_wait){.begin_ns = 1, .ordinal = 3, .kind = LIVE_COLLECTIVE, .claimed = 1, .what = "allreduce"};
    write_seed(directory, "live", &live, sizeof live);
    write_seed(directory, "live-head", &live, offsetof(live_file, groups) + sizeof live.groups[0]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const char option[] = "--make-corpus=";
    for (int i = 1; i < *argc; i++)
        if (strncmp((*argv)[i], option, sizeof option - 1) == 0) {
            make_corpus((*argv)[i] + sizeof option - 1);
            exit(0);
        }
    return 0;
}
