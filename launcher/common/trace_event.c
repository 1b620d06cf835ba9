#include "trace_event.h"

#include <string.h>
#include "utf8.h"

#define NUMBER_BYTES 24

void trace_event_flush(trace_event_writer *writer) {
    fwrite(writer->buffer, 1, writer->used, writer->out);
    writer->used = 0;
}

static char *reserve(trace_event_writer *writer, size_t bytes) {
    if (writer->used + bytes > TRACE_EVENT_BUFFER)
        trace_event_flush(writer);
    return writer->buffer + writer->used;
}

static void put(trace_event_writer *writer, const char *text) {
    size_t length = strlen(text);
    if (length > TRACE_EVENT_BUFFER) {
        trace_event_flush(writer);
        fwrite(text, 1, length, writer->out);
        return;
    }
    memcpy(reserve(writer, length), text, length);
    writer->used += length;
}

static void put_digits(trace_event_writer *writer, uint64_t value, int least) {
    char digits[NUMBER_BYTES];
    int at = NUMBER_BYTES;
    for (; value > 0 || least > 0; value /= 10, least--)
        digits[--at] = (char)('0' + value % 10);
    size_t length = (size_t)(NUMBER_BYTES - at);
    memcpy(reserve(writer, length), digits + at, length);
    writer->used += length;
}

void trace_event_escape(char *out, size_t size, const char *text) {
    static const char hex[] = "0123456789abcdef";
    size_t length = strlen(text), used = 0;
    for (size_t i = 0; i < length;) {
        unsigned char byte = (unsigned char)text[i];
        size_t sequence = utf8_length(text + i, length - i);
        if (used + 7 > size)
            break;
        if (sequence == 0 || byte < 0x20 || byte == 0x7f) {
            memcpy(out + used, "\\u", 2);
            const unsigned code = sequence == 0 ? 0xfffd : byte;
            for (int digit = 0; digit < 4; digit++)
                out[used + 2 + (size_t)digit] = hex[code >> (12 - 4 * digit) & 15];
            used += 6;
        } else {
            if (byte == '"' || byte == '\\')
                out[used++] = '\\';
            memcpy(out + used, text + i, sequence);
            used += sequence;
        }
        i += sequence == 0 ? 1 : sequence;
    }
    if (size > 0)
        out[used] = '\0';
}

static void put_member(trace_event_writer *writer, const char *member) {
    put(writer, writer->first_member ? "\"" : ",\"");
    writer->first_member = false;
    put(writer, member);
    put(writer, "\":");
}

void trace_event_begin(trace_event_writer *writer, char phase, uint32_t process, uint32_t track) {
    put(writer, writer->any ? ",\n" : "\n");
    writer->any = true;
    writer->first_member = false;
    char start[] = "{\"ph\":\"?\"";
    start[7] = phase;
    put(writer, start);
    trace_event_number(writer, "pid", process);
    trace_event_number(writer, "tid", track);
}

void trace_event_name(trace_event_writer *writer, const char *escaped) {
    trace_event_text(writer, "name", escaped);
}

void trace_event_text(trace_event_writer *writer, const char *member, const char *escaped) {
    put_member(writer, member);
    put(writer, "\"");
    put(writer, escaped);
    put(writer, "\"");
}

void trace_event_number(trace_event_writer *writer, const char *member, uint64_t value) {
    put_member(writer, member);
    put_digits(writer, value, 1);
}

void trace_event_ns(trace_event_writer *writer, const char *member, uint64_t ns) {
    put_member(writer, member);
    put_digits(writer, ns / 1000, 1);
    if (ns % 1000 != 0) {
        put(writer, ".");
        put_digits(writer, ns % 1000, 3);
    }
}

void trace_event_arguments(trace_event_writer *writer) {
    put(writer, ",\"args\":{");
    writer->in_arguments = writer->first_member = true;
}

void trace_event_end(trace_event_writer *writer) {
    put(writer, writer->in_arguments ? "}}" : "}");
    writer->in_arguments = false;
}
