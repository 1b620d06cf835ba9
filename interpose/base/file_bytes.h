/* Reads and writes whole ranges of files, although one system call may transfer a part or be interrupted by a signal. */
#ifndef CASTOR_BASE_FILE_BYTES_H
#define CASTOR_BASE_FILE_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Both return 0 or an errno: ENOSPC for a write that takes nothing, EIO for a read beyond the file's end. */
int file_bytes_write(int fd, const void *from, size_t bytes, uint64_t offset);
int file_bytes_read(int fd, void *to, size_t bytes, uint64_t offset);

#endif
