/* Whether a stream of this process is being captured into a graph, by any thread: much that synchronizes breaks a capture, also that of
 * another thread. Private to hooks/. */
#ifndef CASTOR_HOOKS_CUDA_CAPTURE_H
#define CASTOR_HOOKS_CUDA_CAPTURE_H

#include <stdbool.h>

/* Counts captures from here on; one that runs already is not seen. Once. */
void capture_install(void);
bool capture_runs(void);

/* A stream ends, or is captured, from now on: copies wait for what was noted there (slots_writes_end). */
void capture_writers_record(void);

#endif
