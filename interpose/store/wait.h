/* Waits for other ranks: futexes in the store, and checks that the peers live.
 *
 * Every wait ends: when its condition holds; when a rank of the group died, left or failed (within a fraction of a
 * second); or after CASTOR_TIMEOUT. In the last two cases the error names the rank and what it was doing, and every
 * rank of the group gets it. */
#ifndef CASTOR_STORE_WAIT_H
#define CASTOR_STORE_WAIT_H

#include "store.h"

typedef struct wait_condition {
    bool (*ready)(void *context);
    int (*missing)(void *context); /* a rank that is waited for, -1 when unknown; NULL: unknown */
    void *context;
    const char *what; /* "the end of backward": for messages */
} wait_condition;

/* `event` advances (wait_notify) whenever the condition may have changed. */
castor_status wait_until(store *s, _Atomic uint32_t *event, _Atomic uint32_t *waiters,
                         const wait_condition *c);
/* As wait_until, but gives up after `seconds`: CASTOR_ERR_TIMEOUT, with no error text and nothing failed. */
castor_status wait_for(store *s, _Atomic uint32_t *event, _Atomic uint32_t *waiters, const wait_condition *c,
                       double seconds);

/* An error when a rank of the group has died, left or failed: what a wait would end with. */
castor_status wait_peers_check(store *s);
void wait_notify(_Atomic uint32_t *event, _Atomic uint32_t *waiters);

/* A barrier. Ranks that reach different barriers at the same time have parted: all ranks get an error that names two of them, and
 * the line of the script where each is. */
castor_status wait_barrier(store *s, const char *what);
/* Who says where this process is in the script: writes a text of less than `size` bytes. Called on the thread that waits. */
typedef void (*wait_location_teller)(char *out, size_t size);
void wait_location_teller_set(wait_location_teller teller);

void store_activity_set(store *s, store_activity activity);
store_activity store_activity_get(const store *s, int rank);

/* Records a failure for every rank of the group: all their waits end with it. Returns `status`. `blamed` is the rank that
 * it began with, -1 when it is no rank's alone. */
castor_status store_fail_by(store *s, int blamed, castor_status status);
castor_status store_fail(store *s, castor_status status);
/* The rank that a failure of the group began with, when that is another one; else -1. */
int store_blamed(const store *s);

/* Values that the ranks of a store compare, broadcast or gather, through the exchange areas. Each call is a barrier. */

/* Values that must be the same on every rank: at most 2M. */
typedef struct ranks_values {
    const double *values;
    const char *const *labels; /* names of the values, for errors; NULL: they have none */
    uint32_t count;
} ranks_values;

/* Each rank passes `agreed`, and `bytes` bytes of its own (at most STORE_SAID_MAX): `every` takes these in rank order. If values differ, the
 * error names the ranks, the first value that differs and its label. Otherwise it costs a digest of the values. */
castor_status ranks_agree(store *s, const char *what, const ranks_values *agreed, const void *said,
                          size_t bytes, void *every);

/* Rank 0's `bytes` bytes (at most 16 MiB) go to all ranks, which expect as many. */
castor_status ranks_broadcast(store *s, void *data, size_t bytes, const char *what);

/* `bytes` bytes of each rank (the same number, at most 16 MiB), in rank order, go to all. Up to STORE_SAID_MAX
 * bytes cost one barrier. */
castor_status ranks_gather(store *s, const void *data, size_t bytes, void *out, const char *what);

/* Writes this rank's area; readers see it after a barrier. Error: larger than the area (16 MiB, 48 MiB). */
castor_status store_exchange_put(store *s, store_exchange channel, const void *data, size_t bytes);
const void *store_exchange_get(const store *s, store_exchange channel, int rank, size_t *bytes);

#endif
