/* The order on the device: marks, and copies into slots. */
#include "slots_inside.h"

castor_status slots_mark_wait(slots *s, slots_mark *mark) {
    if (!mark->pending)
        return CASTOR_OK;
    castor_status status = s->driver.event_wait(s->driver.context, s->device, s->copy_stream, mark->event);
    mark->pending = status != CASTOR_OK;
    return status;
}

castor_status slots_mark_record(slots *s, slots_mark *mark, uint64_t stream) {
    const device_driver *d = &s->driver;
    castor_status status = CASTOR_OK;
    /* A later record covers those before it in the same stream only, and another thread's stream may have the same name. */
    if (mark->pending && (mark->stream != stream || stream == DEVICE_STREAM_PER_THREAD))
        status = slots_mark_wait(s, mark);
    if (status == CASTOR_OK && !mark->made) {
        status = d->event_make(d->context, s->device, &mark->event);
        mark->made = status == CASTOR_OK;
    }
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, mark->event, stream);
    if (status == CASTOR_OK) {
        mark->stream = stream;
        mark->pending = true;
    }
    return status;
}

void slots_mark_end(slots *s, slots_mark *mark) {
    if (mark->made)
        s->driver.event_end(s->driver.context, mark->event);
}

bool slots_copy_may(const slots *s, uint32_t number) {
    const slots_storage *st = &s->storages[number];
    return s->region && !s->region_pause && st->bytes && !st->home_only &&
           (st->ordered == s->order || number == s->user) && home_is_on_host(s->homes, st->address);
}

/* What the copy must come after has been enqueued before it: the writers. Readers of the memory were waited for when it was taken. */
static castor_status writers_wait(slots *s, slots_storage *st) {
    if (st->ordered == s->order)
        return slots_batches_wait(s, st->writer > s->batches.all ? st->writer : s->batches.all);
    castor_status status = slots_mark_record(s, &s->join, s->user_stream);
    return status == CASTOR_OK ? slots_mark_wait(s, &s->join) : status;
}

castor_status slots_copy(slots *s, uint32_t number) {
    slots_storage *st = &s->storages[number];
    slots_entry *e = &s->entries[st->entry];
    const device_driver *d = &s->driver;
    slots_storage_copied(s, st);
    castor_status status = writers_wait(s, st);
    if (status == CASTOR_OK && !e->ready_made) {
        status = d->event_make(d->context, s->device, &e->ready);
        e->ready_made = status == CASTOR_OK;
    }
    if (status == CASTOR_OK)
        status = d->copy_enqueue(d->context, s->device, s->region + e->first + st->address % SLOTS_ALIGNMENT,
                                 st->address, st->bytes, s->copy_stream);
    /* A copy without this event is in nobody's way: all that is written to the region goes through the one stream. */
    if (status == CASTOR_OK)
        status = d->event_record(d->context, s->device, e->ready, s->copy_stream);
    if (status != CASTOR_OK)
        return status;
    copies_note(s->copies, COPY_SLOT, st->bytes, s->copy_stream);
    bool used = s->user == number;
    e->ahead = !used;
    s->used_copy |= used;
    st->ordered = s->order;
    s->statistics.copies++;
    s->statistics.copied_bytes += st->bytes;
    return CASTOR_OK;
}
