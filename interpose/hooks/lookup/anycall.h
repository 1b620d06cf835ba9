/* Functions that CASTOR_TRACE_ALSO names: recorded by a closure that is made at run time (libffi) and put into
 * their callers' entries, in every object loaded now or later, until the process ends.
 *
 * Not seen: calls through pointers that were taken before, of another version of the symbol than its default one, and inside the
 * library itself without its PLT. The report names functions that nobody can call through an entry.
 * Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_ANYCALL_H
#define CASTOR_HOOKS_LOOKUP_ANYCALL_H

#include <stdbool.h>

/* Reads the option. A closure is made when its library is loaded. Logs what cannot be done. */
void anycall_start(void);
/* Libraries may have been loaded: makes the missing closures. Cheap when none was. */
void anycall_refresh(void);
/* Whether there are functions to record. */
bool anycall_is_used(void);
/* Restores the callers' entries. */
void anycall_stop(void);

/* Whether the name is a traced function's. */
bool anycall_names(const char *name);
/* The closure if a look-up of that name has found the traced function, else `found`. */
void *anycall_answer(const char *name, void *found);

#endif
