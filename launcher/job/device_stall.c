/* Who waits for a device that does nothing any more.
 *
 * A process that waits for its device may wait for another rank, which has not enqueued its part: then that rank is named, not
 * the device. Where nobody is behind, and on no device of those that work together anything has been seen to be done, the
 * devices themselves hang. */
#include <stdio.h>
#include <string.h>
#include "reading.h"

static bool is_seen(const job_process *process) {
    return process->live != NULL && !job_process_is_gone(process);
}

/* They enqueue on a group that both have. */
static bool share_a_group(const job_reading *reading, size_t a, size_t b) {
    const live_file *live = reading->processes[a].live;
    for (uint32_t i = 0; i < LIVE_GROUPS_MAX && a != b; i++) {
        const live_group *group = &live->groups[i];
        if (group->used && group->enqueues && group->name[0] != '\0' &&
            job_group_named(reading->processes[b].live, group->name) != NULL)
            return true;
    }
    return a == b;
}

static bool contains(const size_t *indices, size_t count, size_t index) {
    for (size_t i = 0; i < count; i++)
        if (indices[i] == index)
            return true;
    return false;
}

/* Somebody is behind in a meeting of the process, or of one with which it works: that is what its device waits for. */
static bool is_held(const job_reading *reading, const job_meetings *meetings, size_t index,
                    uint64_t before_ns) {
    for (size_t m = 0; m < meetings->count; m++) {
        const job_meeting *meeting = &meetings->rows[m];
        if ((meeting->missing_count == 0 && meeting->unseen == 0) ||
            (meeting->progress_ns == 0 && meeting->begin_ns >= before_ns))
            continue;
        for (size_t i = 0; i < reading->count; i++)
            if ((contains(meeting->waiting, meeting->waiting_count, i) ||
                 contains(meeting->missing, meeting->missing_count, i)) &&
                reading->processes[i].live != NULL && share_a_group(reading, index, i))
                return true;
    }
    return false;
}

uint64_t job_device_idle_ns(const job_reading *reading, size_t index) {
    const job_process *process = &reading->processes[index];
    if (process->state != JOB_RUNNING || process->live == NULL || process->live->device.begin_ns == 0)
        return UINT64_MAX;
    uint64_t since_ns = process->live->device.begin_ns;
    for (size_t i = 0; i < reading->count; i++)
        if (is_seen(&reading->processes[i]) && share_a_group(reading, index, i) &&
            reading->processes[i].live->device.progress_ns > since_ns)
            since_ns = reading->processes[i].live->device.progress_ns;
    return since_ns;
}

bool job_meetings_add_devices(job_meetings *meetings, const job_reading *reading, uint64_t before_ns) {
    job_meeting *found = NULL;
    size_t known = meetings->count;
    for (size_t i = 0; i < reading->count; i++) {
        uint64_t since_ns = job_device_idle_ns(reading, i);
        if (since_ns >= before_ns)
            continue;
        if (found == NULL) {
            job_meeting first = {.kind = LIVE_DEVICE};
            snprintf(first.what, sizeof first.what, "%s", reading->processes[i].live->device.call);
            if ((found = job_meeting_add(meetings, reading, &first)) == NULL)
                return false;
        }
        job_meetings others = {.rows = meetings->rows, .count = known};
        bool held = is_held(reading, &others, i, before_ns);
        if (found->waiting_count > 0 && held && !found->held)
            continue; /* those that nobody holds up count */
        if (found->waiting_count == 0 || held != found->held) {
            found->waiting_count = 0;
            found->begin_ns = since_ns;
            found->held = held;
        }
        job_meeting_add_rank(found->waiting, &found->waiting_count, i);
        if (since_ns < found->begin_ns)
            found->begin_ns = since_ns;
    }
    return true;
}

/* ---- text ---- */

void job_devices_text(const job_reading *reading, const job_meeting *meeting, char *out, size_t out_size) {
    uint64_t named = 0; /* bit by bit, as far as they have bits */
    for (size_t i = 0; i < meeting->waiting_count; i++)
        named |= UINT64_C(1) << (reading->processes[meeting->waiting[i]].live->device.device & 63);
    int count = __builtin_popcountll(named);
    size_t used = (size_t)snprintf(out, out_size, count == 1 ? "device" : "devices");
    for (int i = 0; named != 0 && used + 16 < out_size; named &= named - 1, i++)
        used += (size_t)snprintf(out + used, out_size - used, "%s%d",
                                 i == 0           ? " "
                                 : i == count - 1 ? " and "
                                                  : ", ",
                                 __builtin_ctzll(named));
}

/* The last collective that the process has enqueued on any group; NULL: none. */
static const live_recent *last_collective(const live_file *live, const live_group **on) {
    const live_recent *last = NULL;
    for (uint32_t i = 0; i < LIVE_GROUPS_MAX; i++) {
        const live_group *group = &live->groups[i];
        const live_recent *recent = &group->recent[group->entered % LIVE_RECENT_MAX];
        if (group->used && group->enqueues && recent->ordinal == group->entered && group->entered > 0 &&
            (last == NULL || recent->begin_ns > last->begin_ns)) {
            last = recent;
            *on = group;
        }
    }
    return last;
}

/* "a kernel on the default stream", "cudaMemcpyAsync of 4 bytes on stream 0x5581f0c0". */
static void last_call_text(const live_device *device, bool with_bytes, char *out, size_t out_size) {
    bool kernel = strstr(device->enqueued, "Kernel") != NULL;
    char bytes[48] = "", stream[40] = "the default stream";
    if (with_bytes && device->enqueued_bytes > 0)
        snprintf(bytes, sizeof bytes, " of %llu bytes", (unsigned long long)device->enqueued_bytes);
    if (device->stream > 2) /* 1, 2: names of default streams */
        snprintf(stream, sizeof stream, "stream %#llx", (unsigned long long)device->stream);
    snprintf(out, out_size, "%s%s on %s", kernel ? "a kernel" : device->enqueued, bytes, stream);
}

void job_enqueued_text(const job_process *process, char *out, size_t out_size) {
    const live_device *device = &process->live->device;
    const live_group *on = NULL;
    const live_recent *collective = last_collective(process->live, &on);
    char call[160], group[160];
    /* The call of a collective says on which stream it is. */
    bool itself = collective != NULL && strncmp(device->enqueued, "nccl", 4) == 0 &&
                  strcmp(device->enqueued, "ncclSend") != 0 && strcmp(device->enqueued, "ncclRecv") != 0;
    last_call_text(device, !itself, call, sizeof call);
    if (collective == NULL) {
        snprintf(out, out_size, "%s", call);
        return;
    }
    job_meeting of = {.size = on->size};
    snprintf(of.group, sizeof of.group, "%s", on->name);
    job_group_text(&of, group, sizeof group);
    bool later = device->enqueued_ns > collective->begin_ns;
    snprintf(out, out_size, "%s, number %llu of %s, %llu bytes%s%s%s", collective->what,
             (unsigned long long)collective->ordinal, group, (unsigned long long)collective->bytes,
             !later   ? ""
             : itself ? " ("
                      : ", then ",
             later ? call : "", later && itself ? ")" : "");
}

void job_device_peers_find(const job_reading *reading, const job_meeting *meeting, job_device_peers *out) {
    *out = (job_device_peers){.size = 1};
    size_t first = meeting->waiting[0], seen = 0;
    for (size_t i = 0; i < reading->count; i++)
        if (is_seen(&reading->processes[i]) && share_a_group(reading, first, i)) {
            seen++;
            if (!contains(meeting->waiting, meeting->waiting_count, i) && out->others_count < JOB_OTHERS_MAX)
                out->others[out->others_count++] = i;
        }
    const live_file *live = reading->processes[first].live;
    for (uint32_t i = 0; i < LIVE_GROUPS_MAX; i++)
        if (live->groups[i].used && live->groups[i].enqueues && live->groups[i].size > out->size)
            out->size = live->groups[i].size;
    out->unseen = seen < out->size;
}
