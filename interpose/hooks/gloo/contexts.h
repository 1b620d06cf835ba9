/* The contexts of gloo that move data through the node's memory.
 *
 * A process group of gloo makes its contexts on the thread that makes the group; this thread collects them meanwhile. Then
 * all ranks of the group agree whether to bind them: a context that is bound on one rank only would hang the others. Private
 * to hooks/, except for the exported functions over it. */
#ifndef CASTOR_HOOKS_GLOO_CONTEXTS_H
#define CASTOR_HOOKS_GLOO_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"
#include "collectives/node_collective.h"
#include "collectives/node_group.h"
#include "shims/gloo/options.h"

typedef enum gloo_data_call {
    GLOO_DATA_CALL_ALLREDUCE,
    GLOO_DATA_CALL_BROADCAST,
    GLOO_DATA_CALL_ALLGATHER,
    GLOO_DATA_CALL_BARRIER,
    GLOO_DATA_CALL_REDUCE,
    GLOO_DATA_CALL_GATHER,
    GLOO_DATA_CALL_SCATTER,
    GLOO_DATA_CALL_ALLTOALL,
    GLOO_DATA_CALL_COUNT
} gloo_data_call;

/* Of a process group whose ranks are on several nodes. */
typedef struct gloo_across {
    gloo_shared leaders; /* a leader's context; no object: this rank is no leader */
    node_group *group;   /* NULL: alone on its node */
    const void *owner;
    int node;
    int32_t place[]; /* the node of each rank of the process group, from 0 */
} gloo_across;

/* Exists until the worker threads of its context have ended. */
typedef struct gloo_binding {
    _Atomic(const void *) context; /* written last when the entry is claimed */
    node_group *group;
    gloo_across *across; /* the ranks are on several nodes */
    uint32_t channel;
} gloo_binding;

/* Collects the contexts that this thread makes from now on. */
void gloo_contexts_watch(void);
void gloo_contexts_unwatch(void);
/* The number of contexts that it has made so far. */
uint32_t gloo_contexts_count(void);

/* Binds the collected contexts to `group`, which lives until the last of them is destroyed. CASTOR_ERR_MEMORY: too many. */
castor_status gloo_contexts_bind(node_group *group);
/* The same for a group whose ranks are on several nodes. place[i] is the node of rank i. `group` has the ranks of this rank's
 * node (NULL: it is alone there). Only one context can be bound this way. A node's first rank, its leader, has made a context
 * with the other leaders between gloo_contexts_leaders_watch and gloo_contexts_leaders_unwatch, and it has passed a self-test;
 * that context outlives the bound one. */
castor_status gloo_contexts_bind_across(node_group *group, int rank, const int32_t *place, int world,
                                        const void *owner);
/* Whether a context is bound this way, with this `owner`. */
bool gloo_contexts_bound_across(const void *owner);
void gloo_contexts_leaders_watch(void);
void gloo_contexts_leaders_unwatch(void);

/* For the wrappers. */
void gloo_contexts_made(const void *context);
void gloo_contexts_ended(const void *context);
/* NULL: it is not bound. */
const gloo_binding *gloo_contexts_binding(const void *context);

/* C++'s exceptions, thrown by the C++ library of the process. */

/* Throws std::runtime_error with this text. Only after gloo_throw_found has returned true; it does not return. */
void gloo_throw(const char *text);

/* The self-test of gloo's layouts: before anything is replaced, the agent calls each collective once with known arguments, in a
 * group of one rank and in the group of the leaders; the wrappers compare what they see.
 *
 * All of it runs on the thread that makes the group (gloo_contexts_watch), with a group whose collectives are not recorded. */

/* Starts a test of the context that was made last. */
void gloo_self_test_begin(void);
/* Sets the values that the next call must find. */
void gloo_self_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size);
/* The next call throws an exception with this text. */
void gloo_self_test_throw(const char *text);
/* Ends the test. True: all calls found the expected values. */
bool gloo_self_test_end(void);

/* Whether the last test of a group of one rank found everything that leaders need. */
bool gloo_self_test_leads(void);

/* Called by a wrapper, on any thread. Does nothing unless its context is under test. */
void gloo_self_test_see(gloo_data_call call, const void *options);

/* Collectives of process groups whose ranks are on several nodes: the ranks of a node move data through its memory. The first
 * of them, the node's leader, exchanges with the other leaders by gloo, in a context of the leaders alone. Reduced data crosses
 * the network once per node, not once per rank.
 *
 * gloo's functions throw. A leader whose exchange throws fails the node's group, and the calls of the node's other ranks end. */

/* `input` may be `out`. The result is the same on every rank: sums of a node's ranks in rank order, then as gloo adds nodes. */
castor_status gloo_across_allreduce(const gloo_across *a, const node_call *call,
                                    const gloo_allreduce_options *o, const void *input, void *out,
                                    const node_reduction *reduction);
castor_status gloo_across_broadcast(const gloo_across *a, const node_call *call,
                                    const gloo_broadcast_options *o, void *data);
castor_status gloo_across_barrier(const gloo_across *a, const node_call *call, const gloo_barrier_options *o);

#endif
