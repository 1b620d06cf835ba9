/* The fake device's own state: fake_device.c has its memory, fake_device_streams.c its streams. */
#ifndef CASTOR_TESTS_SUPPORT_FAKE_DEVICE_INSIDE_H
#define CASTOR_TESTS_SUPPORT_FAKE_DEVICE_INSIDE_H

#include <pthread.h>
#include "fake_device.h"

#define DEVICES      64
#define STREAMS_MADE 1000 /* the first number of those that the driver makes */

typedef struct range {
    uintptr_t address;
    size_t bytes;
} range;

/* Pages live until they are released and nothing maps them; their number is their place in the list, from 1. */
typedef struct pages {
    device_tier tier;
    size_t bytes;
    uint64_t offset; /* in the one file; never used twice */
    int maps;
    bool released, gone;
} pages;

typedef struct map {
    range at;
    uint64_t pages;
} map;

typedef enum operation_sort {
    OPERATION_OF_TEST,
    OPERATION_COPY,
    OPERATION_RECORD,
    OPERATION_WAIT
} operation_sort;

typedef struct operation {
    struct operation *next;
    operation_sort sort;
    uint64_t number; /* from 1 */
    void (*call)(void *argument);
    void *argument;
    uintptr_t to, from;
    size_t bytes;
    uint64_t record; /* OPERATION_WAIT: the number of the record that must be done */
} operation;

typedef struct stream {
    uint64_t number;
    int device; /* -1: not used with one yet */
    bool captures, ended;
    operation *first, **last;
} stream;

typedef struct event {
    int device;
    bool ended;
    uint64_t record; /* the number of its last one; 0: it was never recorded */
} event;

struct fake_device {
    pthread_mutex_t lock; /* recursive: operations of tests may call functions of this file */
    fake_device_settings settings;
    int file; /* all pages */
    uint64_t file_bytes;
    uint64_t used[DEVICE_TIER_COUNT], others[DEVICE_TIER_COUNT];
    range *reserved;
    pages *pages;
    map *maps;
    stream **streams;
    event *events;
    bool *done; /* by an operation's number */
    size_t reserved_count, pages_count, map_count, stream_count, event_count, operations, made;
    uint64_t random, now_ns, copied, drains;
    uint64_t calls, fail_at;
    bool fail_more, hangs;
    castor_status fail_with;
    const char *broken;
};

static inline bool fake_overlaps(range a, uintptr_t address, size_t bytes) {
    return a.address < address + bytes && address < a.address + a.bytes;
}

/* The functions of the driver begin and end with these. */
fake_device *fake_enter(void *context);
void fake_leave(fake_device *d);
/* Enters, and decides whether this call is the one that shall fail. `memory`: it makes or maps some. */
castor_status fake_begin(void *context, fake_device **out, bool memory, const char *what);
castor_status fake_end(fake_device *d, castor_status status);
void fake_promise(fake_device *d, bool kept, const char *what);
castor_status fake_breaks(fake_device *d, const char *what);
/* One place more at the end of a list, of zeros. */
void *fake_grow(void *list, size_t *count, size_t each);

bool fake_mapped(const fake_device *d, uintptr_t address, size_t bytes);
device_tier fake_tier_of(const fake_device *d, uintptr_t address, size_t bytes);
/* Whether a copy in a stream that has not run touches the range. */
bool fake_in_use(const fake_device *d, uintptr_t address, size_t bytes);
/* Fills in the driver's functions for streams. */
void fake_streams_init(device_driver *driver);
void fake_streams_end(fake_device *d);

#endif
