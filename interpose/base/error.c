#include "error.h"

#include <stdarg.h>
#include "log.h"
#include "thread.h"

#define ERROR_TEXT_MAX 2048

castor_status error_set(castor_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_vmessage(thread_room(THREAD_ROOM_ERROR), ERROR_TEXT_MAX, format, arguments);
    va_end(arguments);
    return status;
}

const char *error_text(void) {
    return thread_room(THREAD_ROOM_ERROR);
}
