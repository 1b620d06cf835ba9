#include "fake_device_inside.h"

#include <stdlib.h>
#include <string.h>

bool fake_in_use(const fake_device *d, uintptr_t address, size_t bytes) {
    for (size_t i = 0; i < d->stream_count; i++)
        for (const operation *o = d->streams[i]->first; o; o = o->next)
            if (o->sort == OPERATION_COPY && (fake_overlaps((range){o->to, o->bytes}, address, bytes) ||
                                              fake_overlaps((range){o->from, o->bytes}, address, bytes)))
                return true;
    return false;
}

static stream *stream_at(fake_device *d, uint64_t number, int device) {
    stream *s = NULL;
    for (size_t i = 0; i < d->stream_count; i++)
        if (d->streams[i]->number == number)
            s = d->streams[i];
    if (!s) {
        fake_promise(d, number < STREAMS_MADE || number == STREAMS_MADE + d->made, "there is no such stream");
        s = calloc(1, sizeof *s);
        if (!s)
            abort();
        *s = (stream){.number = number, .device = -1, .last = NULL};
        s->last = &s->first;
        d->streams = fake_grow(d->streams, &d->stream_count, sizeof(stream *));
        d->streams[d->stream_count - 1] = s;
    }
    /* Stream 0 is each device's own. */
    if (number && device >= 0) {
        fake_promise(d, s->device < 0 || s->device == device, "a stream is used with another device");
        s->device = device;
    }
    fake_promise(d, !s->ended, "a stream is used that was ended");
    return s;
}

static operation *enqueue(fake_device *d, stream *s, operation_sort sort) {
    operation *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    if (!d->operations)
        d->done = fake_grow(d->done, &d->operations, sizeof *d->done); /* numbers begin at 1 */
    o->sort = sort;
    o->number = d->operations;
    d->done = fake_grow(d->done, &d->operations, sizeof *d->done);
    *s->last = o;
    s->last = &o->next;
    return o;
}

static castor_status stream_make(void *context, int device, uint64_t *out) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "stream_make");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    *out = stream_at(d, STREAMS_MADE + d->made, device)->number;
    d->made++;
    return fake_end(d, CASTOR_OK);
}

static void stream_end(void *context, uint64_t number) {
    fake_device *d = fake_enter(context);
    stream_at(d, number, -1)->ended = true; /* what is enqueued there runs all the same */
    fake_leave(d);
}

static bool captures_run(void *context) {
    fake_device *d = fake_enter(context);
    bool captures = false;
    for (size_t i = 0; i < d->stream_count; i++)
        captures |= d->streams[i]->captures;
    fake_leave(d);
    return captures;
}

static bool stream_captures(void *context, int device, uint64_t number) {
    fake_device *d = fake_enter(context);
    bool captures = stream_at(d, number, device)->captures;
    fake_leave(d);
    return captures;
}

static event *event_at(fake_device *d, uint64_t number, int device) {
    static event none;
    if (!number || number > d->event_count || d->events[number - 1].ended) {
        fake_promise(d, false, "there is no such event");
        return &none;
    }
    event *e = &d->events[number - 1];
    fake_promise(d, device < 0 || e->device == device, "an event is used with another device");
    return e;
}

static castor_status event_make(void *context, int device, uint64_t *out) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "event_make");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    d->events = fake_grow(d->events, &d->event_count, sizeof *d->events);
    d->events[d->event_count - 1].device = device;
    *out = d->event_count;
    return fake_end(d, CASTOR_OK);
}

static void event_end(void *context, uint64_t number) {
    fake_device *d = fake_enter(context);
    event_at(d, number, -1)->ended = true; /* waits for it stay */
    fake_leave(d);
}

/* The stream in which the driver's caller may enqueue: a capture would take it into its graph. */
static stream *open_stream(fake_device *d, uint64_t number, int device) {
    stream *s = stream_at(d, number, device);
    fake_promise(d, !s->captures, "something is enqueued in a stream that captures");
    return s;
}

static castor_status event_record(void *context, int device, uint64_t number, uint64_t in) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "event_record");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    event_at(d, number, device)->record = enqueue(d, open_stream(d, in, device), OPERATION_RECORD)->number;
    return fake_end(d, CASTOR_OK);
}

static castor_status event_wait(void *context, int device, uint64_t in, uint64_t number) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "event_wait");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    uint64_t record = event_at(d, number, device)->record;
    stream *s = open_stream(d, in, device);
    if (record)
        enqueue(d, s, OPERATION_WAIT)->record = record;
    return fake_end(d, CASTOR_OK);
}

static bool event_done(void *context, uint64_t number) {
    fake_device *d = fake_enter(context);
    uint64_t record = event_at(d, number, -1)->record;
    bool done = !record || d->done[record];
    fake_leave(d);
    return done;
}

static castor_status copy_enqueue(void *context, int device, uintptr_t to, uintptr_t from, size_t bytes,
                                  uint64_t in) {
    fake_device *d;
    castor_status status = fake_begin(context, &d, false, "copy_enqueue");
    if (status != CASTOR_OK)
        return fake_end(d, status);
    if (!fake_mapped(d, to, bytes) || !fake_mapped(d, from, bytes))
        return fake_end(d, fake_breaks(d, "a copy in a stream between addresses that are not mapped"));
    operation *o = enqueue(d, open_stream(d, in, device), OPERATION_COPY);
    o->to = to;
    o->from = from;
    o->bytes = bytes;
    return fake_end(d, CASTOR_OK);
}

void fake_streams_init(device_driver *driver) {
    driver->stream_make = stream_make;
    driver->stream_end = stream_end;
    driver->captures_run = captures_run;
    driver->stream_captures = stream_captures;
    driver->event_make = event_make;
    driver->event_end = event_end;
    driver->event_record = event_record;
    driver->event_wait = event_wait;
    driver->event_done = event_done;
    driver->copy_enqueue = copy_enqueue;
}

void fake_streams_end(fake_device *d) {
    for (size_t i = 0; i < d->stream_count; i++) {
        for (operation *o = d->streams[i]->first, *next; o; o = next) {
            next = o->next;
            free(o);
        }
        free(d->streams[i]);
    }
    free(d->streams);
    free(d->events);
    free(d->done);
}

void fake_device_enqueue(fake_device *d, uint64_t in, void (*call)(void *argument), void *argument) {
    fake_enter(d);
    operation *o = enqueue(d, stream_at(d, in, -1), OPERATION_OF_TEST);
    o->call = call;
    o->argument = argument;
    fake_leave(d);
}

static bool may_run(const fake_device *d, const stream *s) {
    return s->first && (s->first->sort != OPERATION_WAIT || d->done[s->first->record]);
}

static void run_copy(fake_device *d, const operation *o) {
    if (!fake_mapped(d, o->to, o->bytes) || !fake_mapped(d, o->from, o->bytes)) {
        fake_promise(d, false, "a copy in a stream runs when its addresses are not mapped");
        return;
    }
    memmove((void *)o->to, (const void *)o->from, o->bytes);
    if (fake_tier_of(d, o->to, o->bytes) != fake_tier_of(d, o->from, o->bytes))
        d->copied += o->bytes;
}

bool fake_device_run(fake_device *d) {
    fake_enter(d);
    size_t able = 0;
    for (size_t i = 0; i < d->stream_count; i++)
        able += may_run(d, d->streams[i]);
    if (!able) {
        fake_leave(d);
        return false;
    }
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    size_t chosen = d->random % able;
    stream *s = NULL;
    for (size_t i = 0; i < d->stream_count; i++)
        if (may_run(d, d->streams[i]) && chosen-- == 0)
            s = d->streams[i];
    operation *o = s->first;
    s->first = o->next;
    if (!s->first)
        s->last = &s->first;
    if (o->sort == OPERATION_OF_TEST)
        o->call(o->argument);
    else if (o->sort == OPERATION_COPY)
        run_copy(d, o);
    d->done[o->number] = true;
    free(o);
    fake_leave(d);
    return true;
}

void fake_device_run_all(fake_device *d) {
    while (fake_device_run(d)) {
    }
}

void fake_device_captures(fake_device *d, uint64_t number, bool captures) {
    fake_enter(d);
    stream_at(d, number, -1)->captures = captures;
    fake_leave(d);
}
