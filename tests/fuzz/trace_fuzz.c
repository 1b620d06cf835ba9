/* libFuzzer target for the trace reader: any bytes as a counter file and as a segment.
 *
 *   clang -std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -Iinterpose \
 *       tests/fuzz/trace_fuzz.c launcher/trace_read.c -o build/trace_fuzz
 *   mkdir -p build/trace_corpus && build/trace_fuzz --make-corpus=build/trace_corpus
 *   build/trace_fuzz -max_len=200000 -max_total_time=60 build/trace_corpus
 *
 * A counter file is large and mostly zeros: an input that is shorter than one, and begins like one, is read
 * both as it is and filled up with zeros, so that the fuzzer gets past the check of the size. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../launcher/trace_read.h"
#include "../../launcher/utf8.h"

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

static void read_both(int fd) {
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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0 && (fd = memfd_create("trace", MFD_CLOEXEC)) < 0)
        abort();
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    read_both(fd);
    uint64_t magic = 0;
    memcpy(&magic, data, size < sizeof magic ? size : sizeof magic);
    if (magic == TRACE_COUNTERS_MAGIC && size < sizeof(trace_counters)) {
        if (ftruncate(fd, sizeof(trace_counters)) != 0)
            abort();
        read_both(fd);
    }
    return 0;
}

static void write_seed(const char *directory, const char *name, const void *data, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "we");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
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
