/* Kinds of files, told by the ends of their names. */
#ifndef CASTOR_LAUNCHER_COMMON_SUFFIX_H
#define CASTOR_LAUNCHER_COMMON_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/* A suffix alone is no name. */
static inline bool has_suffix(const char *name, const char *suffix) {
    size_t length = strlen(name), suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(name + length - suffix_length, suffix) == 0;
}

#endif
