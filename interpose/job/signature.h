/* Functions that CASTOR_TRACE_ALSO names: "LIBRARY:FUNCTION=RESULT(PARAMETERS)", several separated by ';'.
 *
 *   v            no result
 *   b B s S i I l L   signed and unsigned integers of 1, 2, 4 and 8 bytes
 *   f d p        float, double, pointer
 *   {...}        a struct by value of up to 64 bytes: its members, structs again or any of the above but v
 *
 * Nothing here allocates. */
#ifndef CASTOR_JOB_SIGNATURE_H
#define CASTOR_JOB_SIGNATURE_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define SIGNATURE_NAME_MAX      128
#define SIGNATURE_TYPES_MAX     64 /* of one function: result, parameters, members and structs */
#define SIGNATURE_FUNCTIONS_MAX 32
#define SIGNATURE_STRUCT_MAX    64 /* bytes */
#define SIGNATURE_DEPTH_MAX     8  /* of structs in structs */

/* A type; a struct's members follow it, each with its own members after it. */
typedef struct signature_type {
    char code;    /* one of the letters, or '{' */
    uint8_t span; /* types up to the next one beside it, this one included */
    uint8_t size, alignment;
} signature_type;

typedef struct signature {
    char library[SIGNATURE_NAME_MAX], function[SIGNATURE_NAME_MAX];
    unsigned parameter_count, type_count;
    signature_type types[SIGNATURE_TYPES_MAX]; /* the result, then the parameters */
} signature;

/* Reads the next function of *text, and moves *text past it. CASTOR_ERR_ARGUMENT with one line in `message` that
 * shows the position. */
castor_status signature_parse(const char **text, signature *out, char *message, size_t message_size);

/* Reads all of them and keeps nothing: CASTOR_OK or the first error. */
castor_status signature_check(const char *text, char *message, size_t message_size);

#endif
