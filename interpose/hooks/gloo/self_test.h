/* The self-test of gloo's layouts: before anything is replaced, the agent calls each collective once with known arguments, in a
 * group of one rank and in the group of the leaders; the wrappers compare what they see (layout.h). Private to hooks/.
 *
 * All of it runs on the thread that makes the group (gloo_contexts_watch), with a group whose collectives are not recorded. */
#ifndef CASTOR_HOOKS_GLOO_SELF_TEST_H
#define CASTOR_HOOKS_GLOO_SELF_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "layout.h"

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

/* In a forked child no test is running. */
void gloo_self_test_fork_child(void);

#endif
