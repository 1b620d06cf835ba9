/* Whom a copy must wait for. Events of launches cost more than launches, so one event stands for many writers: it is recorded when a use
 * begins, since none begins a copy before, and when it could not be recorded later. */
#include "slots_inside.h"

#define EVENT(b, batch) (&(b)->events[(batch) % SLOTS_BATCHES])

uint64_t slots_batches_add(slots *s, uint64_t stream) {
    slots_batches *b = &s->batches;
    if (b->open && b->stream != stream)
        slots_batches_close(s);
    b->open = true;
    b->stream = stream;
    uint64_t batch = b->last;
    /* Another thread's stream has the same name, and a capture may come to this one. */
    if (stream == DEVICE_STREAM_PER_THREAD || s->driver.captures_run(s->driver.context))
        slots_batches_close(s);
    return batch;
}

void slots_batches_close(slots *s) {
    slots_batches *b = &s->batches;
    const device_driver *d = &s->driver;
    if (!b->open)
        return;
    b->open = false;
    uint64_t *event = EVENT(b, b->last);
    castor_status status = CASTOR_OK;
    if (b->last - b->waited > SLOTS_BATCHES) /* the event stands for an older one */
        status = slots_batches_wait(s, b->last - SLOTS_BATCHES);
    if (status == CASTOR_OK && !*event)
        status = d->event_make(d->context, s->device, event);
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, *event, b->stream);
    if (status == CASTOR_OK)
        b->last++;
    else
        s->order++; /* the next copies are made by uses, and wait for all that these come after */
}

castor_status slots_batches_wait(slots *s, uint64_t batch) {
    slots_batches *b = &s->batches;
    const device_driver *d = &s->driver;
    castor_status status = CASTOR_OK;
    /* The last one is empty: what was noted there before an error is not ordered by it. */
    while (b->waited < batch && b->waited + 1 < b->last && status == CASTOR_OK) {
        status = d->event_wait(d->context, s->device, s->copy_stream, *EVENT(b, b->waited + 1));
        b->waited += status == CASTOR_OK;
    }
    return status;
}

void slots_batches_end(slots *s) {
    for (uint32_t i = 0; i < SLOTS_BATCHES; i++)
        if (s->batches.events[i])
            s->driver.event_end(s->driver.context, s->batches.events[i]);
}
