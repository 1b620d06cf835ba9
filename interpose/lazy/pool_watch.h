/* The thread `castor-pool`: finds the job's pool, or makes it, and asks for a sweep whenever this process has come to
 * hold so many more bytes of its own. The sweep itself runs where it is safe: `schedule` has it called by a thread of the
 * script between two of its steps (Py_AddPendingCall). */
#ifndef CASTOR_LAZY_POOL_WATCH_H
#define CASTOR_LAZY_POOL_WATCH_H

#include <stdint.h>
#include "core/status.h"

/* `own_bytes`: so many more than after the last sweep are time for the next one. `schedule(sweep, NULL)` may be called from
 * any thread, and returns 0 when sweep(NULL) will be called. Idempotent; goes on after pool_watch_stop. */
castor_status pool_watch_start(const char *token, uint64_t own_bytes,
                               int (*schedule)(int (*)(void *), void *), int (*sweep)(void *));
/* No sweep is scheduled after this call. The pool stays, also for those who come later. */
void pool_watch_stop(void);

/* What was scheduled was done; `swept` false: it could not be done now. */
void pool_watch_done(int swept);

#endif
