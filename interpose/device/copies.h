/* The copies on a device's copy streams, for the trace: a COPY record each.
 *
 * The host waits for none of them. It knows when a copy was enqueued, and finds its event done later, at a look: when a slot is used, a
 * copy is noted, or a step is over, and not more often than each COPIES_LOOK_NS. The copies of one kind follow each other. So a record
 * begins when its copy was enqueued, or when the one before it was done if that is later, and ends at the look; those that are found
 * done at one look share the time by their bytes. What a copy waits for on the device is in its time.
 *
 * Safe from any thread; the lock is an inner one, under which the driver is called. NULL stands for copies that nobody notes. After a
 * fork the child's must not be used. */
#ifndef CASTOR_DEVICE_COPIES_H
#define CASTOR_DEVICE_COPIES_H

#include "driver.h"

#define COPIES_LOOK_NS UINT64_C(100000)
#define COPIES_MAX     256 /* of a kind, under way; further ones have no record */

typedef enum copy_kind { COPY_SLOT, COPY_PART_IN, COPY_PART_OUT, COPY_KIND_COUNT } copy_kind;

typedef struct copies copies;

copies *copies_create(const device_driver *driver, int device); /* NULL: there is no memory */
void copies_destroy(copies *c); /* the device is drained, or the driver fails */

/* A copy has just been enqueued as the last work of a stream. Never fails: without an event it has no record. */
void copies_note(copies *c, copy_kind kind, uint64_t bytes, uint64_t stream);
/* Writes the records of copies that are done. Looks at most every few milliseconds, unless `now`. */
void copies_look(copies *c, bool now);

#endif
