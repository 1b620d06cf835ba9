/* The thread `castor-staging`: finds the job's staging area, or makes it, and asks for a sweep each time this process has made
 * so many more bytes of its own. The sweep itself runs where it is safe: `schedule` lets a thread of the script call it
 * between two of its steps (Py_AddPendingCall). */
#ifndef CASTOR_LAZY_STAGING_WATCH_H
#define CASTOR_LAZY_STAGING_WATCH_H

#include <stdint.h>
#include "base/status.h"

/* `own_bytes`: a sweep is due when there are so many more than after the last one. `schedule(sweep, NULL)` may be called from
 * any thread, and returns 0 when sweep(NULL) will be called. Idempotent; also starts again after staging_watch_stop. */
castor_status staging_watch_start(const char *token, uint64_t own_bytes,
                                  int (*schedule)(int (*)(void *), void *), int (*sweep)(void *));
/* No sweep is scheduled after this call. The staging area stays, also for those who come later. */
void staging_watch_stop(void);

/* What was scheduled was done; `swept` false: it could not be done now. */
void staging_watch_done(int swept);

#endif
