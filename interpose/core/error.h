/* The text of this thread's last error. A function that decides that something is wrong says so here, once, with
 * what was expected, what was found and what to do; the agent raises it as an exception. */
#ifndef CASTOR_CORE_ERROR_H
#define CASTOR_CORE_ERROR_H

#include "status.h"

/* Sets the text (log.h's conversions) and returns `status`. */
castor_status error_set(castor_status status, const char *format, ...);
const char *error_text(void);

#endif
