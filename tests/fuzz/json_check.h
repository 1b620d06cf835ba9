/* Whether a text is one JSON value, by the letter of RFC 8259, in UTF-8. */
#ifndef CASTOR_TESTS_FUZZ_JSON_CHECK_H
#define CASTOR_TESTS_FUZZ_JSON_CHECK_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "launcher/common/utf8.h"

typedef struct json_text {
    const char *at, *end;
    int depth;
} json_text;

static inline bool json_value(json_text *text);

static inline void json_space(json_text *text) {
    while (text->at < text->end && memchr(" \n\r\t", *text->at, 4) != NULL)
        text->at++;
}

static inline bool json_take(json_text *text, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
        return false;
    text->at += length;
    return true;
}

static inline bool json_text_string(json_text *text) {
    if (!json_take(text, "\""))
        return false;
    while (text->at < text->end && *text->at != '"') {
        size_t length = utf8_length(text->at, (size_t)(text->end - text->at));
        if (length == 0 || (unsigned char)*text->at < 0x20)
            return false;
        if (*text->at == '\\') {
            if (text->end - text->at < 2 || memchr("\"\\/bfnrtu", text->at[1], 9) == NULL)
                return false;
            length = text->at[1] == 'u' ? 6 : 2;
            if ((size_t)(text->end - text->at) < length)
                return false;
            for (size_t i = 2; i < length; i++)
                if (!isxdigit((unsigned char)text->at[i]))
                    return false;
        }
        text->at += length;
    }
    return json_take(text, "\"");
}

static inline bool json_digits(json_text *text) {
    const char *begin = text->at;
    while (text->at < text->end && isdigit((unsigned char)*text->at))
        text->at++;
    return text->at > begin;
}

static inline bool json_text_number(json_text *text) {
    json_take(text, "-");
    bool zero = text->at < text->end && *text->at == '0';
    const char *begin = text->at;
    if (!json_digits(text) || (zero && text->at - begin > 1))
        return false;
    if (json_take(text, ".") && !json_digits(text))
        return false;
    if (json_take(text, "e") || json_take(text, "E")) {
        if (!json_take(text, "+"))
            json_take(text, "-");
        return json_digits(text);
    }
    return true;
}

static inline bool json_text_items(json_text *text, const char *close, bool members) {
    json_space(text);
    if (json_take(text, close))
        return true;
    do {
        json_space(text);
        if (members) {
            if (!json_text_string(text))
                return false;
            json_space(text);
            if (!json_take(text, ":"))
                return false;
        }
        if (!json_value(text))
            return false;
        json_space(text);
    } while (json_take(text, ","));
    return json_take(text, close);
}

static inline bool json_value(json_text *text) {
    json_space(text);
    if (text->at == text->end || text->depth == 100)
        return false;
    text->depth++;
    bool valid;
    switch (*text->at) {
    case '{':
        text->at++;
        valid = json_text_items(text, "}", true);
        break;
    case '[':
        text->at++;
        valid = json_text_items(text, "]", false);
        break;
    case '"':
        valid = json_text_string(text);
        break;
    default:
        valid = json_take(text, "true") || json_take(text, "false") || json_take(text, "null") ||
                json_text_number(text);
    }
    text->depth--;
    return valid;
}

static inline bool json_is_valid(const char *text, size_t length) {
    json_text whole = {text, text + length, 0};
    bool valid = json_value(&whole);
    json_space(&whole);
    return valid && whole.at == whole.end;
}

#endif
