#include "error.h"

#include <stdarg.h>
#include "log.h"

#define ERROR_TEXT_MAX 2048

static __thread __attribute__((tls_model("initial-exec"))) char text[ERROR_TEXT_MAX];

castor_status error_set(castor_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_vmessage(text, sizeof text, format, arguments);
    va_end(arguments);
    return status;
}

const char *error_text(void) {
    return text;
}
