/* Mapped files of the log directory: made for this user alone, never through a link, with their blocks
 * reserved. */
#ifndef CASTOR_TRACE_FILE_H
#define CASTOR_TRACE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

/* Where the files go; a relative path starts at the current working directory. "" : no files. */
castor_status trace_file_set_directory(const char *directory);
const char *trace_file_directory(void);

/* A new file of `bytes` zeros, mapped shared. Returns NULL with errno: EEXIST when the name is taken. */
void *trace_file_create(const char *name, uint64_t bytes);

/* The same file for all processes of the job: made by the first one. NULL with errno. */
void *trace_file_share(const char *name, uint64_t bytes);

/* The text of an errno of file operations. It calls no malloc; strerror may. */
const char *trace_file_error(int error);

#endif
