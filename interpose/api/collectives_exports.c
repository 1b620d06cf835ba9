/* The exported functions about gloo's collectives through the node's memory: thin, over the hooks and the groups. */
#include "castor.h"

#include "collectives/node_group.h"
#include "job/options.h"
#include "hooks/gloo/contexts.h"
#include "hooks/gloo/algorithms.h"

void castor_contexts_watch(void) {
    gloo_contexts_watch();
}

uint32_t castor_contexts_count(void) {
    return gloo_contexts_count();
}

void castor_contexts_unwatch(void) {
    gloo_contexts_unwatch();
}

castor_status castor_node_open(const char *name, int rank, int world, double timeout_seconds,
                               castor_node **out) {
    return node_group_open(options()->job, name, rank, world, timeout_seconds, out);
}

castor_status castor_node_bind(castor_node *node) {
    return gloo_contexts_bind(node);
}

castor_status castor_node_bind_across(castor_node *node, int rank, const int32_t *place, int world,
                                      const void *leaders) {
    return gloo_contexts_bind_across(node, rank, place, world, leaders);
}

int castor_across_bound(const void *leaders) {
    return gloo_contexts_bound_across(leaders);
}

void castor_leaders_watch(void) {
    gloo_contexts_leaders_watch();
}

void castor_leaders_unwatch(void) {
    gloo_contexts_leaders_unwatch();
}

void castor_node_leave(castor_node *node) {
    node_group_leave(node);
}

uint64_t castor_node_calls(void) {
    return gloo_data_calls();
}

void castor_layout_begin(void) {
    gloo_self_test_begin();
}

void castor_layout_expect(int call, const void *input, const void *output, size_t numel, int64_t timeout_ms,
                          int rank, int size) {
    gloo_self_test_expect((gloo_data_call)call, input, output, numel, timeout_ms, rank, size);
}

void castor_layout_throw(const char *text) {
    gloo_self_test_throw(text);
}

int castor_layout_end(void) {
    return gloo_self_test_end();
}

int castor_layout_leads(void) {
    return gloo_self_test_leads();
}
