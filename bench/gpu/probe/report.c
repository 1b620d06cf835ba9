/* What checks report, and the time they take. */
#include "probe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_BYTES 4096

struct probe_settings settings;
struct said *said;

static void say(const char *kind, const char *name, const char *open, const char *format, va_list arguments,
                const char *close) {
    char line[LINE_BYTES];
    int head = snprintf(line, sizeof line, "%s\t%s\t%s", kind, name, open);
    int body = vsnprintf(line + head, sizeof line - (size_t)head, format, arguments);
    size_t length = (size_t)head + (size_t)body, at = said->bytes;

    if (body < 0 || length + 4 > sizeof line || at + length + 4 > SAID_BYTES)
        return;
    length += (size_t)snprintf(line + length, sizeof line - length, "%s\n", close);
    memcpy(said->lines + at, line, length);
    said->bytes = at + length; /* seen as a whole, or not */
}

void report(const char *name, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    say("field", name, "", format, arguments, "");
    va_end(arguments);
}

void report_row(const char *list, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    say("row", list, "{", format, arguments, "}");
    va_end(arguments);
}

static void escape(const char *text, char *out, size_t bytes) {
    size_t at = 0;

    for (; *text && at + 3 < bytes; text++) {
        if (*text == '"' || *text == '\\')
            out[at++] = '\\';
        out[at++] = (unsigned char)*text < ' ' ? ' ' : *text;
    }
    out[at] = '\0';
}

void report_text(const char *name, const char *text) {
    char escaped[LINE_BYTES / 2];

    escape(text, escaped, sizeof escaped);
    report(name, "\"%s\"", escaped);
}

static void why(const char *format, va_list arguments) {
    char text[512];

    vsnprintf(text, sizeof text, format, arguments);
    escape(text, said->why, sizeof said->why);
}

bool check_failed(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    why(format, arguments);
    va_end(arguments);
    return false;
}

bool check_left_out(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    why(format, arguments);
    va_end(arguments);
    said->left_out = 1;
    return false;
}

/* ---- time ---- */

double now_us(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    return count ? (values[(count - 1) / 2] + values[count / 2]) / 2 : 0;
}
