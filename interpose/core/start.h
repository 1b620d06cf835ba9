/* Sleep, wake, fork and exit of the library.
 *
 * The library is loaded into every process of a command. It sleeps (no output, no file, no thread, no memory
 * beyond its own image) until PyTorch's CPU library is loaded. It learns that from the first of these
 * events:
 *   - libc10.so allocates: the arena starts, nothing else;
 *   - a collective of PyTorch's is called;
 *   - the agent attaches, at the end of `import torch`.
 */
#ifndef CASTOR_CORE_START_H
#define CASTOR_CORE_START_H

#include <stdbool.h>
#include "status.h"

/* Called by the agent's attach: resolves the hooks, starts the arena and the trace. Idempotent. CASTOR_ERR_ARGUMENT,
 * with the text of error.h, when an option is bad: the library is awake then, with that option's default. */
castor_status start_wake(void);

/* The environment is another one, as in a process that castor starts: it is read again, before the library is awake. */
castor_status start_again(void);

/* This process has loaded the library itself: it sleeps for good (castor_beside). */
void start_beside(void);

/* The same without an agent: PyTorch is in use, but nobody reports its Python events. For wrappers. */
void start_wake_by_hook(void);
bool start_is_awake(void);

/* Whether a plugin should train here, must not step aside, and no agent has attached. */
bool start_is_unreached(void);

/* Refuses the job for this reason: logs it, once per job, and writes the file `refused` in the log directory. */
void start_refuse(const char *reason);

/* Starts the arena if the options enable it. True when it serves blocks. */
bool start_arena(void);

/* The plugin was chosen after PyTorch was loaded: starts what it needs, and tells the trace. Blocks that PyTorch has already stay the
 * system's allocator's. */
void start_engine(void);

/* Adds handlers of fork (any may be NULL), called after the library's own in `child` and `parent`, before
 * them in `prepare`. CASTOR_ERR_MEMORY when the list is full. */
castor_status start_fork_register(void (*prepare)(void), void (*parent)(void), void (*child)(void));

#endif
