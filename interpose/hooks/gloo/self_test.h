/* The self-test of gloo's layouts: before anything is replaced, the agent calls each collective once with known arguments, in a
 * group of one rank and in the group of the leaders; the wrappers compare what they see (layout.h). Private to hooks/.
 *
 * All of it on the thread that makes the group (gloo_contexts_watch), with a group whose collectives are not recorded. */
#ifndef CASTOR_HOOKS_GLOO_SELF_TEST_H
#define CASTOR_HOOKS_GLOO_SELF_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "layout.h"

/* The context that was made last is under test. */
void gloo_self_test_begin(void);
/* The next call is to find what is expected. */
void gloo_self_test_expect(gloo_data_call call, const void *input, const void *output, size_t numel,
                           int64_t timeout_ms, int rank, int size);
/* The next call throws an exception with this text. */
void gloo_self_test_throw(const char *text);
/* All calls found what was expected. */
bool gloo_self_test_end(void);

/* The last test of a group of one rank found all that leaders need. */
bool gloo_self_test_leads(void);

/* A wrapper's call, from any thread. Nothing to do unless its context is under test. */
void gloo_self_test_see(gloo_data_call call, const void *options);

/* In a forked child no test is on. */
void gloo_self_test_fork_child(void);

#endif
