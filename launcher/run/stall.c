#include "stall.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "launcher/common/live_read.h"
#include "launcher/job/reading.h"

/* The Python stack of a process that others wait for: requested through its live file, and written by a thread of that process
 * to a text file of the log directory (interpose/trace/live.h). */
typedef struct run_stack {
    uint64_t uid;
    uint32_t number;    /* of the request */
    bool asked;         /* false: the process cannot answer */
    uint64_t old_bytes; /* of its file, before */
} run_stack;

#define LINES_MAX  16 /* innermost ones */
#define TEXT_BYTES 65536

enum { PATH_BYTES = PATH_MAX + 160 };

static void path_of(char out[PATH_BYTES], const char *directory, const job_process *process,
                    const char *suffix) {
    log_format(out, PATH_BYTES, "%s/%s%s", directory, process->name, suffix);
}

static const job_process *process_of(const run_stack *stack, const job_reading *reading) {
    for (size_t i = 0; i < reading->count; i++)
        if (reading->processes[i].uid == stack->uid)
            return &reading->processes[i];
    return NULL;
}

static void run_stack_ask(run_stack *stack, const job_process *process, const char *directory) {
    char path[PATH_BYTES];
    struct stat status;
    *stack = (run_stack){.uid = process->uid};
    if (process->state != JOB_RUNNING || process->live == NULL || !process->live->stack_able)
        return;
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    stack->old_bytes = stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
    stack->number = process->live->stack_wanted + 1;
    path_of(path, directory, process, LIVE_SUFFIX);
    stack->asked = live_ask_stack(path, stack->number);
}

static bool run_stack_arrived(const run_stack *stack, const job_reading *reading) {
    const job_process *process = process_of(stack, reading);
    return !stack->asked || process == NULL || process->live == NULL ||
           process->live->stack_given == stack->number;
}

/* The part of the file that was written since the question; the caller frees it. */
static char *read_answer(const run_stack *stack, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    char *text = fd < 0 ? NULL : malloc(TEXT_BYTES);
    size_t used = 0;
    while (text != NULL && used + 1 < TEXT_BYTES) {
        ssize_t part = pread(fd, text + used, TEXT_BYTES - 1 - used, (off_t)(stack->old_bytes + used));
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            break;
        used += (size_t)part;
    }
    if (fd >= 0)
        close(fd);
    if (text != NULL)
        text[used] = '\0';
    return text;
}

/* The answer's lines: one about the process, then per thread its name and indented lines, the main thread first. */
static bool tell_main_thread(char *text) {
    char *lines[LINES_MAX];
    size_t count = 0, threads = 0;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && threads < 3;) {
        if (line[0] != ' ')
            threads += line[0] != '\0'; /* the process, the main thread, the next thread */
        else if (threads == 2)
            lines[count++ % LINES_MAX] = line;
    }
    if (count > LINES_MAX)
        LOG_W("  ... (%zu lines further out)", count - LINES_MAX);
    for (size_t i = count > LINES_MAX ? count - LINES_MAX : 0; i < count; i++)
        LOG_W("%s", lines[i % LINES_MAX]);
    return count > 0;
}

/* Of packages, of Python and of Castor: not of the script. */
static bool is_of_a_library(const char *line) {
    return strstr(line, "/lib/python") != NULL || strstr(line, "/dist-packages/") != NULL ||
           strstr(line, "/lib/castor/") != NULL;
}

/* "train.py, line 15": the innermost line of the script's own in the main thread. False: it is not known. */
static bool run_stack_place(const run_stack *stack, const job_reading *reading, const char *directory,
                            char *out, size_t out_size) {
    const job_process *process = process_of(stack, reading);
    if (process == NULL || !stack->asked || !run_stack_arrived(stack, reading))
        return false;
    char path[PATH_BYTES];
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    char *text = read_answer(stack, path), *rest = text, *file, *end;
    size_t threads = 0;
    bool found = false;
    for (char *line; rest != NULL && (line = strsep(&rest, "\n")) != NULL && threads < 3;) {
        threads += line[0] != ' ' && line[0] != '\0'; /* the process, the main thread, the next thread */
        if (threads != 2 || strncmp(line, "  File \"", 8) != 0 || is_of_a_library(line) ||
            (end = strstr(line + 8, "\", line ")) == NULL)
            continue;
        *end = '\0';
        file = strrchr(line + 8, '/') != NULL ? strrchr(line + 8, '/') + 1 : line + 8;
        found = log_format(out, out_size, "%.128s, line %d", file, atoi(end + 8)) > 0;
    }
    free(text);
    return found;
}

/* Logs the process's place in the script, as far as it is known. */
static void run_stack_tell(const run_stack *stack, const job_reading *reading, const char *directory) {
    const job_process *process = process_of(stack, reading);
    if (process == NULL)
        return;
    char who[64], path[PATH_BYTES];
    if (process->rank >= 0)
        log_format(who, sizeof who, "rank %d (process %u)", process->rank, process->pid);
    else
        log_format(who, sizeof who, "process %u", process->pid);
    if (process->state == JOB_EXITED || process->state == JOB_DIED) {
        LOG_W("%s has ended; see its own messages", who);
        return;
    }
    if (process->state == JOB_STOPPED) {
        LOG_W("%s is stopped by a signal; kill -CONT %u lets it go on", who, process->pid);
        return;
    }
    if (!stack->asked || !run_stack_arrived(stack, reading)) {
        LOG_W("%s runs, and does not tell its Python stack%s", who,
              stack->asked ? ": it holds Python's interpreter, inside C code" : "");
        return;
    }
    path_of(path, directory, process, LIVE_STACK_SUFFIX);
    char *text = read_answer(stack, path);
    LOG_W("%s is here, innermost last (all its threads: %s):", who, path);
    if (text == NULL || !tell_main_thread(text))
        LOG_W("  (it could not write its stack)");
    free(text);
}

#define PERIOD_MAX_NS UINT64_C(1000000000)
#define PERIOD_MIN_NS UINT64_C(50000000)
#define LATE_FACTOR   5 /* a check that comes so many periods late: castor, and probably all, stood still */
#define ANSWER_NS     UINT64_C(3000000000)
#define SHOWN_MAX     8 /* stacks of one stall */

typedef enum stall_state {
    STALL_SEEN,  /* once: what was read may be parts of two waits */
    STALL_ASKED, /* the missing ranks were asked for their stacks */
    STALL_TOLD
} stall_state;

struct stall {
    live_kind kind;
    char what[LIVE_WHAT_MAX], group[LIVE_NAME_MAX];
    uint64_t ordinal, begin_ns, waiter_uid; /* waiter: one of the processes that wait */
    stall_state state;
    bool present; /* in the present reading */
    uint64_t asked_ns;
    run_stack stacks[SHOWN_MAX];
    size_t stack_count;
    char title[RUN_STALL_TITLE_MAX]; /* "allreduce 11 of process group 0 (2 ranks)" */
};

void run_stall_start(run_stall *watch, const char *directory, double limit_seconds) {
    *watch = (run_stall){.directory = directory, .limit_ns = (uint64_t)(limit_seconds * 1e9)};
    watch->period_ns = watch->limit_ns / 4;
    if (watch->period_ns > PERIOD_MAX_NS)
        watch->period_ns = PERIOD_MAX_NS;
    if (watch->period_ns < PERIOD_MIN_NS)
        watch->period_ns = PERIOD_MIN_NS;
    watch->last_ns = watch->awake_ns = clock_ns(CLOCK_MONOTONIC);
}

int64_t run_stall_wait_ms(const run_stall *watch) {
    if (watch->limit_ns == 0)
        return -1;
    uint64_t now = clock_ns(CLOCK_MONOTONIC), due = watch->last_ns + watch->period_ns;
    return due > now ? (int64_t)((due - now) / 1000000u) + 1 : 0;
}

/* ---- what is told ---- */

static void seconds_text(char out[32], uint64_t ns) {
    if (ns < UINT64_C(10000000000))
        log_format(out, 32, "%.1f s", (double)ns / 1e9);
    else
        log_format(out, 32, "%llu s", (unsigned long long)(ns / 1000000000u));
}

static void title_write(stall *s, const job_reading *reading, const job_meeting *meeting) {
    char group[192];
    job_process_group_text(meeting, group, sizeof group);
    if (meeting->kind == LIVE_DEVICE) {
        job_devices_text(reading, meeting, group, sizeof group);
        log_format(s->title, sizeof s->title, "the wait for %s", group);
    } else if (meeting->kind == LIVE_COLLECTIVE || meeting->group[0] != '\0')
        log_format(s->title, sizeof s->title, "%s, number %llu of %s", meeting->what,
                   (unsigned long long)meeting->ordinal, group);
    else
        log_format(s->title, sizeof s->title, "%s", meeting->what);
}

/* "rank", or "ranks". */
static const char *ranks_word(size_t count) {
    return count == 1 ? "rank" : "ranks";
}

static const char *wait_words(const job_meeting *meeting) {
    bool one = meeting->waiting_count == 1;
    if (meeting->progress_ns != 0)
        return one ? "has enqueued it and waits" : "have enqueued it and wait";
    return one ? "waits" : "wait";
}

/* Of a device: two lines. */
static void tell_devices(const run_stall *watch, stall *s, const job_reading *reading,
                         const job_meeting *meeting) {
    char who[256], others[256], devices[128], spent[32], place[192] = "", rest[320] = "", enqueued[320];
    job_device_peers together;
    job_device_peers_find(reading, meeting, &together);
    job_ranks_text(reading, meeting->waiting, meeting->waiting_count, who, sizeof who);
    job_ranks_text(reading, together.others, together.others_count, others, sizeof others);
    job_devices_text(reading, meeting, devices, sizeof devices);
    job_enqueued_text(&reading->processes[meeting->waiting[0]], enqueued, sizeof enqueued);
    seconds_text(spent, reading->now_ns - meeting->begin_ns);
    if (together.size > 1)
        log_format(rest, sizeof rest,
                   together.others_count > 0 ? ", and no rank%s is behind (%s %s %s not in such a wait)"
                                             : ", and no rank%s is behind",
                   together.unseen ? " of this machine" : "", ranks_word(together.others_count), others,
                   together.others_count == 1 ? "is" : "are");
    bool known =
        s->stack_count > 0 && run_stack_place(&s->stacks[0], reading, watch->directory, place, sizeof place);
    LOG_W("no progress for %s on %s: %s %s %s in %s%s%s%s; last enqueued: %s", spent, devices,
          ranks_word(meeting->waiting_count), who, wait_words(meeting), meeting->what, known ? ", at " : "",
          place, rest, enqueued);
    LOG_W(
        "a device or a link hangs, or is busy for longer than CASTOR_STALL_SECONDS: see nvidia-smi and dmesg "
        "(Xid), then end the job and start it again; Python stacks: %s/*" LIVE_STACK_SUFFIX,
        watch->directory);
    s->state = STALL_TOLD;
}

static void tell(const run_stall *watch, stall *s, const job_reading *reading, const job_meeting *meeting) {
    if (meeting->kind == LIVE_DEVICE) {
        tell_devices(watch, s, reading, meeting);
        return;
    }
    char waiting[256], missing[256], spent[32], unseen[96] = "", instead[192] = "";
    job_ranks_text(reading, meeting->waiting, meeting->waiting_count, waiting, sizeof waiting);
    job_ranks_text(reading, meeting->missing, meeting->missing_count, missing, sizeof missing);
    seconds_text(spent,
                 reading->now_ns - (meeting->progress_ns != 0 ? meeting->progress_ns : meeting->begin_ns));
    if (meeting->unseen > 0)
        log_format(unseen, sizeof unseen, "%s%u %s of other machines",
                   meeting->missing_count ? " or for " : "", meeting->unseen, ranks_word(meeting->unseen));
    if (meeting->other != NULL)
        log_format(instead, sizeof instead, ", in %s instead: all ranks must make the same calls",
                   meeting->other);
    for (size_t i = 0; i < meeting->missing_count && instead[0] == '\0'; i++) {
        const job_process *process = &reading->processes[meeting->missing[i]];
        uint64_t since_ns = job_device_idle_ns(reading, meeting->missing[i]);
        if (since_ns >= reading->now_ns - watch->limit_ns)
            continue;
        char who[64], idle[32];
        job_ranks_text(reading, &meeting->missing[i], 1, who, sizeof who);
        seconds_text(idle, reading->now_ns - since_ns);
        log_format(instead, sizeof instead, "; rank %s waits for device %d in %s, for %s", who,
                   process->live->device.device, process->live->device.call, idle);
    }
    LOG_W("no progress for %s in %s: %s %s %s for %s%s%s%s%s", spent, s->title,
          ranks_word(meeting->waiting_count), waiting, wait_words(meeting),
          meeting->missing_count ? ranks_word(meeting->missing_count) : "", meeting->missing_count ? " " : "",
          missing, unseen, instead);
    for (size_t i = 0; i < s->stack_count; i++)
        run_stack_tell(&s->stacks[i], reading, watch->directory);
    s->state = STALL_TOLD;
}

static void tell_end(const stall *s, uint64_t now, bool solved) {
    char spent[32];
    seconds_text(spent, now - s->begin_ns);
    if (solved)
        LOG_W("solved after %s: %s", spent, s->title);
    else
        LOG_W("the ranks ended without progress in %s, %s after the first rank came", s->title, spent);
}

/* ---- the course of a stall ---- */

static void ask(const run_stall *watch, stall *s, const job_reading *reading, const job_meeting *meeting) {
    bool device = meeting->kind == LIVE_DEVICE;
    const size_t *asked = device ? meeting->waiting : meeting->missing;
    size_t count = device ? meeting->waiting_count : meeting->missing_count;
    s->stack_count = 0;
    for (size_t i = 0; i < count && s->stack_count < SHOWN_MAX; i++)
        run_stack_ask(&s->stacks[s->stack_count++], &reading->processes[asked[i]], watch->directory);
    s->asked_ns = reading->now_ns;
    s->state = STALL_ASKED;
}

static bool has_answers(const stall *s, const job_reading *reading) {
    for (size_t i = 0; i < s->stack_count; i++)
        if (!run_stack_arrived(&s->stacks[i], reading))
            return false;
    return true;
}

static stall *stall_find(const run_stall *watch, const job_reading *reading, const job_meeting *meeting) {
    for (size_t i = 0; i < watch->count; i++) {
        stall *s = &watch->stalls[i];
        if (s->kind == meeting->kind && s->ordinal == meeting->ordinal &&
            (s->kind == LIVE_DEVICE || strcmp(s->what, meeting->what) == 0) &&
            strcmp(s->group, meeting->group) == 0 &&
            (s->kind == LIVE_COLLECTIVE || s->kind == LIVE_DEVICE ||
             (s->waiter_uid == reading->processes[meeting->waiting[0]].uid &&
              (s->begin_ns == meeting->begin_ns || meeting->progress_ns != 0))))
            return s;
    }
    return NULL;
}

/* The stall that the meeting is; NULL: it is seen for the first time. */
static stall *stall_of(run_stall *watch, const job_reading *reading, const job_meeting *meeting) {
    stall *known = stall_find(watch, reading, meeting);
    if (known != NULL)
        return known;
    stall *stalls = realloc(watch->stalls, (watch->count + 1) * sizeof *stalls);
    if (stalls == NULL)
        return NULL;
    watch->stalls = stalls;
    stall *s = &stalls[watch->count++];
    *s = (stall){.kind = meeting->kind, .ordinal = meeting->ordinal, .begin_ns = meeting->begin_ns};
    s->waiter_uid = reading->processes[meeting->waiting[0]].uid;
    memcpy(s->what, meeting->what, sizeof s->what);
    memcpy(s->group, meeting->group, sizeof s->group);
    title_write(s, reading, meeting);
    return NULL; /* seen for the first time */
}

static void advance(run_stall *watch, const job_reading *reading, const job_meeting *meeting) {
    size_t before = watch->count;
    bool goes_on = meeting->held || meeting->progress_ns > reading->now_ns - watch->limit_ns;
    if (goes_on) { /* no stall; but one that was told is not solved because those who are ahead went further */
        stall *told = stall_find(watch, reading, meeting);
        if (told != NULL)
            told->present = true;
        return;
    }
    stall *s = stall_of(watch, reading, meeting);
    if (s == NULL) {
        if (watch->count > before)
            watch->stalls[before].present = true;
        return;
    }
    s->present = true;
    if (s->state == STALL_SEEN)
        ask(watch, s, reading, meeting);
    else if (s->state == STALL_ASKED &&
             (has_answers(s, reading) || reading->now_ns - s->asked_ns > ANSWER_NS))
        tell(watch, s, reading, meeting);
}

/* A wait also ends with its process. */
static bool waiter_is_gone(const stall *s, const job_reading *reading) {
    for (size_t i = 0; i < reading->count; i++)
        if (reading->processes[i].uid == s->waiter_uid)
            return reading->processes[i].state == JOB_EXITED || reading->processes[i].state == JOB_DIED;
    return true;
}

static void drop_solved(run_stall *watch, const job_reading *reading, uint64_t now) {
    size_t kept = 0;
    for (size_t i = 0; i < watch->count; i++) {
        stall *s = &watch->stalls[i];
        if (s->present)
            watch->stalls[kept++] = *s;
        else if (s->state == STALL_TOLD)
            tell_end(s, now, !waiter_is_gone(s, reading));
    }
    watch->count = kept;
}

void run_stall_check(run_stall *watch) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    if (watch->limit_ns == 0 || now < watch->last_ns + watch->period_ns)
        return;
    /* Ctrl-Z stops the ranks with castor: what they waited meanwhile is no stall. */
    if (now > watch->last_ns + LATE_FACTOR * watch->period_ns + PERIOD_MAX_NS)
        watch->awake_ns = now;
    watch->last_ns = now;
    if (now < watch->awake_ns + watch->limit_ns)
        return;
    job_reading reading;
    job_meetings meetings = {0};
    if (job_reading_take(watch->directory, JOB_LOOK_LIVE, &reading) &&
        job_meetings_find(&reading, reading.now_ns - watch->limit_ns, &meetings)) {
        for (size_t i = 0; i < watch->count; i++)
            watch->stalls[i].present = false;
        for (size_t i = 0; i < meetings.count; i++)
            if (meetings.rows[i].missing_count > 0 || meetings.rows[i].unseen > 0 ||
                meetings.rows[i].kind == LIVE_DEVICE)
                advance(watch, &reading, &meetings.rows[i]);
        drop_solved(watch, &reading, now);
    }
    job_meetings_free(&meetings);
    job_reading_free(&reading);
}

uint64_t run_stall_longest_ns(const run_stall *watch, char title[RUN_STALL_TITLE_MAX]) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), longest = 0;
    for (size_t i = 0; i < watch->count; i++) {
        const stall *s = &watch->stalls[i];
        if (s->state != STALL_TOLD || now - s->begin_ns <= longest)
            continue;
        longest = now - s->begin_ns;
        memcpy(title, s->title, RUN_STALL_TITLE_MAX);
    }
    return longest;
}

void run_stall_end(run_stall *watch) {
    for (size_t i = 0; i < watch->count; i++)
        if (watch->stalls[i].state == STALL_TOLD)
            tell_end(&watch->stalls[i], clock_ns(CLOCK_MONOTONIC), false);
    free(watch->stalls);
    watch->stalls = NULL;
    watch->count = 0;
    watch->limit_ns = 0;
}
