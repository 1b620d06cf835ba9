/* Which wrapper answers to a name. Exact names only: of a function that is no row of the tables, the caller
 * gets the real one.
 *
 * One name of the driver has several ABIs: who asks cuGetProcAddress for it says which by a CUDA version and a
 * flag. Private to hooks/. */
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

/* What to hand out in place of `found`, which the real look-up of a row's function gave: the row's wrapper, which
 * calls `found` from then on; or `found` itself, if the wrapper calls a function of another library already. */
void *lookup_wrap(hook_id id, void *found);

/* The row's wrapper; NULL: it has none that a look-up may give. */
void *lookup_wrapper(hook_id id);

/* How many functions were handed out without their wrapper, though they are in the tables. */
uint64_t lookup_passed_over(void);

#endif
