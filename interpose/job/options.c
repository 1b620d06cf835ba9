#include "options.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/log.h"
#include "base/nearest.h"
#include "signature.h"

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

/* Each parser reads a value that ends at a NUL or at "..", so that it also reads the bounds of the table. False: no number. */
static bool option_text_parse_integer(const char *p, int64_t *out) {
    bool negative = *p == '-';
    uint64_t magnitude;
    p += negative;
    if (!read_digits(&p, &magnitude) || !at_end(p) || magnitude > INT64_MAX)
        return false;
    *out = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

/* With the suffix K, M, G or T, powers of 1024; "KB" and "KiB" say the same as "K". In any case. */
static bool option_text_parse_bytes(const char *p, uint64_t *out) {
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

bool option_bytes_parse(const char *text, uint64_t *out) {
    return !strstr(text, "..") && option_text_parse_bytes(text, out);
}

/* strtod would follow the locale. */
static bool option_text_parse_decimal(const char *p, double *out) {
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

static size_t option_text_format_bytes(uint64_t bytes, char *out, size_t out_size) {
    static const char suffixes[] = "TGMK";
    for (int i = 0; i < 4; i++) {
        int shift = 40 - 10 * i;
        if (bytes && bytes % (1ull << shift) == 0)
            return log_format(out, out_size, "%llu%c", (unsigned long long)(bytes >> shift), suffixes[i]);
    }
    return log_format(out, out_size, "%llu", (unsigned long long)bytes);
}

/* "32M", or the plain number when it is no multiple. Both return the length. */
static size_t option_text_format_decimal(double value, char *out, size_t out_size) {
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

#define PREFIX "CASTOR_"
#define AUTO   "auto" /* of BYTES; the bounds follow it in the table, after a bar */

typedef enum value_type {
    TYPE_STRING,
    TYPE_SIGNATURES,
    TYPE_BOOL,
    TYPE_INT,
    TYPE_SECONDS,
    TYPE_FRACTION,
    TYPE_BYTES,
    TYPE_ENUM
} value_type;

const option_info option_table[OPTION_COUNT] = {
#define OPTION(type, field, env, def, allowed, doc)   {#type, #field, env, def, allowed, doc, false},
#define INTERNAL(type, field, env, def, allowed, doc) {#type, #field, env, def, allowed, doc, true},
#include "options.def"
#undef INTERNAL
};

/* Where the value of each row goes. */
static const struct option_slot {
    value_type type;
    size_t offset;
} option_slots[OPTION_COUNT] = {
#define OPTION(type, field, env, def, allowed, doc) {TYPE_##type, offsetof(castor_options, field)},
#include "options.def"
};

/* The row of CASTOR_PLUGIN names the plugins of plugins.def, in its order: the position is the plugin's id. */
#define PLUGIN(id, name, engine, shards, doc) "|" name
_Static_assert(__builtin_strcmp("|" CASTOR_PLUGIN_NAMES,
#include "plugins.def"
                                ) == 0,
               "CASTOR_PLUGIN_NAMES in options.h differs from plugins.def");

static castor_options current;
static option_source sources[OPTION_COUNT];

const castor_options *options(void) {
    return &current;
}
option_source option_set_by(option_id id) {
    return sources[id];
}

/* A parsed value, before it is stored. */
typedef union option_value {
    int64_t integer;
    uint64_t bytes;
    double decimal;
    const char *string;
} option_value;

/* The item of "a|b|c" at *p, which moves to the next one; false after the last. */
static bool next_item(const char **p, const char **item, size_t *length) {
    if (!*p)
        return false;
    const char *bar = strchr(*p, '|');
    *item = *p;
    *length = bar ? (size_t)(bar - *p) : strlen(*p);
    *p = bar ? bar + 1 : NULL;
    return true;
}

/* The position of `value` in an "a|b|c" list, or -1. */
static int find_item(const char *list, const char *value) {
    const char *item;
    size_t length;
    for (int position = 0; next_item(&list, &item, &length); position++)
        if (strlen(value) == length && memcmp(item, value, length) == 0)
            return position;
    return -1;
}

/* Of a number: its bounds, behind the word that stands for no number. */
static const char *bounds_of(const option_info *row) {
    const char *bar = strchr(row->allowed, '|');
    return bar ? bar + 1 : row->allowed;
}

static bool within_bounds(const option_info *row, value_type type, option_value value) {
    const char *low = bounds_of(row), *high = strstr(row->allowed, "..");
    option_value min, max;
    if (!high)
        return false;
    high += 2;
    switch (type) {
    case TYPE_INT:
        return option_text_parse_integer(low, &min.integer) &&
               option_text_parse_integer(high, &max.integer) && value.integer >= min.integer &&
               value.integer <= max.integer;
    case TYPE_SECONDS:
    case TYPE_FRACTION:
        return option_text_parse_decimal(low, &min.decimal) &&
               option_text_parse_decimal(high, &max.decimal) && value.decimal >= min.decimal &&
               value.decimal <= max.decimal;
    case TYPE_BYTES:
        return option_text_parse_bytes(low, &min.bytes) && option_text_parse_bytes(high, &max.bytes) &&
               value.bytes >= min.bytes && value.bytes <= max.bytes;
    default:
        return false;
    }
}

/* The value holds no ".." of its own: the parsers would take it for the end of a bound. */
static bool parse_value(option_id id, const char *text, option_value *out) {
    const option_info *row = &option_table[id];
    value_type type = option_slots[id].type;
    char message[1];
    if (type != TYPE_STRING && type != TYPE_SIGNATURES && strstr(text, ".."))
        return false;
    switch (type) {
    case TYPE_STRING:
        out->string = text;
        return strlen(text) < OPTION_STRING_MAX;
    case TYPE_SIGNATURES:
        out->string = text;
        return strlen(text) < OPTION_STRING_MAX &&
               signature_check(text, message, sizeof message) == CASTOR_OK;
    case TYPE_BOOL:
    case TYPE_ENUM:
        out->integer = find_item(row->allowed, text);
        return out->integer >= 0;
    case TYPE_INT:
        return option_text_parse_integer(text, &out->integer) && within_bounds(row, type, *out);
    case TYPE_SECONDS:
    case TYPE_FRACTION:
        return option_text_parse_decimal(text, &out->decimal) && within_bounds(row, type, *out);
    case TYPE_BYTES:
        if (bounds_of(row) != row->allowed && strcmp(text, AUTO) == 0) {
            out->bytes = OPTION_BYTES_AUTO;
            return true;
        }
        return option_text_parse_bytes(text, &out->bytes) && within_bounds(row, type, *out);
    }
    return false;
}

static void store_value(option_id id, option_value value, option_source source) {
    void *field = (char *)&current + option_slots[id].offset;
    switch (option_slots[id].type) {
    case TYPE_STRING:
    case TYPE_SIGNATURES: {
        size_t length = strlen(value.string);
        memcpy(field, value.string, length + 1);
        break;
    }
    case TYPE_BOOL:
        *(bool *)field = value.integer == 1; /* the list is 0|1 */
        break;
    case TYPE_INT:
    case TYPE_ENUM:
        *(int *)field = (int)value.integer;
        break;
    case TYPE_SECONDS:
    case TYPE_FRACTION:
        *(double *)field = value.decimal;
        break;
    case TYPE_BYTES:
        *(uint64_t *)field = value.bytes;
        break;
    }
    sources[id] = source;
}

/* "none, gemini" */
static void describe_list(const char *list, char *out, size_t out_size) {
    const char *item;
    size_t length, used = 0;
    out[0] = '\0';
    while (next_item(&list, &item, &length))
        used += log_format(out + used, out_size - used, "%s%.*s", used ? ", " : "", (int)length, item);
}

/* The item of the list that is nearest to a misspelt value; 0: none is near. */
static size_t nearest_item(const char *list, const char *value, const char **out) {
    const char *item;
    size_t length, best_length = 0, best_distance = NEAREST_FAR, value_length = strlen(value);
    while (next_item(&list, &item, &length)) {
        size_t distance = nearest_distance(value, value_length, item, length);
        if (distance < best_distance) {
            best_distance = distance;
            best_length = length;
            *out = item;
        }
    }
    return nearest_is_near(best_distance, value_length) ? best_length : 0;
}

static void explain_value(option_id id, const char *text, char *message, size_t size) {
    enum { SHOWN_MAX = 100 };
    const option_info *row = &option_table[id];
    const char *cut = strlen(text) > SHOWN_MAX ? "..." : "";
    if (option_slots[id].type == TYPE_SIGNATURES && strlen(text) < OPTION_STRING_MAX) {
        size_t used = log_format(message, size, "%s: ", row->env);
        signature_check(text, message + used, size - used);
        return;
    }
    size_t used = log_format(message, size, "%s=%.*s%s: ", row->env, SHOWN_MAX, text, cut);
    message += used;
    size -= used;
    const char *low = bounds_of(row), *high = strstr(low, "..");
    int low_length = high ? (int)(high - low) : 0;
    char list[256];
    switch (option_slots[id].type) {
    case TYPE_STRING:
    case TYPE_SIGNATURES:
        log_format(message, size, "too long; at most %d bytes", OPTION_STRING_MAX - 1);
        break;
    case TYPE_BOOL:
        log_format(message, size, "set it to 1 (on) or 0 (off)");
        break;
    case TYPE_ENUM: {
        const char *near = NULL;
        int near_length = text[0] ? (int)nearest_item(row->allowed, text, &near) : 0;
        describe_list(row->allowed, list, sizeof list);
        if (near_length > 0)
            log_format(message, size, "unknown value; did you mean %.*s? (allowed: %s)", near_length, near,
                       list);
        else
            log_format(message, size, "unknown value; allowed: %s", list);
        break;
    }
    case TYPE_INT:
        log_format(message, size, "must be a whole number from %.*s to %s", low_length, low, high + 2);
        break;
    case TYPE_SECONDS:
        log_format(message, size, "must be a number of seconds from %.*s to %s", low_length, low, high + 2);
        break;
    case TYPE_FRACTION:
        log_format(message, size, "must be a number from %.*s to %s", low_length, low, high + 2);
        break;
    case TYPE_BYTES:
        log_format(message, size, "must be %sa number of bytes from %.*s to %s (" OPTION_BYTES_NOTE ")",
                   low != row->allowed ? AUTO ", or " : "", low_length, low, high + 2);
        break;
    }
}

static int find_option(const char *name, size_t length) {
    for (int id = 0; id < OPTION_COUNT; id++)
        if (strlen(option_table[id].env) == length && memcmp(option_table[id].env, name, length) == 0)
            return id;
    return -1;
}

static void explain_name(const char *name, size_t length, char *message, size_t size) {
    enum { SHOWN_MAX = 100 };
    const char *cut = length > SHOWN_MAX ? "..." : "";
    int shown = length > SHOWN_MAX ? SHOWN_MAX : (int)length;
    /* The common prefix says nothing about what was meant. */
    size_t prefix = sizeof PREFIX - 1;
    bool prefixed = length > prefix && memcmp(name, PREFIX, prefix) == 0;
    const char *word = prefixed ? name + prefix : name;
    size_t word_length = prefixed ? length - prefix : length, best_distance = NEAREST_FAR;
    int best = -1;
    for (int id = 0; id < OPTION_COUNT; id++) {
        if (option_table[id].internal)
            continue;
        const char *known = option_table[id].env + prefix;
        size_t distance = nearest_distance(word, word_length, known, strlen(known));
        if (distance < best_distance) {
            best_distance = distance;
            best = id;
        }
    }
    if (best >= 0 && nearest_is_near(best_distance, word_length))
        log_format(message, size, "%.*s%s: unknown option; did you mean %s? (`castor options` lists all)",
                   shown, name, cut, option_table[best].env);
    else
        log_format(message, size, "%.*s%s: unknown option; `castor options` lists all", shown, name, cut);
}

castor_status option_check(const char *env_name, const char *value, char *message, size_t message_size) {
    int id = find_option(env_name, strlen(env_name));
    option_value parsed;
    if (id < 0) {
        explain_name(env_name, strlen(env_name), message, message_size);
        return CASTOR_ERR_ARGUMENT;
    }
    if (!parse_value((option_id)id, value, &parsed)) {
        explain_value((option_id)id, value, message, message_size);
        return CASTOR_ERR_ARGUMENT;
    }
    return CASTOR_OK;
}

castor_status option_set(const char *env_name, const char *value, char *message, size_t message_size) {
    castor_status status = option_check(env_name, value, message, message_size);
    option_id id = status == CASTOR_OK ? (option_id)find_option(env_name, strlen(env_name)) : 0;
    option_value parsed;
    if (status == CASTOR_OK && parse_value(id, value, &parsed))
        store_value(id, parsed, OPTION_FROM_ENVIRONMENT);
    return status;
}

castor_status options_load(char *const *environment, char *message, size_t message_size) {
    castor_status status = CASTOR_OK;
    bool seen[OPTION_COUNT] = {false};
    if (message_size)
        message[0] = '\0';
    for (int id = 0; id < OPTION_COUNT; id++) {
        option_value value;
        if (parse_value((option_id)id, option_table[id].def, &value))
            store_value((option_id)id, value, OPTION_FROM_DEFAULT);
    }
    for (; environment && *environment; environment++) {
        const char *entry = *environment, *equals = strchr(entry, '=');
        if (!equals || strncmp(entry, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        int id = find_option(entry, (size_t)(equals - entry));
        if (id < 0) {
            if (status == CASTOR_OK)
                explain_name(entry, (size_t)(equals - entry), message, message_size);
            status = CASTOR_ERR_ARGUMENT;
            continue;
        }
        if (seen[id]) /* the first of two entries counts, as for getenv */
            continue;
        seen[id] = true;
        option_value value;
        if (parse_value((option_id)id, equals + 1, &value)) {
            store_value((option_id)id, value, OPTION_FROM_ENVIRONMENT);
        } else {
            if (status == CASTOR_OK)
                explain_value((option_id)id, equals + 1, message, message_size);
            status = CASTOR_ERR_ARGUMENT;
        }
    }
    return status;
}

size_t option_format(option_id id, char *out, size_t out_size) {
    const void *field = (const char *)&current + option_slots[id].offset;
    switch (option_slots[id].type) {
    case TYPE_STRING:
    case TYPE_SIGNATURES:
        return log_format(out, out_size, "%s", (const char *)field);
    case TYPE_BOOL:
        return log_format(out, out_size, "%d", *(const bool *)field);
    case TYPE_INT:
        return log_format(out, out_size, "%d", *(const int *)field);
    case TYPE_SECONDS:
    case TYPE_FRACTION:
        return option_text_format_decimal(*(const double *)field, out, out_size);
    case TYPE_BYTES:
        if (*(const uint64_t *)field == OPTION_BYTES_AUTO)
            return log_format(out, out_size, AUTO);
        return option_text_format_bytes(*(const uint64_t *)field, out, out_size);
    case TYPE_ENUM: {
        const char *list = option_table[id].allowed, *item = "";
        size_t length = 0;
        for (int position = *(const int *)field; position >= 0 && next_item(&list, &item, &length);)
            position--;
        return log_format(out, out_size, "%.*s", (int)length, item);
    }
    }
    return 0;
}
