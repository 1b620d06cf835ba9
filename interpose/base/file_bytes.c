#include "file_bytes.h"

#include <errno.h>
#include <unistd.h>

int file_bytes_write(int fd, const void *from, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 ? errno : ENOSPC;
        done += (size_t)moved;
    }
    return 0;
}

int file_bytes_read(int fd, void *to, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 ? errno : EIO;
        done += (size_t)moved;
    }
    return 0;
}
