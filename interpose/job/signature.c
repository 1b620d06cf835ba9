#include "signature.h"

#include <stdbool.h>
#include <string.h>
#include "base/log.h"

#define LETTERS "v b B s S i I l L f d p"

typedef struct parser {
    const char *start, *at; /* start: of this function's entry */
    signature *out;
    const char *wrong; /* what is the matter at `at`; NULL: nothing yet */
} parser;

static bool fail(parser *p, const char *wrong) {
    if (!p->wrong)
        p->wrong = wrong;
    return false;
}

static uint8_t size_of(char code) {
    switch (code) {
    case 'b':
    case 'B':
        return 1;
    case 's':
    case 'S':
        return 2;
    case 'i':
    case 'I':
    case 'f':
        return 4;
    case 'l':
    case 'L':
    case 'd':
    case 'p':
        return 8;
    default:
        return 0;
    }
}

static void skip_spaces(parser *p) {
    while (*p->at == ' ')
        p->at++;
}

static bool read_name(parser *p, char out[SIGNATURE_NAME_MAX], char end, const char *missing) {
    skip_spaces(p);
    size_t length = strcspn(p->at, ":=(); ");
    if (length == 0 || p->at[length] != end) {
        p->at += length;
        return fail(p, missing);
    }
    if (length >= SIGNATURE_NAME_MAX)
        return fail(p, "this name is too long");
    memcpy(out, p->at, length);
    out[length] = '\0';
    p->at += length + 1;
    return true;
}

static bool read_type(parser *p, bool result, unsigned depth);

static bool read_struct(parser *p, signature_type *type, unsigned depth) {
    unsigned first = p->out->type_count;
    if (depth == SIGNATURE_DEPTH_MAX)
        return fail(p, "structs in structs are too deep here");
    p->at++;
    unsigned size = 0;
    type->alignment = 1;
    for (skip_spaces(p); *p->at && *p->at != '}'; skip_spaces(p)) {
        const signature_type *member = &p->out->types[p->out->type_count];
        const char *at = p->at;
        if (!read_type(p, false, depth + 1))
            return false;
        size = (size + member->alignment - 1) / member->alignment * member->alignment + member->size;
        if (member->alignment > type->alignment)
            type->alignment = member->alignment;
        if (size > SIGNATURE_STRUCT_MAX) {
            p->at = at;
            return fail(p, "structs by value have at most 64 bytes; this member is beyond");
        }
    }
    if (*p->at != '}')
        return fail(p, "a } is missing");
    if (p->out->type_count == first)
        return fail(p, "a struct has at least one member");
    p->at++;
    type->size = (uint8_t)((size + type->alignment - 1) / type->alignment * type->alignment);
    return true;
}

static bool read_type(parser *p, bool result, unsigned depth) {
    skip_spaces(p);
    unsigned index = p->out->type_count;
    if (index == SIGNATURE_TYPES_MAX)
        return fail(p, "too many parameters; at most 64 types, members of structs included");
    signature_type *type = &p->out->types[index];
    *type =
        (signature_type){.code = *p->at, .size = size_of(*p->at), .alignment = size_of(*p->at), .span = 1};
    p->out->type_count++;
    if (type->code == '{') {
        if (!read_struct(p, type, depth))
            return false;
    } else if (type->size || (type->code == 'v' && result)) {
        p->at++;
    } else if (type->code == 'v') {
        return fail(p, "v is a result only; a function without parameters is written ()");
    } else {
        return fail(p, "no type; types are " LETTERS " and {...}");
    }
    type->span = (uint8_t)(p->out->type_count - index);
    return true;
}

static bool read_entry(parser *p) {
    p->out->parameter_count = p->out->type_count = 0;
    if (!read_name(p, p->out->library, ':',
                   "expected LIBRARY:FUNCTION=RESULT(PARAMETERS), as in libz.so.1:crc32=L(LpI)") ||
        !read_name(p, p->out->function, '=', "expected a function's name and ="))
        return false;
    if (!read_type(p, true, 0))
        return false;
    if (*p->at != '(')
        return fail(p, "expected ( and the parameters' types");
    p->at++;
    for (skip_spaces(p); *p->at != ')'; skip_spaces(p)) {
        if (*p->at == '\0' || *p->at == ';')
            return fail(p, "a ) is missing");
        if (!read_type(p, false, 0))
            return false;
        p->out->parameter_count++;
    }
    p->at++;
    skip_spaces(p);
    if (*p->at != ';' && *p->at != '\0')
        return fail(p, "expected ; or the end");
    if (*p->at == ';')
        p->at++;
    skip_spaces(p);
    return true;
}

castor_status signature_parse(const char **text, signature *out, char *message, size_t message_size) {
    parser p = {.start = *text, .at = *text, .out = out};
    memset(out, 0, sizeof *out);
    if (read_entry(&p)) {
        *text = p.at;
        return CASTOR_OK;
    }
    enum { SHOWN_MAX = 160 };
    size_t before = (size_t)(p.at - p.start);
    const char *from = before > SHOWN_MAX ? p.at - SHOWN_MAX : p.start;
    size_t after = strlen(p.at);
    log_format(message, message_size, "%s%.*s <-- here --> %.*s: %s", from > p.start ? "..." : "",
               (int)(p.at - from), from, after > SHOWN_MAX ? SHOWN_MAX : (int)after, p.at, p.wrong);
    return CASTOR_ERR_ARGUMENT;
}

castor_status signature_check(const char *text, char *message, size_t message_size) {
    signature ignored;
    for (unsigned count = 0; *text; count++) {
        if (count == SIGNATURE_FUNCTIONS_MAX) {
            log_format(message, message_size, "too many functions; at most %d", SIGNATURE_FUNCTIONS_MAX);
            return CASTOR_ERR_ARGUMENT;
        }
        castor_status status = signature_parse(&text, &ignored, message, message_size);
        if (status != CASTOR_OK)
            return status;
    }
    return CASTOR_OK;
}
