#include "self_test.h"

#include <stdatomic.h>
#include "base/log.h"
#include "hooks/c10d/collective.h"
#include "shims/gloo/options.h"
#include "across.h"
#include "contexts.h"
#include "throw.h"

static struct {
    _Atomic(const void *) context; /* NULL: no test is on */
    gloo_data_call call;
    gloo_layout_expected expected;
    uint32_t expectations, held, last_tag;
    gloo_shared shared;
    bool leads;
    char text[128]; /* empty: the next call does not throw */
} test;

void gloo_self_test_begin(void) {
    collective_hide(true);
    test.expectations = test.held = test.last_tag = 0;
    test.text[0] = 0;
    test.leads = false;
    atomic_store(&test.context, gloo_contexts_only());
}

void gloo_self_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size) {
    test.call = call;
    test.expected =
        (gloo_layout_expected){atomic_load(&test.context), input, output, numel, timeout_ms, rank, size};
    test.expectations++;
}

void gloo_self_test_throw(const char *text) {
    log_format(test.text, sizeof test.text, "%s", text);
}

bool gloo_self_test_end(void) {
    bool begun = atomic_exchange(&test.context, NULL) != NULL;
    collective_hide(false);
    bool held = begun && gloo_throw_found() && test.held == test.expectations;
    if (held)
        gloo_contexts_tested(test.shared);
    return held;
}

bool gloo_self_test_leads(void) {
    return test.leads;
}

static void compare(gloo_data_call call, const void *options) {
    uint32_t tag = 0;
    bool holds = test.call == call && gloo_layout_holds(call, options, &test.expected, &tag);
    /* c10d counts them up. */
    holds = holds && (test.held == 0 || tag == test.last_tag + 1);
    test.last_tag = tag;
    test.held += holds;
    if (holds) {
        test.shared = *(const gloo_shared *)options;
        test.leads |= call == GLOO_DATA_CALL_ALLREDUCE && gloo_across_holds(&test.shared);
    }
    if (test.text[0] && gloo_throw_found())
        gloo_throw(test.text);
}

void gloo_self_test_see(gloo_data_call call, const void *options) {
    const void *tested = atomic_load_explicit(&test.context, memory_order_acquire);
    if (__builtin_expect(tested != NULL, 0) && ((const gloo_shared *)options)->object == tested)
        compare(call, options);
}

void gloo_self_test_fork_child(void) {
    atomic_store(&test.context, NULL);
}
