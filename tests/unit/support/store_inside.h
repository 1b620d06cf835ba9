/* What the tests of the node store need of its inside, and of the functions that the unit tests leave out.
 *
 * The store's own headers are C with atomics, which C++ cannot include; so this one stands between. */
#ifndef CASTOR_TESTS_UNIT_SUPPORT_STORE_INSIDE_H
#define CASTOR_TESTS_UNIT_SUPPORT_STORE_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "placement/chunk.h"
#include "castor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* store_activity */
enum {
    INSIDE_SCRIPT,
    INSIDE_REGISTRATION,
    INSIDE_BACKWARD,
    INSIDE_STEP,
    INSIDE_CONSENSUS,
    INSIDE_COLLECTIVE,
    INSIDE_SAVE,
    INSIDE_DATA
};

/* Binds the tensor to the block at the address, on this rank alone. 1: it is bound to it. */
int inside_rebind(castor_tensor *t, void *address);
int inside_activity(const castor_store *s, int rank);
uint64_t inside_resident_bytes(const castor_store *s, chunk_kind kind);
/* The descriptor of the file that holds the chunks of a kind. */
int inside_chunk_file(const castor_store *s, chunk_kind kind);
/* castor_consensus with another patience. */
int inside_consensus(castor_store *s, uint64_t key, int able, double patience_seconds, int *committed);
/* What a backward and a micro-step have done before this rank adds a gradient; CASTOR_ERR_ARGUMENT when they cannot have. */
enum { ADD_USED = 1, ADD_CARRY = 2, ADD_KEEP = 4 };
int inside_gradient_begin(castor_tensor *t, int flags);
/* castor_gradients_add with another bound of the queue. */
int inside_gradient_add(castor_tensor *t, const void *source, double scale, int flags, uint64_t queue_bytes,
                        uint64_t *ticket);
/* All ranks compare values that must be equal, as they do when a step begins. */
castor_status inside_agree(castor_store *s, const char *what, const double *values, const char *const *labels,
                           uint32_t count);
/* The invariants hold. */
castor_status inside_check(castor_store *s);
uint64_t inside_gradients_done(const castor_store *s);
/* The two halves of castor_gradients_finish. */
int inside_sums_wait(castor_store *s, castor_tensor *const *tensors, uint32_t count);
bool inside_was_used(const castor_tensor *t);
/* A collective of the script's begins on this thread: what the hook would tell. */
void inside_collective_enter(void);
/* How often this process has asked for the time of day, which may be set back at any moment. */
uint32_t inside_time_of_day_calls(void);
/* ThreadSanitizer has reported something in this process. */
bool inside_race_reported(void);

#ifdef __cplusplus
}
#endif
#endif
