/* The text of this thread's last error. A function that decides that something is wrong sets it, once: it
 * names the expected value, the actual value and the remedy; the agent raises it as an exception. */
#ifndef CASTOR_BASE_ERROR_H
#define CASTOR_BASE_ERROR_H

#include "status.h"

/* Sets the text (log.h's conversions) and returns `status`. */
castor_status error_set(castor_status status, const char *format, ...);
const char *error_text(void);

#endif
