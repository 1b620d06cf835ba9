/* the file `castor.about` of a log directory (trace/format.h), as it is read: nothing in it is trusted. */
#ifndef CASTOR_LAUNCHER_COMMON_ABOUT_READ_H
#define CASTOR_LAUNCHER_COMMON_ABOUT_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "trace/format.h"

typedef struct about_fact {
    trace_about kind;
    const char *value; /* without control characters */
} about_fact;

typedef struct about {
    about_fact *facts; /* in the order of the file, each once */
    size_t count, capacity;
    char *text;
} about;

extern const char *const about_keys[TRACE_ABOUT_COUNT];

/* Reads the file of that directory; without one there are no facts. False when memory is out. Free it in any case. */
bool about_read(int directory_fd, about *out);
void about_free(about *about);

/* The first fact of a kind, NULL when there is none. */
const char *about_find(const about *about, trace_about kind);
/* All values of a kind, joined by ", " and cut where there is no room; "" when there is none. Returns how many there are. */
size_t about_join(const about *about, trace_about kind, char *out, size_t out_size);
/* A fact that is a number; 0: not known. */
uint64_t about_number(const about *about, trace_about kind);

#endif
