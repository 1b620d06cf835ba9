/* Consensus: the ranks commit to one shared operation on all gradients, which owners do once for everybody, or each rank does
 * it by itself.
 *
 * A script may clip on all ranks or on one. A rank comes with its key (which operation, on what, the how manyeth) and waits for
 * the others. When all have come with the same key, the operation is committed. It is abandoned as soon as one rank
 *   - is seen elsewhere: at a barrier, in a step, at the end of a backward, gone, long in a collective
 *   - cannot take part, or comes with another key
 *   - has not come within the patience
 * Then every rank that comes with this key does the operation in its private pages. That costs time, never results. */
#ifndef CASTOR_STORE_CONSENSUS_H
#define CASTOR_STORE_CONSENSUS_H

#include "store.h"

/* *committed: all ranks came. `able` false: this rank cannot take part. */
castor_status consensus_try(store *s, uint64_t key, bool able, double patience_seconds, bool *committed);

#endif
