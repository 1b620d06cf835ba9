#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "log.h"

/* Fields 3 (the state) and 22 (the start) of /proc/PID/stat. The result is the start, 0 for no such process. */
static uint64_t read_stat(int pid, char *state) {
    enum { FIELD_NAME = 2, FIELD_START = 22 };
    char path[64], text[1024];
    if (pid == 0)
        log_format(path, sizeof path, "/proc/self/stat");
    else
        log_format(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    /* The name stands in parentheses and may hold anything: fields are counted from the last one. */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return 0;
    *state = at[2];
    for (int field = FIELD_NAME; at != NULL && field < FIELD_START; field++)
        at = strchr(at + 1, ' ');
    uint64_t ticks = 0;
    for (at = at == NULL ? "" : at + 1; *at >= '0' && *at <= '9'; at++)
        ticks = ticks * 10 + (uint64_t)(*at - '0');
    return ticks;
}

uint64_t process_start_ticks(int pid) {
    char state;
    return pid < 0 ? 0 : read_stat(pid, &state);
}

char process_state(int pid, uint64_t start_ticks) {
    char state;
    if (pid <= 0 || start_ticks == 0 || read_stat(pid, &state) != start_ticks)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : state;
}
