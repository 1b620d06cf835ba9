/* Who is behind whom in a group whose collectives and messages are enqueued, as NCCL's are.
 *
 * The call of such a collective returns at once, so no wait says that a rank is in it; the host does not know when the device
 * is done. What it knows is how many each rank has begun. A rank that has begun more than another is ahead, which is the
 * ordinary course of things as long as anybody goes on: the meeting says when somebody last did, and who looks at it decides.
 */
#include <stdio.h>
#include <string.h>
#include "reading.h"

/* The first process of the reading that has the group. */
static bool is_first_with(const job_reading *reading, size_t index, const char *group) {
    for (size_t i = 0; i < index; i++)
        if (reading->processes[i].live != NULL && job_group_named(reading->processes[i].live, group) != NULL)
            return false;
    return true;
}

/* A process whose rank was started again no longer counts. */
static const live_group *group_at(const job_reading *reading, size_t index, const char *name) {
    const job_process *process = &reading->processes[index];
    const live_group *group = process->live != NULL ? job_group_named(process->live, name) : NULL;
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
    for (uint32_t i = 0; i < LIVE_GROUPS_MAX; i++)
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
        const live_group *group = group_at(reading, meeting->waiting[i], meeting->group);
        const live_recent *recent = &group->recent[meeting->ordinal % LIVE_RECENT_MAX];
        if (recent->ordinal != meeting->ordinal)
            continue;
        snprintf(meeting->what, sizeof meeting->what, "%s", recent->what);
        if (recent->begin_ns < meeting->begin_ns)
            meeting->begin_ns = recent->begin_ns;
    }
}

static bool add_collective(job_meetings *meetings, const job_reading *reading, const live_group *named) {
    uint64_t least = UINT64_MAX, most = 0;
    job_meeting first = {.kind = LIVE_COLLECTIVE};
    snprintf(first.group, sizeof first.group, "%s", named->name);
    bool waiter_lives = false;
    for (size_t i = 0; i < reading->count; i++) {
        const live_group *group = group_at(reading, i, named->name);
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
        const live_group *group = group_at(reading, i, named->name);
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
    const live_group *own = &process->live->groups[channel->group];
    size_t peer = job_group_process(reading, own->name, channel->peer);
    if (peer == SIZE_MAX || own->rank < 0 || own->name[0] == '\0')
        return true;
    const live_file *live = reading->processes[peer].live;
    const live_group *theirs = job_group_named(live, own->name);
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

bool job_meetings_add_enqueued(job_meetings *meetings, const job_reading *reading) {
    bool complete = true;
    for (size_t i = 0; i < reading->count && complete; i++) {
        const live_file *live = reading->processes[i].live;
        for (uint32_t g = 0; live != NULL && g < LIVE_GROUPS_MAX && complete; g++) {
            const live_group *group = &live->groups[g];
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
