/* Finds the wrapper for a name. Names must match exactly: for a function without a row in the tables, the caller gets the
 * real one.
 *
 * A name of the driver can have several ABIs. Callers of cuGetProcAddress select one by a CUDA version and a flag. Private to
 * hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_H
#define CASTOR_HOOKS_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>
#include "hooks/table/hooks.h"

#define LOOKUP_KNOWN_VERSION 13000 /* the newest CUDA whose ABIs cuda_driver.def knows */

/* The row of CUDA's or NCCL's tables with this symbol, or HOOK_COUNT. */
hook_id lookup_symbol(const char *symbol);

/* The row that the driver means by a name, a version and whether the default stream is per thread, or HOOK_COUNT. */
hook_id lookup_driver(const char *name, int version, bool per_thread);

/* The function to return in place of `found`, the result of the real look-up of a row's function: the row's wrapper, which
 * calls `found` from then on; or `found` itself, if the wrapper already calls a function of another library. */
void *lookup_wrap(hook_id id, void *found);

/* The row's wrapper; NULL: it has none that a look-up may return. */
void *lookup_wrapper(hook_id id);

/* The number of functions of the tables that were returned without their wrapper. */
uint64_t lookup_passed_over(void);

#endif
