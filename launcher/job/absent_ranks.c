#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reading.h"

static bool job_meetings_add_devices(job_meetings *meetings, const job_reading *reading, uint64_t before_ns);
static bool job_meetings_add_enqueued(job_meetings *meetings, const job_reading *reading);

static const live_process_group *job_process_group_named(const live_file *live, const char *name) {
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++)
        if (live->groups[i].used && strcmp(live->groups[i].name, name) == 0)
            return &live->groups[i];
    return NULL;
}

static bool is_member(const live_process_group *group, int rank) {
    return rank >= 0 && (uint32_t)rank < LIVE_MEMBER_WORDS * 64 &&
           (group->members[rank / 64] >> (rank % 64) & 1);
}

static job_meeting *job_meeting_add(job_meetings *meetings, const job_reading *reading,
                                    const job_meeting *first) {
    job_meeting *rows = realloc(meetings->rows, (meetings->count + 1) * sizeof *rows);
    if (rows == NULL)
        return NULL;
    meetings->rows = rows;
    job_meeting *meeting = &rows[meetings->count++];
    *meeting = *first;
    meeting->waiting = calloc(reading->count + 1, sizeof *meeting->waiting);
    meeting->missing = calloc(reading->count + 1, sizeof *meeting->missing);
    return meeting->waiting == NULL || meeting->missing == NULL ? NULL : meeting;
}

static job_meeting *meeting_of(job_meetings *meetings, const job_reading *reading, const live_wait *wait,
                               const char *group) {
    for (size_t i = 0; i < meetings->count; i++) {
        job_meeting *meeting = &meetings->rows[i];
        /* Waits for messages are each their own: nothing says which of them belong together. */
        if (meeting->kind == (live_kind)wait->kind && wait->kind != LIVE_RECEIVE &&
            strcmp(meeting->group, group) == 0 && meeting->ordinal == wait->ordinal &&
            (group[0] != '\0' || wait->kind == LIVE_STORE) && strcmp(meeting->what, wait->what) == 0)
            return meeting;
    }
    job_meeting first = {.kind = (live_kind)wait->kind,
                         .ordinal = wait->ordinal,
                         .bytes = wait->bytes,
                         .begin_ns = wait->begin_ns};
    memcpy(first.what, wait->what, sizeof first.what);
    snprintf(first.group, sizeof first.group, "%s", group);
    return job_meeting_add(meetings, reading, &first);
}

static void job_meeting_add_rank(size_t *indices, size_t *count, size_t index) {
    for (size_t i = 0; i < *count; i++)
        if (indices[i] == index)
            return;
    indices[(*count)++] = index;
}

/* The process of a rank of a group; SIZE_MAX: there is none. */
static size_t job_process_group_process(const job_reading *reading, const char *group, int rank) {
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < reading->count; i++) {
        const job_process *process = &reading->processes[i];
        const live_process_group *own =
            process->live != NULL ? job_process_group_named(process->live, group) : NULL;
        /* Of several, one was started again: the one that is there counts. */
        if (own != NULL && own->rank == rank && (found == SIZE_MAX || !job_process_is_gone(process)))
            found = i;
    }
    return found;
}

uint64_t job_messages_begun(const live_file *live, const live_process_group *group, live_direction direction,
                            int peer, int tag, bool *lost) {
    for (uint32_t i = 0; i < LIVE_CHANNELS_MAX; i++) {
        const live_channel *channel = &live->channels[i];
        if (channel->direction == (uint32_t)direction && &live->groups[channel->group] == group &&
            channel->peer == peer && channel->tag == tag)
            return channel->begun;
    }
    *lost |= live->channels_lost != 0;
    return 0;
}

/* The sender is missing as long as it has not begun the send that the wait is for. */
static void find_sender(const job_reading *reading, job_meeting *meeting, const live_wait *wait,
                        const live_process_group *own) {
    size_t peer = job_process_group_process(reading, own->name, wait->peer);
    if (peer == SIZE_MAX)
        return;
    const live_file *live = reading->processes[peer].live;
    bool lost = false;
    uint64_t sent = job_messages_begun(live, job_process_group_named(live, own->name), LIVE_SENT, own->rank,
                                       wait->tag, &lost);
    if (sent < wait->ordinal && !lost)
        job_meeting_add_rank(meeting->missing, &meeting->missing_count, peer);
}

static bool add_wait(job_meetings *meetings, const job_reading *reading, size_t index,
                     const live_wait *wait) {
    const live_file *live = reading->processes[index].live;
    const char *group = wait->group == LIVE_PROCESS_GROUP_UNKNOWN ? "" : live->groups[wait->group].name;
    job_meeting *meeting = meeting_of(meetings, reading, wait, group);
    if (meeting == NULL)
        return false;
    job_meeting_add_rank(meeting->waiting, &meeting->waiting_count, index);
    if (wait->begin_ns < meeting->begin_ns)
        meeting->begin_ns = wait->begin_ns;
    if (wait->group != LIVE_PROCESS_GROUP_UNKNOWN)
        meeting->size = live->groups[wait->group].size;
    if (wait->kind == LIVE_RECEIVE && wait->ordinal != 0 && group[0] != '\0')
        find_sender(reading, meeting, wait, &live->groups[wait->group]);
    for (size_t i = 0; i < reading->count && wait->missing_pid > 0; i++)
        if (reading->processes[i].pid == (uint32_t)wait->missing_pid)
            job_meeting_add_rank(meeting->missing, &meeting->missing_count, i);
    return true;
}

static bool waits_in(const job_meeting *meeting, size_t index) {
    for (size_t i = 0; i < meeting->waiting_count; i++)
        if (meeting->waiting[i] == index)
            return true;
    return false;
}

/* What a process that is not in the meeting has under the same ordinal: the ranks call different collectives then. */
static const char *entered_instead(const job_process *process, const job_meeting *meeting) {
    for (uint32_t i = 0; i < LIVE_WAITS_MAX; i++) {
        const live_wait *wait = &process->live->waits[i];
        if (wait->begin_ns != 0 && wait->kind == LIVE_COLLECTIVE && wait->ordinal == meeting->ordinal &&
            wait->group != LIVE_PROCESS_GROUP_UNKNOWN &&
            strcmp(process->live->groups[wait->group].name, meeting->group) == 0)
            return wait->what;
    }
    return NULL;
}

/* Of a collective: the processes of the group that have not begun it. A rank whose process was started again counts by
 * the one that is there. */
static void find_missing(const job_reading *reading, job_meeting *meeting) {
    const live_process_group *own =
        job_process_group_named(reading->processes[meeting->waiting[0]].live, meeting->group);
    uint32_t seen = 0;
    for (size_t i = 0; i < reading->count && own != NULL; i++) {
        const job_process *process = &reading->processes[i];
        const live_process_group *group =
            process->live != NULL ? job_process_group_named(process->live, meeting->group) : NULL;
        bool replaced = i + 1 < reading->count && job_process_is_gone(process) && process->rank >= 0 &&
                        (reading->processes[i + 1].rank == process->rank ||
                         (i > 0 && reading->processes[i - 1].rank == process->rank));
        if (replaced || (group == NULL && !(process->live != NULL && is_member(own, process->rank))))
            continue;
        seen++;
        if (waits_in(meeting, i))
            continue;
        const char *other = group != NULL ? entered_instead(process, meeting) : NULL;
        if (other != NULL)
            meeting->other = other;
        if (group == NULL || group->entered < meeting->ordinal || other != NULL)
            job_meeting_add_rank(meeting->missing, &meeting->missing_count, i);
    }
    meeting->unseen = seen < meeting->size ? meeting->size - seen : 0;
}

static int compare_meetings(const void *left, const void *right) {
    const job_meeting *a = left, *b = right;
    return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

static void drop(job_meetings *meetings, size_t index) {
    free(meetings->rows[index].waiting);
    free(meetings->rows[index].missing);
    memmove(&meetings->rows[index], &meetings->rows[index + 1],
            (--meetings->count - index) * sizeof *meetings->rows);
}

/* Whether an earlier collective of the same group is there: this one waits behind it. */
static bool is_behind(const job_meetings *meetings, const job_meeting *meeting) {
    for (size_t i = 0; i < meetings->count; i++) {
        const job_meeting *other = &meetings->rows[i];
        if (other->kind == LIVE_COLLECTIVE && other->ordinal < meeting->ordinal &&
            strcmp(other->group, meeting->group) == 0)
            return true;
    }
    return false;
}

bool job_meetings_find(const job_reading *reading, uint64_t before_ns, job_meetings *out) {
    *out = (job_meetings){0};
    bool complete = true;
    for (size_t i = 0; i < reading->count && complete; i++) {
        const job_process *process = &reading->processes[i];
        for (uint32_t w = 0;
             process->live != NULL && !job_process_is_gone(process) && w < LIVE_WAITS_MAX && complete; w++)
            if (process->live->waits[w].begin_ns != 0)
                complete = add_wait(out, reading, i, &process->live->waits[w]);
    }
    complete = complete && job_meetings_add_enqueued(out, reading);
    for (size_t i = 0; i < out->count && complete; i++)
        if (out->rows[i].kind == LIVE_COLLECTIVE && out->rows[i].progress_ns == 0 &&
            out->rows[i].group[0] != '\0')
            find_missing(reading, &out->rows[i]);
    complete = complete && job_meetings_add_devices(out, reading, before_ns);
    for (size_t i = out->count; i-- > 0 && complete;)
        if (out->rows[i].begin_ns >= before_ns ||
            (out->rows[i].kind == LIVE_COLLECTIVE && is_behind(out, &out->rows[i])))
            drop(out, i);
    if (out->count > 1)
        qsort(out->rows, out->count, sizeof *out->rows, compare_meetings);
    return complete;
}

void job_meetings_free(job_meetings *meetings) {
    for (size_t i = 0; i < meetings->count; i++) {
        free(meetings->rows[i].waiting);
        free(meetings->rows[i].missing);
    }
    free(meetings->rows);
    *meetings = (job_meetings){0};
}

/* ---- text ---- */

void job_ranks_text(const job_reading *reading, const size_t *indices, size_t count, char *out,
                    size_t out_size) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < count && used + 32 < out_size;) {
        const job_process *first = &reading->processes[indices[i]];
        size_t end = i + 1;
        while (end < count && first->rank >= 0 && reading->processes[indices[end]].rank > 0 &&
               reading->processes[indices[end]].rank - 1 == reading->processes[indices[end - 1]].rank)
            end++;
        const char *before = i == 0 ? "" : end == count ? " and " : ", ";
        if (first->rank < 0)
            used += (size_t)snprintf(out + used, out_size - used, "%sprocess %u", before, first->pid);
        else if (end - i < 3) {
            used += (size_t)snprintf(out + used, out_size - used, "%s%d", before, first->rank);
            end = i + 1;
        } else
            used += (size_t)snprintf(out + used, out_size - used, "%s%d to %d", before, first->rank,
                                     reading->processes[indices[end - 1]].rank);
        i = end;
    }
}

void job_process_group_text(const job_meeting *meeting, char *out, size_t out_size) {
    if (meeting->group[0] == '\0')
        snprintf(out, out_size, "a process group");
    else if (meeting->size > 0)
        snprintf(out, out_size, "process group %s (%u %s)", meeting->group, meeting->size,
                 meeting->size == 1 ? "rank" : "ranks");
    else
        snprintf(out, out_size, "process group %s", meeting->group);
}

/* Who is behind whom in a group whose collectives and messages are enqueued, as NCCL's are.
 *
 * The call of such a collective returns at once, so no wait says that a rank is in it; the host does not know when the device
 * is done. What it knows is how many each rank has begun. A rank that has begun more than another is ahead, which is the
 * ordinary course of things as long as anybody goes on: the meeting says when somebody last did, and who looks at it decides.
 */

/* The first process of the reading that has the group. */
static bool is_first_with(const job_reading *reading, size_t index, const char *group) {
    for (size_t i = 0; i < index; i++)
        if (reading->processes[i].live != NULL &&
            job_process_group_named(reading->processes[i].live, group) != NULL)
            return false;
    return true;
}

/* A process whose rank was started again no longer counts. */
static const live_process_group *group_at(const job_reading *reading, size_t index, const char *name) {
    const job_process *process = &reading->processes[index];
    const live_process_group *group =
        process->live != NULL ? job_process_group_named(process->live, name) : NULL;
    if (group == NULL || !job_process_is_gone(process) || process->rank < 0)
        return group;
    bool replaced = (index > 0 && reading->processes[index - 1].rank == process->rank) ||
                    (index + 1 < reading->count && reading->processes[index + 1].rank == process->rank);
    return replaced ? NULL : group;
}

/* A rank is inside the call: then its wait says more. */
static bool is_waited_for(const job_meetings *meetings, const char *group, uint64_t ordinal) {
    for (size_t i = 0; i < meetings->count; i++)
        if (meetings->rows[i].kind == LIVE_COLLECTIVE && meetings->rows[i].ordinal == ordinal &&
            strcmp(meetings->rows[i].group, group) == 0)
            return true;
    return false;
}

/* When the process last enqueued anything, on whatever group: one that is ahead in a group and goes on in others is not held
 * up. */
static uint64_t last_enqueue_ns(const live_file *live) {
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++)
        if (live->groups[i].used && live->groups[i].last_ns > last_ns)
            last_ns = live->groups[i].last_ns;
    return last_ns;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* What the ranks that are ahead call it, and since when the first of them has been there. */
static void describe(const job_reading *reading, job_meeting *meeting) {
    snprintf(meeting->what, sizeof meeting->what, "a collective");
    meeting->begin_ns = meeting->progress_ns;
    for (size_t i = 0; i < meeting->waiting_count; i++) {
        const live_process_group *group = group_at(reading, meeting->waiting[i], meeting->group);
        const live_recent *recent = &group->recent[meeting->ordinal % LIVE_RECENT_MAX];
        if (recent->ordinal != meeting->ordinal)
            continue;
        snprintf(meeting->what, sizeof meeting->what, "%s", recent->what);
        if (recent->begin_ns < meeting->begin_ns)
            meeting->begin_ns = recent->begin_ns;
    }
}

static bool add_collective(job_meetings *meetings, const job_reading *reading,
                           const live_process_group *named) {
    uint64_t least = UINT64_MAX, most = 0;
    job_meeting first = {.kind = LIVE_COLLECTIVE};
    snprintf(first.group, sizeof first.group, "%s", named->name);
    bool waiter_lives = false;
    for (size_t i = 0; i < reading->count; i++) {
        const live_process_group *group = group_at(reading, i, named->name);
        if (group == NULL)
            continue;
        least = group->entered < least ? group->entered : least;
        most = group->entered > most ? group->entered : most;
        first.progress_ns = later(first.progress_ns, group->last_ns);
        first.size = group->size > first.size ? group->size : first.size;
    }
    if (most <= least || is_waited_for(meetings, named->name, least + 1))
        return true;
    first.ordinal = least + 1;
    job_meeting *meeting = job_meeting_add(meetings, reading, &first);
    if (meeting == NULL)
        return false;
    for (size_t i = 0; i < reading->count; i++) {
        const live_process_group *group = group_at(reading, i, named->name);
        if (group == NULL)
            continue;
        if (group->entered == least) {
            job_meeting_add_rank(meeting->missing, &meeting->missing_count, i);
            continue;
        }
        job_meeting_add_rank(meeting->waiting, &meeting->waiting_count, i);
        waiter_lives |= !job_process_is_gone(&reading->processes[i]);
        meeting->progress_ns = later(meeting->progress_ns, last_enqueue_ns(reading->processes[i].live));
    }
    describe(reading, meeting);
    if (!waiter_lives)
        meeting->missing_count = 0; /* who could wait has ended */
    return true;
}

/* A message that one side has begun and the other has not: NCCL's end only when both have. */
static bool add_message(job_meetings *meetings, const job_reading *reading, size_t index,
                        const live_channel *channel) {
    const job_process *process = &reading->processes[index];
    const live_process_group *own = &process->live->groups[channel->group];
    size_t peer = job_process_group_process(reading, own->name, channel->peer);
    if (peer == SIZE_MAX || own->rank < 0 || own->name[0] == '\0')
        return true;
    const live_file *live = reading->processes[peer].live;
    const live_process_group *theirs = job_process_group_named(live, own->name);
    bool sends = channel->direction == LIVE_SENT, lost = false;
    uint64_t begun =
        job_messages_begun(live, theirs, sends ? LIVE_RECEIVED : LIVE_SENT, own->rank, channel->tag, &lost);
    if (begun >= channel->begun || lost)
        return true;
    job_meeting first = {.kind = LIVE_RECEIVE, .ordinal = begun + 1, .size = own->size};
    first.begin_ns = later(own->last_ns, theirs->last_ns);
    first.progress_ns = later(first.begin_ns, last_enqueue_ns(process->live));
    snprintf(first.group, sizeof first.group, "%s", own->name);
    snprintf(first.what, sizeof first.what, sends ? "send to rank %d" : "recv from rank %d", channel->peer);
    job_meeting *meeting = job_meeting_add(meetings, reading, &first);
    if (meeting == NULL)
        return false;
    job_meeting_add_rank(meeting->waiting, &meeting->waiting_count, index);
    job_meeting_add_rank(meeting->missing, &meeting->missing_count, peer);
    return true;
}

/* The parts of job_meetings_find. A new meeting has no ranks; NULL when memory is out. */
static bool job_meetings_add_enqueued(job_meetings *meetings, const job_reading *reading) {
    bool complete = true;
    for (size_t i = 0; i < reading->count && complete; i++) {
        const live_file *live = reading->processes[i].live;
        for (uint32_t g = 0; live != NULL && g < LIVE_PROCESS_GROUPS_MAX && complete; g++) {
            const live_process_group *group = &live->groups[g];
            if (group->used && group->enqueues && group->name[0] != '\0' &&
                is_first_with(reading, i, group->name))
                complete = add_collective(meetings, reading, group);
        }
        for (uint32_t c = 0; live != NULL && !job_process_is_gone(&reading->processes[i]) &&
                             c < LIVE_CHANNELS_MAX && complete;
             c++)
            if (live->channels[c].direction != 0 && live->groups[live->channels[c].group].enqueues)
                complete = add_message(meetings, reading, i, &live->channels[c]);
    }
    return complete;
}

/* Who waits for a device that does nothing any more.
 *
 * A process that waits for its device may wait for another rank, which has not enqueued its part: then that rank is named, not
 * the device. Where nobody is behind, and on no device of those that work together anything has been seen to be done, the
 * devices themselves hang. */

static bool is_seen(const job_process *process) {
    return process->live != NULL && !job_process_is_gone(process);
}

/* They enqueue on a group that both have. */
static bool share_a_group(const job_reading *reading, size_t a, size_t b) {
    const live_file *live = reading->processes[a].live;
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX && a != b; i++) {
        const live_process_group *group = &live->groups[i];
        if (group->used && group->enqueues && group->name[0] != '\0' &&
            job_process_group_named(reading->processes[b].live, group->name) != NULL)
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

/* Adds one meeting, after all others: of the processes that wait for devices without progress since before_ns. */
static bool job_meetings_add_devices(job_meetings *meetings, const job_reading *reading, uint64_t before_ns) {
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
static const live_recent *last_collective(const live_file *live, const live_process_group **on) {
    const live_recent *last = NULL;
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++) {
        const live_process_group *group = &live->groups[i];
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
    const live_process_group *on = NULL;
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
    job_process_group_text(&of, group, sizeof group);
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
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++)
        if (live->groups[i].used && live->groups[i].enqueues && live->groups[i].size > out->size)
            out->size = live->groups[i].size;
    out->unseen = seen < out->size;
}
