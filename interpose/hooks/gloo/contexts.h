/* The contexts of gloo that move data through the node's memory.
 *
 * A process group of gloo makes its contexts on the thread that makes the group; this thread collects them meanwhile. Then
 * all ranks of the group agree whether to bind them: a context that is bound on one rank only would hang the others. Private
 * to hooks/, except for the exported functions over it. */
#ifndef CASTOR_HOOKS_GLOO_CONTEXTS_H
#define CASTOR_HOOKS_GLOO_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "collectives/node_group.h"
#include "base/status.h"
#include "shims/gloo/options.h"
#include "across.h"

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

/* For the self-test: the context that this thread has made; NULL unless there is exactly one. After a test that passed,
 * gloo_contexts_tested takes the pointer to it that gloo uses. */
const void *gloo_contexts_only(void);
void gloo_contexts_tested(gloo_shared context);

/* For the wrappers. */
void gloo_contexts_made(const void *context);
void gloo_contexts_ended(const void *context);
/* NULL: it is not bound. */
const gloo_binding *gloo_contexts_binding(const void *context);

#endif
