/* gloo's own collectives, beneath c10d's objects: they move data through the node's memory on contexts that all ranks
 * have agreed to bind, and are gloo's on any other.
 *
 * A process group of gloo makes its contexts on the thread that makes the group; gloo_data_watch collects them there.
 * Whether to bind them is for all ranks to agree: a context that is bound on one rank only would hang the others. */
#ifndef CASTOR_HOOKS_GLOO_DATA_H
#define CASTOR_HOOKS_GLOO_DATA_H

#include <stdint.h>
#include "collectives/node_group.h"
#include "core/status.h"
#include "layout.h"

/* Collects the contexts that this thread makes from now on. */
void gloo_data_watch(void);
/* How many it has made so far. */
uint32_t gloo_data_contexts(void);
/* The contexts so far are bound to `group`, which lives until the last of them is destroyed. CASTOR_ERR_MEMORY: too many. */
castor_status gloo_data_bind(node_group *group);
void gloo_data_unwatch(void);
/* The same for a group whose ranks are on several nodes, place[i] the node of rank i: `group` has those of this rank's
 * node (NULL: it is alone there). Only one context can be bound so. A node's first rank, its leader, has made a context
 * with the other leaders between gloo_data_leaders_watch and gloo_data_leaders_unwatch, on which a self-test has ended
 * well; that context outlives the bound one. */
castor_status gloo_data_bind_across(node_group *group, int rank, const int32_t *place, int world,
                                    const void *owner);
/* A context is bound so, with this `owner`. */
bool gloo_data_bound_across(const void *owner);
void gloo_data_leaders_watch(void);
void gloo_data_leaders_unwatch(void);
/* The last self-test of a group of one rank found all that leaders need. */
bool gloo_data_leads(void);
/* Calls so far that were not gloo's. */
uint64_t gloo_data_calls(void);

/* The self-test, on the thread that watches, with a group whose collectives are not recorded. The next call
 * is to find what is expected; its context is the one that was made last. */
void gloo_data_test_begin(void);
void gloo_data_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size);
/* The next call throws an exception with this text. */
void gloo_data_test_throw(const char *text);
/* All calls found what was expected. */
bool gloo_data_test_end(void);

#endif
