#include "first_failure.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Launchers kill what does not end by itself no earlier than this after a failure. */
#define KILLED_AFTER_NS UINT64_C(2000000000)
/* They notice a failure no earlier than this. Signals that somebody sends to all ranks come closer to each other. */
#define NOTICED_AFTER_NS UINT64_C(50000000)

const char *const job_end_kind_names[JOB_END_KIND_COUNT] = {
    [JOB_END_RUNNING] = "running",       [JOB_END_FINISHED] = "finished",
    [JOB_END_STATUS] = "status",         [JOB_END_EXCEPTION] = "exception",
    [JOB_END_SIGNAL] = "signal",         [JOB_END_MEMORY] = "memory",
    [JOB_END_OTHER_RANK] = "other_rank", [JOB_END_INTERRUPTED] = "interrupted",
    [JOB_END_TERMINATED] = "terminated", [JOB_END_UNKNOWN] = "unknown",
};

/* ---- the notes ---- */

static bool parse(const char *line, job_note *out) {
    unsigned long long time, number;
    char word[ENDS_WORD_MAX];
    int pid, read = 0;
    if (sscanf(line, "%llu %d %15s %llu%n", &time, &pid, word, &number, &read) != 4 || line[read] != '\0')
        return false;
    for (int event = 0; event < ENDS_EVENT_COUNT; event++)
        if (strcmp(ends_words[event], word) == 0) {
            *out = (job_note){time, number, pid, event};
            return true;
        }
    return false;
}

bool job_notes_read(int directory, job_notes *out) {
    struct stat info;
    *out = (job_notes){0};
    int file = openat(directory, ENDS_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return true;
    bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    char *text = malloc(ENDS_BYTES_MAX + 1);
    out->rows = malloc(JOB_NOTES_MAX * sizeof *out->rows);
    ssize_t length = regular && text ? pread(file, text, ENDS_BYTES_MAX, 0) : 0;
    close(file);
    bool complete = text != NULL && out->rows != NULL;
    char *rest = NULL;
    if (complete) {
        text[length > 0 ? length : 0] = '\0';
        for (char *line = strtok_r(text, "\n", &rest); line && out->count < JOB_NOTES_MAX;
             line = strtok_r(NULL, "\n", &rest))
            out->count += parse(line, &out->rows[out->count]);
    }
    free(text);
    return complete;
}

void job_notes_free(job_notes *notes) {
    free(notes->rows);
    *notes = (job_notes){0};
}

const job_note *job_notes_find(const job_notes *notes, ends_event event, int pid, uint64_t since_ns) {
    for (size_t i = 0; i < notes->count; i++) {
        const job_note *note = &notes->rows[i];
        if (note->event == event && (pid == 0 || note->pid == pid) && note->realtime_ns >= since_ns)
            return note;
    }
    return NULL;
}

static uint64_t last_number(const job_notes *notes, ends_event event) {
    uint64_t number = 0;
    for (size_t i = 0; i < notes->count; i++)
        if (notes->rows[i].event == event)
            number = notes->rows[i].number;
    return number;
}

/* ---- one rank alone ---- */

/* An exception that made the process exit, or that was on its way when a signal ended it. */
static const trace_exception *exception_of(const trace_counters *counters, const job_end *end) {
    return counters->exception.realtime_ns != 0 && end->status != 0 ? &counters->exception : NULL;
}

static job_end end_of(const job_notes *notes, const job_ended *rank) {
    const trace_counters *counters = rank->counters;
    job_end end = {.kind = JOB_END_UNKNOWN, .status = -1, .by_rank = -1};
    const job_note *signal =
        job_notes_find(notes, ENDS_SIGNAL, (int)counters->pid, counters->start_realtime_ns);
    const job_note *status =
        job_notes_find(notes, ENDS_STATUS, (int)counters->pid, counters->start_realtime_ns);
    /* A process that exits may still crash: its parent saw what came last. */
    if (signal != NULL && signal->number > 0 && signal->number < NSIG) {
        end.kind = JOB_END_SIGNAL;
        end.signal = (int)signal->number;
        end.realtime_ns = signal->realtime_ns;
    } else if (counters->exit_state == TRACE_PROCESS_EXITED) {
        end.status = counters->exit_status & 0xff;
        end.realtime_ns = counters->exit_realtime_ns;
    } else if (status != NULL) {
        end.status = (int)(status->number & 0xff);
        end.realtime_ns = status->realtime_ns;
    } else if (rank->runs) {
        end.kind = JOB_END_RUNNING;
        return end;
    } else {
        end.realtime_ns = counters->start_realtime_ns;
        if (counters->last_monotonic_ns > counters->start_monotonic_ns)
            end.realtime_ns += counters->last_monotonic_ns - counters->start_monotonic_ns;
    }
    if (end.status >= 0)
        end.kind = end.status == 0 ? JOB_END_FINISHED : JOB_END_STATUS;
    end.exception = exception_of(counters, &end);
    if (end.exception != NULL) {
        end.kind =
            strcmp(end.exception->type, "KeyboardInterrupt") == 0 ? JOB_END_INTERRUPTED : JOB_END_EXCEPTION;
        end.realtime_ns = end.exception->realtime_ns;
    } else if (end.signal == SIGINT)
        end.kind = JOB_END_INTERRUPTED;
    return end;
}

/* ---- what came of what ---- */

/* Its exception says that another rank's failure made it. */
static bool is_effect(const job_end *end) {
    return end->kind == JOB_END_EXCEPTION && end->exception->by_other;
}

/* SIGTERM and SIGKILL are how launchers end ranks. */
static bool is_ending(const job_end *end) {
    return end->kind == JOB_END_SIGNAL && (end->signal == SIGTERM || end->signal == SIGKILL);
}

static bool has_failed(const job_end *end) {
    return end->kind != JOB_END_RUNNING && end->kind != JOB_END_FINISHED && end->kind != JOB_END_OTHER_RANK;
}

/* The earliest cause; `certain`: of those that no launcher may have made. */
static size_t first_cause(const job_end *ends, size_t count, bool certain) {
    size_t first = JOB_NO_FAILURE;
    for (size_t i = 0; i < count; i++) {
        bool candidate = has_failed(&ends[i]) && !is_effect(&ends[i]) && !(certain && is_ending(&ends[i]));
        if (candidate && (first == JOB_NO_FAILURE || ends[i].realtime_ns < ends[first].realtime_ns))
            first = i;
    }
    return first;
}

/* As many as the kernel has counted, the earliest first. */
static void find_killed_for_memory(const job_notes *notes, job_end *ends, size_t count) {
    uint64_t by_cgroup = last_number(notes, ENDS_KILLED_CGROUP);
    uint64_t kills = by_cgroup + last_number(notes, ENDS_KILLED);
    for (; kills > 0; kills--) {
        size_t next = JOB_NO_FAILURE;
        for (size_t i = 0; i < count; i++)
            if (ends[i].kind == JOB_END_SIGNAL && ends[i].signal == SIGKILL &&
                (next == JOB_NO_FAILURE || ends[i].realtime_ns < ends[next].realtime_ns))
                next = i;
        if (next == JOB_NO_FAILURE)
            return;
        ends[next].kind = JOB_END_MEMORY;
        ends[next].by_cgroup = by_cgroup > 0;
    }
}

/* After castor was told to end, ranks end by signals and statuses of all kinds. */
static void find_told(const job_note *told, job_end *ends, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bool ended = ends[i].kind == JOB_END_STATUS || ends[i].kind == JOB_END_SIGNAL;
        if (ended && ends[i].realtime_ns >= told->realtime_ns)
            ends[i].kind = told->number == SIGINT ? JOB_END_INTERRUPTED : JOB_END_TERMINATED;
    }
}

static void find_ended_by_others(const job_ended *ranks, job_end *ends, size_t count) {
    size_t first = first_cause(ends, count, true);
    uint64_t least_ns = 0;
    if (first == JOB_NO_FAILURE) { /* the first of those that a signal ended: no launcher had a reason then */
        first = first_cause(ends, count, false);
        least_ns = NOTICED_AFTER_NS;
    }
    for (size_t i = 0; i < count && first != JOB_NO_FAILURE; i++) {
        uint64_t after_ns = ends[i].signal == SIGKILL ? KILLED_AFTER_NS : least_ns;
        if (i != first && is_ending(&ends[i]) && ends[i].realtime_ns >= ends[first].realtime_ns + after_ns) {
            ends[i].kind = JOB_END_OTHER_RANK;
            ends[i].by_rank = ranks[first].rank;
        }
    }
    first = first_cause(ends, count, false);
    for (size_t i = 0; i < count && first != JOB_NO_FAILURE; i++)
        if (is_effect(&ends[i])) {
            ends[i].kind = JOB_END_OTHER_RANK;
            ends[i].by_rank = ranks[first].rank;
        }
}

/* Told to end before all failures: those are what came of it. */
static const job_note *told_first(const job_notes *notes, const job_end *first) {
    const job_note *told = job_notes_find(notes, ENDS_TOLD, 0, 0);
    return told != NULL && told->realtime_ns <= first->realtime_ns ? told : NULL;
}

size_t job_ends_find(const job_notes *notes, const job_ended *ranks, size_t count, job_end *ends) {
    for (size_t i = 0; i < count; i++)
        ends[i] = end_of(notes, &ranks[i]);
    find_killed_for_memory(notes, ends, count);
    const job_note *told = job_notes_find(notes, ENDS_TOLD, 0, 0);
    if (told != NULL)
        find_told(told, ends, count);
    find_ended_by_others(ranks, ends, count);
    size_t first = first_cause(ends, count, false);
    for (size_t i = 0; i < count && first == JOB_NO_FAILURE;
         i++) /* a rank finished while others waited for it */
        if (is_effect(&ends[i]))
            first = i;
    for (size_t i = 0; i < count && first != JOB_NO_FAILURE; i++)
        if (is_effect(&ends[i]) && is_effect(&ends[first]) && ends[i].realtime_ns < ends[first].realtime_ns)
            first = i;
    return first;
}

/* ---- words ---- */

const char *job_signal_name(int number, char fallback[24]) {
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
        {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
        {SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},
        {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"},
        {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number)
            return names[i].name;
    snprintf(fallback, 24, "signal %d", number);
    return fallback;
}

void job_ended_name(int rank, uint32_t pid, char out[32]) {
    if (rank >= 0)
        snprintf(out, 32, "rank %d", rank);
    else
        snprintf(out, 32, "process %u", pid);
}

void job_end_word(const job_end *end, char out[JOB_END_TEXT_MAX]) {
    char fallback[24];
    switch (end->kind) {
    case JOB_END_STATUS:
        snprintf(out, JOB_END_TEXT_MAX, "status %d", end->status);
        return;
    case JOB_END_EXCEPTION:
        snprintf(out, JOB_END_TEXT_MAX, "%s", end->exception->type);
        return;
    case JOB_END_SIGNAL:
        snprintf(out, JOB_END_TEXT_MAX, "%s", job_signal_name(end->signal, fallback));
        return;
    case JOB_END_MEMORY:
        snprintf(out, JOB_END_TEXT_MAX, "killed for memory");
        return;
    case JOB_END_OTHER_RANK:
        if (end->by_rank >= 0)
            snprintf(out, JOB_END_TEXT_MAX, "by rank %d", end->by_rank);
        else
            snprintf(out, JOB_END_TEXT_MAX, "by another rank");
        return;
    case JOB_END_UNKNOWN:
        snprintf(out, JOB_END_TEXT_MAX, "died");
        return;
    default:
        snprintf(out, JOB_END_TEXT_MAX, "%s", job_end_kind_names[end->kind]);
    }
}

void job_end_sentence(const job_end *end, char out[JOB_END_TEXT_MAX]) {
    char fallback[24];
    const trace_exception *exception = end->exception;
    switch (end->kind) {
    case JOB_END_STATUS:
        snprintf(out, JOB_END_TEXT_MAX, "exited with status %d", end->status);
        return;
    case JOB_END_EXCEPTION:
        snprintf(out, JOB_END_TEXT_MAX, "raised %s%s%s%s%s%s", exception->type,
                 exception->message[0] ? ": " : "", exception->message, exception->place[0] ? " (" : "",
                 exception->place, exception->place[0] ? ")" : "");
        return;
    case JOB_END_SIGNAL:
        snprintf(out, JOB_END_TEXT_MAX, "was ended by %s%s", job_signal_name(end->signal, fallback),
                 end->signal == SIGKILL ? "; who sent it is not known" : "");
        return;
    case JOB_END_MEMORY:
        snprintf(out, JOB_END_TEXT_MAX, "was killed for memory, by %s",
                 end->by_cgroup ? "the limit of its control group" : "the kernel");
        return;
    case JOB_END_OTHER_RANK:
        if (end->by_rank >= 0)
            snprintf(out, JOB_END_TEXT_MAX, "ended because rank %d failed", end->by_rank);
        else
            snprintf(out, JOB_END_TEXT_MAX, "ended because another rank failed");
        return;
    case JOB_END_INTERRUPTED:
        snprintf(out, JOB_END_TEXT_MAX, "was interrupted (Ctrl-C, SIGINT)");
        return;
    case JOB_END_TERMINATED:
        snprintf(out, JOB_END_TEXT_MAX, "was terminated, as castor was");
        return;
    case JOB_END_UNKNOWN:
        snprintf(out, JOB_END_TEXT_MAX, "died, and nobody saw how");
        return;
    default:
        snprintf(out, JOB_END_TEXT_MAX, "%s", job_end_kind_names[end->kind]);
    }
}

/* The command itself failed; none of its ranks did. */
static void command_outcome(const job_notes *notes, char out[JOB_END_TEXT_MAX]) {
    char fallback[24];
    uint64_t status = last_number(notes, ENDS_JOB);
    if (status > 128 && status < 128 + NSIG)
        snprintf(out, JOB_END_TEXT_MAX, "failed: the command was ended by %s, or exited with status %d",
                 job_signal_name((int)status - 128, fallback), (int)status);
    else if (status > 0)
        snprintf(out, JOB_END_TEXT_MAX, "failed: the command exited with status %d", (int)status);
    else
        out[0] = '\0';
}

void job_ends_outcome(const job_notes *notes, const job_ended *ranks, const job_end *ends, size_t first,
                      char out[JOB_END_TEXT_MAX]) {
    char how[JOB_END_TEXT_MAX], who[32], fallback[24];
    if (first == JOB_NO_FAILURE) {
        command_outcome(notes, out);
        return;
    }
    const job_end *end = &ends[first];
    const job_note *told = told_first(notes, end);
    if (end->kind == JOB_END_INTERRUPTED || (told != NULL && told->number == SIGINT))
        snprintf(out, JOB_END_TEXT_MAX, "interrupted");
    else if (end->kind == JOB_END_TERMINATED || told != NULL)
        snprintf(out, JOB_END_TEXT_MAX,
                 told == NULL || told->number == SIGTERM ? "terminated" : "terminated (%s)",
                 told == NULL ? "" : job_signal_name((int)(told->number & 0xff), fallback));
    else if (end->kind == JOB_END_UNKNOWN)
        snprintf(out, JOB_END_TEXT_MAX, "died");
    else {
        job_ended_name(ranks[first].rank, ranks[first].counters->pid, who);
        job_end_sentence(end, how);
        snprintf(out, JOB_END_TEXT_MAX, "%s: %s %.560s",
                 end->kind == JOB_END_MEMORY ? "killed for memory" : "failed", who, how);
    }
}
