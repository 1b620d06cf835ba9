#include "ends.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"

enum { PATH_BYTES = 4096 };

const char *const ends_words[ENDS_EVENT_COUNT] = {
    [ENDS_SIGNAL] = "signal", [ENDS_STATUS] = "status", [ENDS_TOLD] = "told",
    [ENDS_KILLED] = "killed", [ENDS_JOB] = "job",       [ENDS_KILLED_CGROUP] = "killed-cgroup",
    [ENDS_LOST] = "lost",
};

static int ends_open(const char *directory, int flags) {
    char path[PATH_BYTES];
    if (!directory[0] || log_format(path, sizeof path, "%s/" ENDS_NAME, directory) + 1 >= sizeof path)
        return -1;
    return open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
}

/* Growing a file beyond RLIMIT_FSIZE would be a signal. */
static bool has_room(int file, size_t bytes) {
    struct stat info;
    struct rlimit limit;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    uint64_t end = (uint64_t)info.st_size + bytes;
    return end <= ENDS_BYTES_MAX &&
           (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || end <= limit.rlim_cur);
}

void ends_write(const char *directory, int pid, ends_event event, uint64_t number) {
    char line[ENDS_LINE_BYTES];
    int saved_errno = errno, file = ends_open(directory, O_WRONLY | O_CREAT | O_APPEND);
    size_t size =
        log_format(line, sizeof line, "%llu %d %s %llu\n", (unsigned long long)clock_ns(CLOCK_REALTIME), pid,
                   ends_words[event], (unsigned long long)number);
    ssize_t written = file >= 0 && has_room(file, size) ? write(file, line, size) : 0;
    (void)written; /* nobody could be told */
    if (file >= 0)
        close(file);
    errno = saved_errno;
}

bool ends_exist(const char *directory) {
    int file = ends_open(directory, O_RDONLY);
    if (file >= 0)
        close(file);
    return file >= 0;
}
