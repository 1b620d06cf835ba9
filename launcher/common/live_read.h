/* Reads a live file (trace/live_format.h): a process's waits. As in trace_read.h, nothing in it is trusted. */
#ifndef CASTOR_LAUNCHER_COMMON_LIVE_READ_H
#define CASTOR_LAUNCHER_COMMON_LIVE_READ_H

#include <stdbool.h>
#include "trace/live_format.h"

/* False: not such a file, of another version, unfinished or truncated. Texts are clean, kinds and groups in range. */
bool live_read(int fd, live_file *out);

/* Asks the process of the file at `path` for its Python stack. False: it cannot be written. */
bool live_ask_stack(const char *path, uint32_t number);

#endif
