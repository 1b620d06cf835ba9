#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "utf8.h"

static void write_text(json_writer *json, const char *text) {
    size_t length = strlen(text);
    fputc('"', json->out);
    for (size_t i = 0; i < length;) {
        if (json->text_max > 0 && i >= json->text_max) {
            fputs("\xe2\x80\xa6", json->out);
            break;
        }
        unsigned char byte = (unsigned char)text[i];
        size_t sequence = utf8_length(text + i, length - i);
        if (sequence == 0)
            fputs("\\ufffd", json->out);
        else if (byte == '"' || byte == '\\')
            fprintf(json->out, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7f ||
                 (json->in_html && (byte == '<' || byte == '>' || byte == '&')))
            fprintf(json->out, "\\u%04x", byte);
        else if (byte == 0xc2 && (unsigned char)text[i + 1] < 0xa0) /* controls, too, to some terminals */
            fprintf(json->out, "\\u%04x", (unsigned char)text[i + 1]);
        else
            fwrite(text + i, 1, sequence, json->out);
        i += sequence == 0 ? 1 : sequence;
    }
    fputc('"', json->out);
}

/* What stands before a value: a comma, the indent and the key. */
static void begin_value(json_writer *json, const char *key) {
    if (json->depth > 0) {
        bool *has_members = &json->has_members[json->depth - 1];
        if (json->compact)
            fputs(*has_members ? "," : "", json->out);
        else
            fprintf(json->out, "%s\n%*s", *has_members ? "," : "", 2 * json->depth, "");
        *has_members = true;
    }
    if (key != NULL) {
        write_text(json, key);
        fputs(json->compact ? ":" : ": ", json->out);
    }
}

static void begin_container(json_writer *json, const char *key, char bracket) {
    begin_value(json, key);
    fputc(bracket, json->out);
    json->has_members[json->depth++] = false;
}

static void end_container(json_writer *json, char bracket) {
    if (json->has_members[--json->depth] && !json->compact)
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->out);
    if (json->depth == 0 && !json->compact)
        fputc('\n', json->out);
}

void json_object_begin(json_writer *json, const char *key) {
    begin_container(json, key, '{');
}
void json_object_end(json_writer *json) {
    end_container(json, '}');
}
void json_array_begin(json_writer *json, const char *key) {
    begin_container(json, key, '[');
}
void json_array_end(json_writer *json) {
    end_container(json, ']');
}

void json_string(json_writer *json, const char *key, const char *value) {
    begin_value(json, key);
    if (value == NULL)
        fputs("null", json->out);
    else
        write_text(json, value);
}

void json_unsigned(json_writer *json, const char *key, uint64_t value) {
    begin_value(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void json_signed(json_writer *json, const char *key, int64_t value) {
    begin_value(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_number(json_writer *json, const char *key, double value) {
    begin_value(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void json_bool(json_writer *json, const char *key, bool value) {
    begin_value(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_null(json_writer *json, const char *key) {
    begin_value(json, key);
    fputs("null", json->out);
}

void json_unsigned_or_null(json_writer *json, const char *key, uint64_t value) {
    if (value > 0)
        json_unsigned(json, key, value);
    else
        json_null(json, key);
}

void json_signed_or_null(json_writer *json, const char *key, int64_t value) {
    if (value >= 0)
        json_signed(json, key, value);
    else
        json_null(json, key);
}

void json_figures_begin(json_writer *json, const char *key) {
    json_array_begin(json, key);
    json->was_compact = json->compact;
    json->compact = true;
}
void json_figures_end(json_writer *json) {
    json_array_end(json);
    json->compact = json->was_compact;
}
