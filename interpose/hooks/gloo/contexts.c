#include "contexts.h"

#include <stdlib.h>
#include "base/error.h"
#include "events/life.h"
#include "hooks/lookup/wrapper.h"
#include "self_test.h"
#include "throw.h"
#include "spin_wait.h"

#define BOUND_MAX   512u
#define WATCHED_MAX 16u

static gloo_binding bound[BOUND_MAX];
static _Atomic uint32_t bound_end; /* entries from here on were never used */

typedef struct watch {
    bool on;
    uint32_t count;
    const void *context[WATCHED_MAX];
    gloo_shared tested; /* the first of them, after a self-test that ended well */
} watch;

HOOK_THREAD_LOCAL watch watched, outer;
HOOK_THREAD_LOCAL gloo_shared leaders; /* of the group that is to be bound */

/* A child's groups have no threads and their memory is not mapped there. */
static void fork_child(void) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        atomic_store(&bound[i].context, NULL);
    gloo_self_test_fork_child();
}

void gloo_contexts_watch(void) {
    static _Atomic int registered;
    if (!atomic_exchange(&registered, 1)) {
        life_fork_register(NULL, NULL, fork_child);
        gloo_throw_resolve();
    }
    watched = (watch){.on = true};
    gloo_wait_watch();
}

void gloo_contexts_unwatch(void) {
    watched.on = false;
    gloo_wait_unwatch();
    leaders = (gloo_shared){NULL, NULL};
}

uint32_t gloo_contexts_count(void) {
    return watched.count;
}

void gloo_contexts_leaders_watch(void) {
    outer = watched;
    watched = (watch){.on = true};
}

void gloo_contexts_leaders_unwatch(void) {
    leaders = watched.tested;
    watched = outer;
}

const void *gloo_contexts_only(void) {
    return watched.count == 1 ? watched.context[0] : NULL;
}

void gloo_contexts_tested(gloo_shared context) {
    watched.tested = context;
}

static castor_status bind(node_group *group, gloo_across *across) {
    if (watched.count == 0 || watched.count > WATCHED_MAX)
        return error_set(CASTOR_ERR_ARGUMENT, "a process group with %u contexts", watched.count);
    uint32_t made = 0;
    for (uint32_t i = 0; i < BOUND_MAX && made < watched.count; i++) {
        if (atomic_load(&bound[i].context))
            continue;
        bound[i].group = group;
        bound[i].across = across;
        bound[i].channel = made;
        atomic_store_explicit(&bound[i].context, watched.context[made++], memory_order_release);
        if (atomic_load(&bound_end) <= i)
            atomic_store_explicit(&bound_end, i + 1, memory_order_release);
    }
    if (made == watched.count) {
        gloo_wait_bind();
        return CASTOR_OK;
    }
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (bound[i].group == group)
            atomic_store(&bound[i].context, NULL);
    return error_set(CASTOR_ERR_MEMORY, "more than %u process groups", BOUND_MAX);
}

castor_status gloo_contexts_bind(node_group *group) {
    return bind(group, NULL);
}

castor_status gloo_contexts_bind_across(node_group *group, int rank, const int32_t *place, int world,
                                        const void *owner) {
    if (watched.count != 1)
        return error_set(CASTOR_ERR_ARGUMENT, "a process group with %u contexts", watched.count);
    gloo_across *across = gloo_across_new(group, leaders, rank, place, world);
    castor_status status =
        across ? CASTOR_OK : error_set(CASTOR_ERR_MEMORY, "no memory for a group's places");
    if (status == CASTOR_OK) {
        across->owner = owner;
        status = bind(group, across);
    }
    if (status != CASTOR_OK)
        free(across);
    return status;
}

bool gloo_contexts_bound_across(const void *owner) {
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (atomic_load(&bound[i].context) && bound[i].across && bound[i].across->owner == owner)
            return true;
    return false;
}

void gloo_contexts_made(const void *context) {
    if (!watched.on)
        return;
    if (watched.count < WATCHED_MAX)
        watched.context[watched.count] = context;
    watched.count++;
}

static gloo_binding *binding_of(const void *context) {
    uint32_t end = atomic_load_explicit(&bound_end, memory_order_acquire);
    for (uint32_t i = 0; i < end; i++)
        if (atomic_load_explicit(&bound[i].context, memory_order_acquire) == context)
            return &bound[i];
    return NULL;
}

const gloo_binding *gloo_contexts_binding(const void *context) {
    return binding_of(context);
}

void gloo_contexts_ended(const void *context) {
    gloo_binding *b = binding_of(context);
    if (!b)
        return;
    node_group *group = b->group;
    free(b->across);
    b->group = NULL;
    b->across = NULL;
    atomic_store_explicit(&b->context, NULL, memory_order_release);
    for (uint32_t i = 0; i < BOUND_MAX; i++)
        if (atomic_load(&bound[i].context) && bound[i].group == group)
            return;
    if (group)
        node_group_leave(group);
}
