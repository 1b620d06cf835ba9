#include "option_text.h"

#include <string.h>
#include "base/log.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Reads decimal digits from *p; false when there are none or they exceed 64 bits. */
static bool read_digits(const char **p, uint64_t *out) {
    const char *start = *p;
    uint64_t value = 0;
    for (; is_digit(**p); (*p)++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(**p - '0'), &value))
            return false;
    }
    *out = value;
    return *p > start;
}

static bool at_end(const char *p) {
    return *p == '\0' || (p[0] == '.' && p[1] == '.');
}

bool option_text_parse_integer(const char *p, int64_t *out) {
    bool negative = *p == '-';
    uint64_t magnitude;
    p += negative;
    if (!read_digits(&p, &magnitude) || !at_end(p) || magnitude > INT64_MAX)
        return false;
    *out = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

bool option_text_parse_bytes(const char *p, uint64_t *out) {
    uint64_t value;
    if (!read_digits(&p, &value))
        return false;
    int shift = 0;
    switch (*p) {
    case 'K':
    case 'k':
        shift = 10;
        break;
    case 'M':
    case 'm':
        shift = 20;
        break;
    case 'G':
    case 'g':
        shift = 30;
        break;
    case 'T':
    case 't':
        shift = 40;
        break;
    }
    if (shift) {
        p++;
        if ((p[0] == 'i' || p[0] == 'I') && (p[1] == 'B' || p[1] == 'b'))
            p += 2;
        else if (p[0] == 'B' || p[0] == 'b')
            p++;
    }
    if (!at_end(p) || value > UINT64_MAX >> shift)
        return false;
    *out = value << shift;
    return true;
}

/* strtod would follow the locale. */
bool option_text_parse_decimal(const char *p, double *out) {
    uint64_t whole, fraction = 0, scale = 1;
    if (!read_digits(&p, &whole))
        return false;
    if (p[0] == '.' && is_digit(p[1])) {
        for (p++; is_digit(*p); p++) {
            if (scale >= 1000000000)
                continue; /* below a nanosecond */
            fraction = fraction * 10 + (uint64_t)(*p - '0');
            scale *= 10;
        }
    }
    if (!at_end(p))
        return false;
    *out = (double)whole + (double)fraction / (double)scale;
    return true;
}

size_t option_text_format_bytes(uint64_t bytes, char *out, size_t out_size) {
    static const char suffixes[] = "TGMK";
    for (int i = 0; i < 4; i++) {
        int shift = 40 - 10 * i;
        if (bytes && bytes % (1ull << shift) == 0)
            return log_format(out, out_size, "%llu%c", (unsigned long long)(bytes >> shift), suffixes[i]);
    }
    return log_format(out, out_size, "%llu", (unsigned long long)bytes);
}

size_t option_text_format_decimal(double value, char *out, size_t out_size) {
    size_t length = log_format(out, out_size, "%.9f", value);
    if (memchr(out, '.', length)) {
        while (out[length - 1] == '0')
            length--;
        if (out[length - 1] == '.')
            length--;
        out[length] = '\0';
    }
    return length;
}
