/* The report for TensorBoard: the curves of each rank, as a run of its own in a file of events.
 *
 * A file is a series of records: a length, the data, and a checksum of each (CRC-32C, masked). The data is a message of Protocol Buffers,
 * Event, of which these fields are written:
 *   Event    1: wall_time (double)  2: step (integer)  3: file_version (string, in the first record alone)  5: summary (message)
 *   Summary  1: value (message, repeated)
 *   Value    1: tag (string)  2: simple_value (float) */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "job/begin.h"
#include "report.h"

#define FILE_VERSION "brain.Event:2"

enum { MESSAGE_MAX = 256, TAG_MAX = 96 };

/* ---- messages ---- */

typedef struct message {
    unsigned char bytes[MESSAGE_MAX];
    size_t size;
} message;

enum wire { WIRE_INTEGER = 0, WIRE_8_BYTES = 1, WIRE_TEXT = 2, WIRE_4_BYTES = 5 };

static void add_integer(message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        m->bytes[m->size++] = (unsigned char)(value | 0x80);
    m->bytes[m->size++] = (unsigned char)value;
}

static void add_field(message *m, unsigned field, enum wire wire) {
    add_integer(m, field << 3 | wire);
}

static void add_bytes(message *m, unsigned field, const void *bytes, size_t size) {
    add_field(m, field, WIRE_TEXT);
    add_integer(m, size);
    memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void add_number(message *m, unsigned field, const void *value, size_t size) {
    add_field(m, field, size == sizeof(double) ? WIRE_8_BYTES : WIRE_4_BYTES);
    memcpy(m->bytes + m->size, value, size);
    m->size += size;
}

/* ---- records ---- */

/* CRC-32C: the polynomial 0x82f63b78, lowest bit first. */
static uint32_t crc32c(const unsigned char *bytes, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void write_checksum(FILE *out, const void *bytes, size_t size) {
    uint32_t crc = crc32c(bytes, size), masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
    fwrite(&masked, sizeof masked, 1, out);
}

static void write_record(FILE *out, const message *m) {
    uint64_t length = m->size;
    fwrite(&length, sizeof length, 1, out);
    write_checksum(out, &length, sizeof length);
    fwrite(m->bytes, 1, m->size, out);
    write_checksum(out, m->bytes, m->size);
}

static void write_begin(FILE *out, double wall_time) {
    message event = {.size = 0};
    add_number(&event, 1, &wall_time, sizeof wall_time);
    add_bytes(&event, 3, FILE_VERSION, strlen(FILE_VERSION));
    write_record(out, &event);
}

static void write_scalar(FILE *out, const char *tag, uint64_t step, double wall_time, double value) {
    message event = {.size = 0}, summary = {.size = 0}, inner = {.size = 0};
    float number = (float)value;
    add_bytes(&inner, 1, tag, strnlen(tag, TAG_MAX));
    add_number(&inner, 2, &number, sizeof number);
    add_bytes(&summary, 1, inner.bytes, inner.size);
    add_number(&event, 1, &wall_time, sizeof wall_time);
    add_field(&event, 2, WIRE_INTEGER);
    add_integer(&event, step);
    add_bytes(&event, 5, summary.bytes, summary.size);
    write_record(out, &event);
}

/* ---- curves ---- */

static double wall_time_of(const report *report, uint64_t job_ns) {
    return (double)(report->start_realtime_ns + job_ns) / 1e9;
}

/* From each step of the busiest optimizer to its next. */
static void write_steps(const report *report, const report_rank *rank, FILE *out) {
    const report_steps *steps = &rank->process->steps;
    uint64_t number = 0, before_ns = 0;
    for (size_t i = 0; i < steps->count; i++) {
        if (steps->rows[i].optimizer != rank->busiest_optimizer)
            continue;
        uint64_t begin_ns = steps->rows[i].begin_ns;
        if (number++ > 0)
            write_scalar(out, "step_seconds", number,
                         wall_time_of(report, report_job_ns(report, rank->process, begin_ns)),
                         (double)(begin_ns - before_ns) / 1e9);
        before_ns = begin_ns;
    }
}

/* The busiest optimizer's steps that had begun then; `from` goes on from call to call. */
static uint64_t steps_until(const report *report, const report_rank *rank, uint64_t job_ns, size_t *from,
                            uint64_t number) {
    const report_steps *steps = &rank->process->steps;
    for (; *from < steps->count; (*from)++) {
        if (report_job_ns(report, rank->process, steps->rows[*from].begin_ns) > job_ns)
            break;
        number += steps->rows[*from].optimizer == rank->busiest_optimizer;
    }
    return number;
}

/* The highest value of each bucket of the report's timelines. */
static void write_memory(const report *report, const report_rank *rank, FILE *out) {
    const report_memory *memory = &rank->memory;
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++) {
        char tag[TAG_MAX];
        size_t from = 0;
        uint64_t step = 0;
        snprintf(tag, sizeof tag, "memory_bytes/%s", report_memory_label((report_memory_kind)kind));
        for (uint32_t i = 0; memory->values[kind] != NULL && i < memory->buckets; i++) {
            uint64_t job_ns = memory->begin_job_ns + i * memory->width_ns;
            step = steps_until(report, rank, job_ns, &from, step);
            write_scalar(out, tag, step, wall_time_of(report, job_ns), (double)memory->values[kind][i]);
        }
    }
}

bool report_write_tensorboard(const report *report, const char *folder) {
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        char run[PATH_MAX], path[PATH_MAX], name[32];
        size_t made_from;
        snprintf(name, sizeof name, rank->rank < 0 ? "process%u" : "rank%u",
                 rank->rank < 0 ? rank->process->counters->pid : (unsigned)rank->rank);
        int length = snprintf(run, sizeof run, "%s/%s/%s", folder, report->job, name);
        if (length >= (int)sizeof run ||
            snprintf(path, sizeof path, "%s/events.out.tfevents.%llu.castor", run,
                     (unsigned long long)(report->start_realtime_ns / 1000000000u)) >= (int)sizeof path) {
            errno = ENAMETOOLONG;
            return false;
        }
        FILE *out = job_folders_make(run, &made_from) ? fopen(path, "we") : NULL;
        if (out == NULL)
            return false;
        write_begin(out, wall_time_of(report, 0));
        write_steps(report, rank, out);
        write_memory(report, rank, out);
        bool written = !ferror(out);
        if (fclose(out) != 0 || !written)
            return false;
    }
    return true;
}
