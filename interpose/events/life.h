/* What happens to the library in a process, as events: layers hear of them without knowing who tells, and tell without knowing
 * who listens.
 *
 *   wake      PyTorch is in use: hooks, arena and trace start, once. Until then the library sleeps (start.h)
 *   library   a library was loaded whose functions have rows in the table of hooks
 *   fork      handlers as pthread_atfork's
 *
 * Its other events have files of their own: gate.h (no device is given work), held.h (memory is about to be replaced). */
#ifndef CASTOR_EVENTS_LIFE_H
#define CASTOR_EVENTS_LIFE_H

#include <stdbool.h>
#include "base/status.h"

/* Who starts the layers; set when the library is loaded. */
void life_listen(void (*wake)(void), void (*library)(void));

/* Returns when the library is awake. By the agent, or by a hook that is called before any agent has attached. */
void life_wake(void);
bool life_is_awake(void);
void life_library_loaded(void);

/* The agent has come: Python's events are reported. */
void life_agent_attached(void);
bool life_has_agent(void);

/* Adds handlers of fork (any may be NULL): `prepare` is called in reverse order. CASTOR_ERR_MEMORY when the list is full. */
castor_status life_fork_register(void (*prepare)(void), void (*parent)(void), void (*child)(void));
/* The same, but nobody is called before life_fork_watch, or the first life_fork_register: a sleeping library has nothing to protect. */
castor_status life_fork_list(void (*prepare)(void), void (*parent)(void), void (*child)(void));
void life_fork_watch(void);

#endif
