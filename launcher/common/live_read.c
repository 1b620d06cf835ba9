#include "live_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>
#include "trace_read.h"

static bool read_whole(int fd, void *out, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t part = pread(fd, (char *)out + done, bytes - done, (off_t)done);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return false;
        done += (size_t)part;
    }
    return true;
}

bool live_read(int fd, live_file *out) {
    if (!read_whole(fd, out, sizeof *out) || out->magic != LIVE_MAGIC || out->version != LIVE_VERSION ||
        out->file_bytes != sizeof *out)
        return false;
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++) {
        trace_read_clean(out->groups[i].name, sizeof out->groups[i].name);
        for (uint32_t j = 0; j < LIVE_RECENT_MAX; j++)
            trace_read_clean(out->groups[i].recent[j].what, sizeof out->groups[i].recent[j].what);
    }
    for (uint32_t i = 0; i < LIVE_CHANNELS_MAX; i++)
        if (out->channels[i].group >= LIVE_PROCESS_GROUPS_MAX)
            out->channels[i].direction = 0;
    trace_read_clean(out->device.call, sizeof out->device.call);
    trace_read_clean(out->device.enqueued, sizeof out->device.enqueued);
    for (uint32_t i = 0; i < LIVE_WAITS_MAX; i++) {
        live_wait *wait = &out->waits[i];
        trace_read_clean(wait->what, sizeof wait->what);
        if (wait->kind < LIVE_COLLECTIVE || wait->kind > LIVE_RECEIVE)
            wait->begin_ns = 0;
        if (wait->group >= LIVE_PROCESS_GROUPS_MAX)
            wait->group = LIVE_PROCESS_GROUP_UNKNOWN;
    }
    return true;
}

bool live_ask_stack(const char *path, uint32_t number) {
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool written =
        pwrite(fd, &number, sizeof number, offsetof(live_file, stack_wanted)) == (ssize_t)sizeof number;
    close(fd);
    return written;
}
