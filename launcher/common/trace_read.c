#include "trace_read.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "utf8.h"

#define BATCH_RECORDS 256

__attribute__((format(printf, 2, 3))) static trace_read_status bad(char message[TRACE_READ_MESSAGE_MAX],
                                                                   const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, TRACE_READ_MESSAGE_MAX, format, arguments);
    va_end(arguments);
    return TRACE_READ_BAD;
}

/* Bytes read, fewer at the end of the file; -1 with errno. */
static ssize_t read_at(int fd, void *out, size_t bytes, uint64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t part = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (part < 0 && errno == EINTR)
            continue;
        if (part < 0)
            return -1;
        if (part == 0)
            break;
        done += (size_t)part;
    }
    return (ssize_t)done;
}

void trace_read_clean(char *text, size_t size) {
    if (size == 0)
        return;
    text[size - 1] = '\0';
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        size_t sequence = utf8_length(text + i, length - i);
        bool c1_control =
            sequence == 2 && (unsigned char)text[i] == 0xc2 && (unsigned char)text[i + 1] < 0xa0;
        if (sequence == 0 || c1_control || (unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = c1_control ? (text[i + 1] = '?') : '?';
        i += sequence == 0 ? 1 : sequence;
    }
}

/* Reads the begin of a file, `bytes` of it: magic and version come first in every kind of file. */
static trace_read_status read_begin(int fd, uint64_t magic, const char *what, void *out, size_t bytes,
                                    char message[TRACE_READ_MESSAGE_MAX]) {
    struct stat status;
    struct {
        uint64_t magic;
        uint32_t version;
    } identity;
    memset(out, 0, bytes);
    if (fstat(fd, &status) != 0)
        return bad(message, "cannot be read: %s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return bad(message, "is not a regular file");
    ssize_t got = read_at(fd, out, bytes, 0);
    if (got < 0)
        return bad(message, "cannot be read: %s", strerror(errno));
    memcpy(&identity, out, sizeof identity);
    if (identity.magic == 0)
        return TRACE_READ_EMPTY;
    if (identity.magic != magic)
        return bad(message, "is not a %s of castor", what);
    if (got >= (ssize_t)sizeof identity && identity.version != TRACE_VERSION)
        return bad(message,
                   "has trace version %u, this castor reads version %u: use the castor that ran the job",
                   identity.version, TRACE_VERSION);
    if (got < (ssize_t)bytes)
        return bad(message, "is truncated: %llu bytes, %zu expected", (unsigned long long)status.st_size,
                   bytes);
    return TRACE_READ_OK;
}

trace_read_status trace_read_counters(int fd, trace_counters *out, char message[TRACE_READ_MESSAGE_MAX]) {
    trace_read_status status =
        read_begin(fd, TRACE_COUNTERS_MAGIC, "counter file", out, sizeof *out, message);
    if (status != TRACE_READ_OK)
        return status;
    if (out->file_bytes != sizeof *out || out->slot_count != TRACE_SLOT_MAX ||
        out->gauge_count > TRACE_GAUGE_MAX)
        return bad(message, "is damaged: its sizes are not those of trace version %u", TRACE_VERSION);
    trace_read_clean(out->host, sizeof out->host);
    trace_read_clean(out->plugin, sizeof out->plugin);
    trace_read_clean(out->command, sizeof out->command);
    trace_read_clean(out->outcome, sizeof out->outcome);
    trace_read_clean(out->exception.type, sizeof out->exception.type);
    trace_read_clean(out->exception.message, sizeof out->exception.message);
    trace_read_clean(out->exception.place, sizeof out->exception.place);
    /* Names are strings one after another: clean each, then let offsets point only to where one begins. */
    out->names[TRACE_NAMES_BYTES - 1] = '\0';
    for (size_t at = 0; at < TRACE_NAMES_BYTES; at++) {
        if (out->names[at] == '\0') /* most of them are unused */
            continue;
        size_t length = strlen(out->names + at);
        trace_read_clean(out->names + at, length + 1);
        at += length;
    }
    for (uint32_t slot = 0; slot < TRACE_SLOT_MAX; slot++) {
        uint32_t offset = out->name_offsets[slot];
        if (offset == 0)
            continue;
        if (offset >= TRACE_NAMES_BYTES || out->names[offset - 1] != '\0')
            return bad(message, "is damaged: the name of counter %u lies outside of the names", slot);
    }
    return TRACE_READ_OK;
}

const char *trace_read_name(const trace_counters *counters, uint32_t kind, uint32_t id) {
    uint32_t offset = counters->name_offsets[trace_slot(kind, id)];
    return offset == 0 || counters->names[offset] == '\0' ? NULL : counters->names + offset;
}

uint64_t trace_read_total(const trace_counters *counters, uint32_t kind) {
    uint64_t total = 0;
    for (uint32_t id = 0; id < trace_slot_ids(kind); id++)
        total += counters->counters[trace_slot(kind, id)].count;
    return total;
}

bool trace_read_has_trained(const trace_counters *counters) {
    return counters->gauges[GAUGE_STEPS].last > 0 || counters->gauges[GAUGE_MICRO_STEPS].last > 0 ||
           trace_read_total(counters, TRACE_STEP) > 0 || trace_read_total(counters, TRACE_BACKWARD) > 0;
}

bool trace_read_speaks_rather(const trace_counters *a, const trace_counters *b) {
    bool trained = trace_read_has_trained(a), a_forked = a->parent_uid != 0, b_forked = b->parent_uid != 0;
    if (trained != trace_read_has_trained(b))
        return trained;
    return a_forked != b_forked ? b_forked : a->start_realtime_ns > b->start_realtime_ns;
}

trace_read_status trace_read_segment(int fd, trace_segment *header, trace_read_visitor visit, void *context,
                                     char message[TRACE_READ_MESSAGE_MAX]) {
    trace_read_status status =
        read_begin(fd, TRACE_SEGMENT_MAGIC, "trace segment", header, sizeof *header, message);
    if (status != TRACE_READ_OK)
        return status;
    if (header->header_bytes != sizeof *header || header->record_bytes != sizeof(trace_record))
        return bad(message, "is damaged: its sizes are not those of trace version %u", TRACE_VERSION);
    if (header->committed > header->capacity)
        return bad(message, "is damaged: %llu records in a segment for %u",
                   (unsigned long long)header->committed, header->capacity);
    trace_read_clean(header->thread_name, sizeof header->thread_name);

    trace_record batch[BATCH_RECORDS];
    uint64_t unknown = 0;
    for (uint64_t done = 0; done < header->committed;) {
        uint64_t left = header->committed - done;
        size_t wanted = left < BATCH_RECORDS ? (size_t)left : BATCH_RECORDS;
        ssize_t got =
            read_at(fd, batch, wanted * sizeof(trace_record), sizeof *header + done * sizeof(trace_record));
        if (got < 0)
            return bad(message, "cannot be read: %s", strerror(errno));
        size_t complete = (size_t)got / sizeof(trace_record);
        for (size_t i = 0; i < complete; i++) {
            if (batch[i].kind >= TRACE_RECORD_KIND_COUNT)
                unknown++;
            else
                visit(context, &batch[i]);
        }
        done += complete;
        if (complete < wanted)
            return bad(message, "is truncated: %llu of its %llu records are there", (unsigned long long)done,
                       (unsigned long long)header->committed);
    }
    if (unknown > 0)
        return bad(message, "is damaged: %llu of its %llu records are of no known kind",
                   (unsigned long long)unknown, (unsigned long long)header->committed);
    return TRACE_READ_OK;
}
