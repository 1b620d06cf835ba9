/* Writes JSON (RFC 8259) to a stream, indented, one value at a time. Keys are NULL inside arrays and at the
 * top.
 *
 * Bytes that are not UTF-8 become U+FFFD, numbers that are not finite become null: the output always
 * parses. With `in_html` the text may stand inside a <script> element: nothing in it ends the element or begins another. */
#ifndef CASTOR_LAUNCHER_COMMON_JSON_H
#define CASTOR_LAUNCHER_COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 32

typedef struct json_writer {
    FILE *out;
    bool compact; /* no indent, no line ends */
    bool in_html;
    size_t text_max; /* longer texts are cut; 0: none is */
    int depth;
    bool was_compact; /* before json_figures_begin */
    bool has_members[JSON_DEPTH_MAX];
} json_writer;

void json_object_begin(json_writer *json, const char *key);
void json_object_end(json_writer *json);
void json_array_begin(json_writer *json, const char *key);
void json_array_end(json_writer *json);
void json_string(json_writer *json, const char *key, const char *value); /* NULL: null */
void json_unsigned(json_writer *json, const char *key, uint64_t value);
void json_signed(json_writer *json, const char *key, int64_t value);
void json_number(json_writer *json, const char *key, double value);
void json_bool(json_writer *json, const char *key, bool value);
void json_null(json_writer *json, const char *key);
/* The number, or null for one that says nothing: 0, or a negative one. */
void json_unsigned_or_null(json_writer *json, const char *key, uint64_t value);
void json_signed_or_null(json_writer *json, const char *key, int64_t value);
/* An array of figures, on one line. */
void json_figures_begin(json_writer *json, const char *key);
void json_figures_end(json_writer *json);

#endif
