/* Calls that may never return, with a bound: such a call runs on a thread of its own, and the caller waits for that thread. A call that is
 * late is left to itself. A few may be late at a time. No malloc but that of pthread_create. After a fork the calls of the parent are
 * not the child's: its first ones find as many fewer places. */
#ifndef CASTOR_BASE_BOUNDED_H
#define CASTOR_BASE_BOUNDED_H

#include <stdint.h>
#include "status.h"

/* `result`: what `call` has returned. CASTOR_ERR_TIMEOUT: it has not within `timeout_ns`, and may still run, so that `context` must
 * stay valid for good; or too many others have not. CASTOR_ERR_SYSTEM: there is no thread for it. Sets the error's text. */
castor_status bounded_call(int (*call)(const void *context), const void *context, uint64_t timeout_ns,
                           int *result);

#endif
