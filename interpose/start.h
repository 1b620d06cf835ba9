/* Sleep, wake and end of the library.
 *
 * The library is loaded into every process of a command. It sleeps (no output, no file, no thread, no memory
 * beyond its own image) until PyTorch's CPU library is loaded. It learns that from the first of these
 * events:
 *   - libc10.so allocates: the arena starts, nothing else;
 *   - a collective of PyTorch's is called;
 *   - the agent attaches, at the end of `import torch`.
 */
#ifndef CASTOR_START_H
#define CASTOR_START_H

#include "base/status.h"

/* Called by the agent's attach: resolves the hooks, starts the arena and the trace. Idempotent. CASTOR_ERR_ARGUMENT,
 * with the text of error.h, when an option is bad: the library is awake then, with that option's default. */
castor_status start_wake(void);

/* The environment is another one, as in a process that castor starts: it is read again, before the library is awake. */
castor_status start_again(void);

/* This process has loaded the library itself: it sleeps for good (castor_beside). */
void start_beside(void);

/* The plugin was chosen after PyTorch was loaded: starts what it needs, and tells the trace. Blocks that PyTorch has already stay the
 * system's allocator's. */
void start_engine(void);

#endif
