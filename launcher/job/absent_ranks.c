#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reading.h"

const live_group *job_group_named(const live_file *live, const char *name) {
    for (uint32_t i = 0; i < LIVE_GROUPS_MAX; i++)
        if (live->groups[i].used && strcmp(live->groups[i].name, name) == 0)
            return &live->groups[i];
    return NULL;
}

static bool is_member(const live_group *group, int rank) {
    return rank >= 0 && (uint32_t)rank < LIVE_MEMBER_WORDS * 64 &&
           (group->members[rank / 64] >> (rank % 64) & 1);
}

job_meeting *job_meeting_add(job_meetings *meetings, const job_reading *reading, const job_meeting *first) {
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

void job_meeting_add_rank(size_t *indices, size_t *count, size_t index) {
    for (size_t i = 0; i < *count; i++)
        if (indices[i] == index)
            return;
    indices[(*count)++] = index;
}

size_t job_group_process(const job_reading *reading, const char *group, int rank) {
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < reading->count; i++) {
        const job_process *process = &reading->processes[i];
        const live_group *own = process->live != NULL ? job_group_named(process->live, group) : NULL;
        /* Of several, one was started again: the one that is there counts. */
        if (own != NULL && own->rank == rank && (found == SIZE_MAX || !job_process_is_gone(process)))
            found = i;
    }
    return found;
}

uint64_t job_messages_begun(const live_file *live, const live_group *group, live_direction direction,
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
                        const live_group *own) {
    size_t peer = job_group_process(reading, own->name, wait->peer);
    if (peer == SIZE_MAX)
        return;
    const live_file *live = reading->processes[peer].live;
    bool lost = false;
    uint64_t sent =
        job_messages_begun(live, job_group_named(live, own->name), LIVE_SENT, own->rank, wait->tag, &lost);
    if (sent < wait->ordinal && !lost)
        job_meeting_add_rank(meeting->missing, &meeting->missing_count, peer);
}

static bool add_wait(job_meetings *meetings, const job_reading *reading, size_t index,
                     const live_wait *wait) {
    const live_file *live = reading->processes[index].live;
    const char *group = wait->group == LIVE_GROUP_UNKNOWN ? "" : live->groups[wait->group].name;
    job_meeting *meeting = meeting_of(meetings, reading, wait, group);
    if (meeting == NULL)
        return false;
    job_meeting_add_rank(meeting->waiting, &meeting->waiting_count, index);
    if (wait->begin_ns < meeting->begin_ns)
        meeting->begin_ns = wait->begin_ns;
    if (wait->group != LIVE_GROUP_UNKNOWN)
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
            wait->group != LIVE_GROUP_UNKNOWN &&
            strcmp(process->live->groups[wait->group].name, meeting->group) == 0)
            return wait->what;
    }
    return NULL;
}

/* Of a collective: the processes of the group that have not begun it. A rank whose process was started again counts by
 * the one that is there. */
static void find_missing(const job_reading *reading, job_meeting *meeting) {
    const live_group *own = job_group_named(reading->processes[meeting->waiting[0]].live, meeting->group);
    uint32_t seen = 0;
    for (size_t i = 0; i < reading->count && own != NULL; i++) {
        const job_process *process = &reading->processes[i];
        const live_group *group =
            process->live != NULL ? job_group_named(process->live, meeting->group) : NULL;
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

void job_group_text(const job_meeting *meeting, char *out, size_t out_size) {
    if (meeting->group[0] == '\0')
        snprintf(out, out_size, "a process group");
    else if (meeting->size > 0)
        snprintf(out, out_size, "process group %s (%u %s)", meeting->group, meeting->size,
                 meeting->size == 1 ? "rank" : "ranks");
    else
        snprintf(out, out_size, "process group %s", meeting->group);
}
