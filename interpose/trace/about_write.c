/* The file `castor.about` of the log directory: what a process of the job adds to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "file.h"
#include "trace.h"

enum { LINE_MAX_BYTES = 256, PATH_BYTES = 4200, BLOCK_BYTES = 4096 };

/* Whether the file has the line already: every rank has the same versions, and one line says them. Two that come at the same
 * time write it twice, which says the same once. */
static bool has_line(int file, const char *line, size_t length) {
    char block[LINE_MAX_BYTES + BLOCK_BYTES];
    size_t kept = 0;
    for (off_t at = 0; at < TRACE_ABOUT_BYTES_MAX;) {
        ssize_t more = pread(file, block + kept, BLOCK_BYTES, at);
        if (more <= 0)
            return false;
        at += more;
        size_t all = kept + (size_t)more;
        if (memmem(block, all, line, length))
            return true;
        kept = all < LINE_MAX_BYTES ? all : LINE_MAX_BYTES;
        memmove(block, block + all - kept, kept);
    }
    return true; /* it is full */
}

void trace_about_add(trace_about fact, const char *value) {
    static const char *const keys[] = {
#define ABOUT(id, key, doc) key,
#include "about.def"
    };
    char path[PATH_BYTES], line[LINE_MAX_BYTES];
    if (trace_file_directory()[0] == '\0' || value[0] == '\0')
        return;
    log_format(path, sizeof path, "%s/" TRACE_ABOUT_NAME, trace_file_directory());
    size_t length = log_format(line, sizeof line, "%s %s\n", keys[fact], value);
    for (size_t i = 0; i + 1 < length; i++)
        if ((unsigned char)line[i] < ' ')
            line[i] = '?';
    line[length - 1] = '\n'; /* of one that was cut, too */
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    struct stat found;
    struct rlimit limit;
    /* To write beyond the limit is a SIGXFSZ in the script. */
    if (file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode) &&
        getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
        (limit.rlim_cur == RLIM_INFINITY || (rlim_t)found.st_size + BLOCK_BYTES <= limit.rlim_cur) &&
        !has_line(file, line, length) && write(file, line, length) < 0)
        LOG_D("%s could not be written: error %d", path, errno);
    if (file >= 0)
        close(file);
}
