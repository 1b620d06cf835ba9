#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "log.h"

enum { STAT_BYTES = 2048, FIELD_STATE = 3, FIELD_START = 22, FIELD_WORDS = 48 };

/* The fields of /proc/PID/stat from the state on; NULL: there is no such process. */
static const char *stat_read(int pid, char text[STAT_BYTES]) {
    char path[64];
    if (pid == 0)
        log_format(path, sizeof path, "/proc/self/stat");
    else
        log_format(path, sizeof path, "/proc/%d/stat", pid);
    int fd = pid < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    ssize_t length = read(fd, text, STAT_BYTES - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    /* The name stands in parentheses and may hold anything: fields are counted from the last one. */
    const char *at = strrchr(text, ')');
    return at && at[1] == ' ' ? at + 2 : NULL;
}

/* 0: there is no such field. */
static uint64_t number_of(const char *at, int wanted) {
    uint64_t number = 0;
    for (int field = FIELD_STATE; at && field < wanted; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    for (; at && *at >= '0' && *at <= '9'; at++)
        number = number * 10 + (uint64_t)(*at - '0');
    return number;
}

uint64_t process_start_ticks(int pid) {
    char text[STAT_BYTES];
    return number_of(stat_read(pid, text), FIELD_START);
}

char process_state(int pid, uint64_t start_ticks) {
    char text[STAT_BYTES];
    const char *fields = pid > 0 ? stat_read(pid, text) : NULL;
    if (!fields || start_ticks == 0 || number_of(fields, FIELD_START) != start_ticks)
        return 0;
    return *fields == 'Z' || *fields == 'X' ? (char)0 : *fields;
}

char *process_words(size_t *bytes) {
    char text[STAT_BYTES];
    const char *fields = stat_read(0, text);
    uint64_t begin = number_of(fields, FIELD_WORDS), end = number_of(fields, FIELD_WORDS + 1);
    *bytes = begin < end ? (size_t)(end - begin) : 0;
    return *bytes ? (char *)(uintptr_t)begin : NULL; /* NOLINT(performance-no-int-to-ptr) */
}
